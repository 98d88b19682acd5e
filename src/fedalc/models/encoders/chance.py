"""The random draws of a round: which instances take part, how pictures are augmented, which units dropout drops.

The draws for an instance depend only on the seed, the round and the instance's key. So it makes no difference whether
an instance is encoded once for all its clients or by each of them, and all engines give equal results.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.seeds import derived_seed
from fedalc.models.encoders.sparse_rows import SparseRows


class Chance:
    """The draws of one round."""

    def __init__(self, settings: Experiment, round_number: int, like: Tensor) -> None:
        self._round = (settings.seed, round_number)
        self._sample = settings.client.sample
        self._augment = settings.images.augment
        units, features = settings.encoder.dropout, settings.encoder.input_dropout
        seed = partial(derived_seed, settings.seed)
        self._dropout = Dropout(units, seed("dropout", round_number), like) if units else None
        self._input_dropout = Dropout(features, seed("input", round_number), like, 1 << 17) if features else None

    def chosen(self, keys: np.ndarray) -> np.ndarray:
        """Return a mask of the participating instances: probability `client.sample`, the same at all its clients."""
        return np.ones(len(keys), dtype=bool) if self._sample >= 1 else self._draw("sample", keys) < self._sample

    def drop(self, h: Tensor, keys: Tensor, layer: int) -> Tensor:
        return h if self._dropout is None else self._dropout(h, keys, layer)

    def drop_features(self, rows: SparseRows, features: Tensor | None, layer: int) -> SparseRows:
        """Return the rows without the features that dropout takes. `features`: the numbers of their columns in all
        data, if the rows have only some of these."""
        return rows if self._input_dropout is None else self._input_dropout.of_features(rows, features, layer)

    def moved(self, pictures: Tensor, keys: Tensor) -> Tensor:
        """Mirror half of the pictures (N × size × size × colours), and shift all by up to 1/8 with reflected edges."""
        if self._augment == "off":
            return pictures
        names, (size, device) = keys.cpu().numpy(), (pictures.shape[1], pictures.device)
        pixel = torch.arange(size).repeat(len(names), 1)
        down, right = pixel, torch.where(self._whole("mirror", names, 2).bool(), size - 1 - pixel, pixel)
        if self._augment == "mirror-shift":
            most = size // 8
            down, right = (
                _reflect(direction + self._whole(purpose, names, 2 * most + 1) - most, size)
                for direction, purpose in ((down, "down"), (right, "right"))
            )
        which = torch.arange(len(names), device=device).view(-1, 1, 1)
        return pictures[which, down.to(device).unsqueeze(2), right.to(device).unsqueeze(1)]

    def _whole(self, purpose: str, keys: np.ndarray, below: int) -> Tensor:
        """Draw an integer in [0, below) for each instance, as a column."""
        return torch.from_numpy((self._draw(purpose, keys) * below).astype(np.int64)).unsqueeze(1)

    def _draw(self, purpose: str, keys: np.ndarray) -> np.ndarray:
        """Draw a number in [0, 1) for each instance: the splitmix64 finaliser of its key."""
        seed, round_number = self._round
        z = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(derived_seed(seed, purpose, round_number))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))) / 2.0**64 * (1 - 2.0**-53)  # rounding must not give 1


class Dropout:
    """Each instance takes its masks from its own position in one long row of random bits."""

    def __init__(self, rate: float, seed: int, like: Tensor, size: int = 1 << 20) -> None:
        self._pool, self._shift = _random_factors(rate, seed, size, like.dtype, like.device)

    def __call__(self, h: Tensor, keys: Tensor, layer: int) -> Tensor:
        start = self._start(keys, layer).remainder(len(self._pool) - h.shape[1])
        return h * self._pool.unfold(0, h.shape[1], 1)[start]

    def of_features(self, rows: SparseRows, features: Tensor | None, layer: int) -> SparseRows:
        start = self._start(rows.keys, layer)

        def factors(instance: Tensor, column: Tensor) -> Tensor:
            number = column if features is None else features[column]
            return self._pool[(start[instance] + number) % len(self._pool)]

        return rows.times(factors)

    def _start(self, keys: Tensor, layer: int) -> Tensor:
        """Return where each instance's masks begin, before the remainder."""
        return ((keys + self._shift + layer * 0x9E3779B1) * 0x2545F4914F6CDD1D) >> 20  # wraps: a multiplicative hash


def _random_factors(rate: float, seed: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, int]:
    """Draw a row of factors, 0 or 1 / (1 - rate), and where instances begin in it."""
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers on every device
    keep = torch.rand(size, generator=generator).ge_(rate)
    pool = keep.to(dtype).div_(1 - rate).to(device)
    return pool, int(torch.randint(1 << 40, (1,), generator=generator))


def _reflect(pixel: Tensor, size: int) -> Tensor:
    """Reflect pixel positions at both edges, back into 0 … size-1."""
    return (size - 1) - ((size - 1) - pixel.abs()).abs()
