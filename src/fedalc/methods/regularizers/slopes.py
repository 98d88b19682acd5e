"""What one instance's part in the gradient of a regulariser is made of, for those who limit it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedalc.config.schema import Weighting
from fedalc.errors import ConfigError
from fedalc.labels.correlations import Correlations


@dataclass(frozen=True)
class PairSlopes:
    """What one instance's part in the gradient is made of, given at chosen ordered pairs (u, v).

    An instance with labels L adds A_uv for u ∈ L, v ∉ L, and T_uv for u ≠ v both in L, to the slopes of the sum.
    A comes from one regulariser: `shared` is not linear in it. T_uv = T_vu.
    """

    pull: Tensor  # A W, labels × D: where u is pushed if no other label is in L
    apart: Tensor  # A_uv
    shared: Tensor  # (A Aᵀ)_uv
    together: Tensor  # T_uv

    def scaled(self, by: float) -> PairSlopes:
        return PairSlopes(by * self.pull, by * self.apart, by * by * self.shared, by * self.together)

    def __add__(self, other: PairSlopes) -> PairSlopes:
        """Right where one of the two has no A."""
        return PairSlopes(
            self.pull + other.pull,
            self.apart + other.apart,
            self.shared + other.shared,
            self.together + other.together,
        )


def weight_of_one(correlations: Correlations | None, weighting: Weighting) -> float:
    """What one instance adds to the weight of a pair: the unit in which its part in the gradient is measured."""
    if correlations is None:
        raise ConfigError("this regulariser does not look at label sets, so no instance has a part in its gradient")
    return correlations.weight_of_one(weighting)
