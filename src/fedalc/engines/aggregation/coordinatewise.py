"""`median` and `trimmed-mean`, coordinate by coordinate (Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust
distributed learning: towards optimal statistical rates", 2018). All parties count the same, whatever their weights."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from torch import Tensor

from fedalc.engines.aggregation.base import Comparing


class Coordinatewise(Comparing):
    """The mean of each coordinate's values without the `cut` smallest and the `cut` largest."""

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
        """Return how many values to leave out at either end."""


class Median(Coordinatewise):
    """Leaves out all values but the middle one; of an even number, all but the middle two."""

    def cut(self, parties: int) -> int:
        return (parties - 1) // 2


class TrimmedMean(Coordinatewise):
    """Leaves out the share `server.trim` at either end, rounded down."""

    def cut(self, parties: int) -> int:
        return number_of(self.settings.server.trim, parties)


def number_of(share: float, parties: int) -> int:
    """Return the share of the parties as a number, rounded down. 0.29 of 100 is 29, although 0.29 * 100 < 29 in binary.

    >>> number_of(0.29, 100), number_of(0.3, 3)
    (29, 0)
    """
    return int(share * parties + 1e-9)
