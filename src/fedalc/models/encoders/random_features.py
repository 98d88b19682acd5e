"""Random features (Rahimi and Recht, 2007): one matrix on [x, √(2/M) f(Rx), constant], with R drawn and never trained.

The map stays linear in θ, so fedalc-oneshot and conjugate gradients solve for it, but not in x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalc.config.schema import EncoderSettings
from fedalc.core.blocks import blocks
from fedalc.core.seeds import derived_seed
from fedalc.errors import ConfigError, FedalcError
from fedalc.models.encoders.sparse_rows import SparseRows
from fedalc.models.encoders.text import Linear

MOST_DRAWN = 2**29
"""The most numbers of R, features × M: 2 GiB in float32."""
CHECKED = 4  # numbers of R that a saved model has with its seed, each times MILLION and rounded
MILLION = 10**6


class RandomFeatures(Linear):
    """[x, √(2/M) f(Rx), constant] → 512. R is features × M.

    Everyone draws R from the seed of the run: it is no parameter, is not sent, and a saved model has only its seed.
    Memory: features × M numbers, drawn when first used, and a block of `block_rows` × M.
    """

    help = "one matrix for sparse features and random nonlinear functions of them"
    ignores = ("norm", "embedding", "hidden")

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.uses_features = settings.linear_part
        count = settings.random_features
        if feature_count * count > MOST_DRAWN:
            raise ConfigError(
                f"{count} random features of {feature_count} features need a matrix of "
                f"{4 * feature_count * count / 1e9:.1f} GB, more than the {4 * MOST_DRAWN / 1e9:.1f} GB that fedalc "
                f"draws; use at most {MOST_DRAWN // feature_count}, or the encoder linear",
                "encoder.random_features",
            )
        self.drawn = feature_count * count
        self.takes_some_features = settings.linear_part  # otherwise every round needs all of θ
        self.activation = settings.activation
        # The generator is seeded with the run's seed and a purpose. Its own draws depend on torch's version.
        seed = derived_seed(generator.initial_seed(), "random features")
        self.projection = Projection(seed, feature_count, count, settings.scale)

    @staticmethod
    def first_rows(feature_count: int, settings: EncoderSettings) -> int:
        return feature_count * settings.linear_part + settings.random_features + (settings.constant > 0)

    def for_features(self, features: Tensor) -> RandomFeatures:
        part = super().for_features(features)
        assert isinstance(part, RandomFeatures)
        part.projection = self.projection.of_features(features)
        return part

    @torch.no_grad()
    def columns(self, rows: SparseRows) -> Sequence[Tensor]:
        matrix, phases = self.projection.drawn(rows.dtype, rows.keys.device)
        product = rows @ matrix
        if self.activation == "identity":  # keeps the length of x on average
            return (product.div_(math.sqrt(len(phases))), *super().columns(rows))
        product = product.relu_() if self.activation == "relu" else product.add_(phases).cos_()
        return (product.mul_(math.sqrt(2 / len(phases))), *super().columns(rows))

    def get_extra_state(self) -> Tensor:
        """Return what a saved model needs to draw R again."""
        return torch.tensor([self.projection.seed, *_first_numbers(self.projection.seed)])

    def set_extra_state(self, state: Any) -> None:
        if not isinstance(state, Tensor) or state.dtype != torch.int64 or state.shape != (1 + CHECKED,) or state[0] < 0:
            raise ValueError("the seed of its random features is not one")
        seed, *numbers = state.tolist()
        if numbers != _first_numbers(seed):
            raise FedalcError(
                f"the model's random features cannot be drawn again: numpy {np.__version__} draws other numbers from "
                "their seed than the numpy that trained the model"
            )
        whole = self.projection
        self.projection = Projection(seed, whole.features, whole.count, whole.scale)


class Projection:
    """R, features × count, normal with deviation `scale`, and b, uniform on [0, 2π). Copies of an encoder share it."""

    def __init__(self, seed: int, features: int, count: int, scale: float, chosen: Tensor | None = None) -> None:
        self.seed, self.features, self.count, self.scale = seed, features, count, scale
        self._chosen = chosen
        self._whole = self
        self._drawn: tuple[Tensor, Tensor] | None = None

    def drawn(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return R and b. They are drawn in double precision on the CPU, so all devices have the same."""
        if self._drawn is None or self._drawn[0].dtype != dtype or self._drawn[0].device != device:
            if self._chosen is not None:
                matrix, phases = self._whole.drawn(dtype, device)
                self._drawn = matrix[self._chosen], phases
            else:
                self._drawn = self._draw(dtype, device)
        return self._drawn

    def of_features(self, features: Tensor) -> Projection:
        """Return the rows of R for these features."""
        part = Projection(self.seed, len(features), self.count, self.scale, features)
        part._whole = self
        return part

    def _draw(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = _generator(self.seed)
        matrix = torch.empty(self.features, self.count, dtype=dtype, device=device)
        for rows in blocks(self.features, 8 * self.count):
            numbers = generator.standard_normal((rows.stop - rows.start, self.count))
            matrix[rows] = torch.from_numpy(numbers * self.scale).to(dtype).to(device)
        phases = _generator(derived_seed(self.seed, "phases")).uniform(0, 2 * math.pi, self.count)
        return matrix, torch.from_numpy(phases).to(dtype).to(device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Projection:
        return self  # it never changes


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def _first_numbers(seed: int) -> list[int]:
    return [round(MILLION * number) for number in _generator(seed).standard_normal(CHECKED)]
