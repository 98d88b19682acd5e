"""`median` and `trimmed-mean`, coordinate by coordinate (Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust
distributed learning: towards optimal statistical rates", 2018). Parties count alike, whatever their weights."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from torch import Tensor

from fedalc.engines.aggregation.base import Comparing


class Coordinatewise(Comparing):
    """The mean of the middle of each coordinate's values, after `cut` have been left out at either end."""

    def combined(self) -> list[Tensor]:
        out = np.empty(sum(parameter.numel() for parameter in self.theta))
        count = len(self.held)
        cut = self.cut(count)
        for part, values in self.held.blocks():
            values.sort(axis=0)
            out[part] = values[cut : count - cut].mean(axis=0, dtype=np.float64)
        return self.held.shaped(out)

    @abstractmethod
    def cut(self, parties: int) -> int:
        """How many at either end."""


class Median(Coordinatewise):
    """All but the one in the middle; of an even number, all but the two."""

    def cut(self, parties: int) -> int:
        return (parties - 1) // 2


class TrimmedMean(Coordinatewise):
    """The share `server.trim` at either end, rounded down."""

    def cut(self, parties: int) -> int:
        return number_of(self.settings.server.trim, parties)


def number_of(share: float, parties: int) -> int:
    """How many parties this share is, rounded down; 0.29 of 100 are 29, whatever binary fractions make of it.

    >>> number_of(0.29, 100), number_of(0.3, 3)
    (29, 0)
    """
    return int(share * parties + 1e-9)
