"""Holds the changes of all parties of a round, for the rules that compare them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np
import torch
from torch import Tensor

from fedalc.core.blocks import blocks
from fedalc.errors import FedalcError


class HeldChanges:
    """One row of numbers per party, in the precision of θ. Up to `budget` bytes are held in memory, more in an unnamed
    temporary file, which the system removes with the process. Rows are read back a block of coordinates at a time."""

    def __init__(self, theta: Sequence[Tensor], budget: int) -> None:
        self.theta = theta
        self.budget = budget
        self._parties: list[int] = []
        self._rows: list[np.ndarray] = []
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._parties)

    @property
    def _order(self) -> np.ndarray:
        """Rows sorted by party, so that the order of arrival does not change the result."""
        return np.argsort(self._parties)

    @property
    def parties(self) -> list[int]:
        """The parties, in the order of their rows."""
        return sorted(self._parties)

    def add(self, party: int, change: Sequence[Tensor]) -> None:
        pairs = zip(change, self.theta, strict=True)
        parts = [(c.to_dense() if c.is_sparse else c).detach().to(p.dtype).cpu().flatten() for c, p in pairs]
        row = torch.cat(parts).numpy()
        self._parties.append(party)
        if self._file is None and len(self) * row.nbytes <= self.budget:
            self._rows.append(row)
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
                for earlier in self._rows:
                    self._file.write(earlier.data)
                self._rows = []
            self._file.write(row.data)
            self._file.flush()
        except OSError as error:
            raise FedalcError(
                f"the changes of {len(self)} parties, {row.nbytes / 1e6:.0f} MB each, fit neither into memory_budget "
                f"({self.budget / 1e6:.0f} MB) nor into {tempfile.gettempdir()}: {error.strerror or error}; raise "
                'memory_budget, set TMPDIR to a larger disk, or use server.aggregation = "clip"'
            ) from None

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (coordinates, matrix of parties × coordinates), a block of coordinates at a time, parties in order."""
        size, order = sum(parameter.numel() for parameter in self.theta), self._order
        rows: Sequence[np.ndarray] | np.ndarray = self._rows
        if self._file is not None:
            dtype = torch.empty(0, dtype=self.theta[0].dtype).numpy().dtype
            rows = np.memmap(self._file, dtype, mode="r", shape=(len(self), size))
        for part in blocks(size, 16 * len(self), self.budget):  # the block, and a copy in double precision
            yield part, np.stack([rows[row][part] for row in order])

    def weighted(self, factors: Sequence[float] | np.ndarray, over: float) -> list[Tensor]:
        """Return Σ factor·Δ / over, with the factors in the order of the parties."""
        out, factors = np.empty(sum(parameter.numel() for parameter in self.theta)), np.asarray(factors)
        for part, values in self.blocks():
            out[part] = factors @ values / over
        return self.shaped(out)

    def shaped(self, flat: np.ndarray) -> list[Tensor]:
        """Return one row of numbers as tensors of the shapes of θ."""
        parts = torch.from_numpy(flat).split([parameter.numel() for parameter in self.theta])
        return [part.view(p.shape).to(p) for part, p in zip(parts, self.theta, strict=True)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._rows = []
