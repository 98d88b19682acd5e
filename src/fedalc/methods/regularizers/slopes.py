"""The contribution of one instance to the gradient of a regulariser. `PrivateGradient` clips it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedalc.config.schema import Weighting
from fedalc.errors import ConfigError
from fedalc.labels.correlations import Correlations


@dataclass(frozen=True)
class PairSlopes:
    """The terms of one instance's contribution to the gradient, at chosen ordered pairs (u, v).

    An instance with labels L adds A_uv for u ∈ L, v ∉ L, and T_uv for u ≠ v both in L, to the slopes of the sum.
    A must come from one regulariser, because `shared` is not linear in A. T_uv = T_vu.
    """

    pull: Tensor  # A W, labels × D: the direction in which u is pushed if L has no other label
    apart: Tensor  # A_uv
    shared: Tensor  # (A Aᵀ)_uv
    together: Tensor  # T_uv

    def scaled(self, by: float) -> PairSlopes:
        return PairSlopes(by * self.pull, by * self.apart, by * by * self.shared, by * self.together)

    def __add__(self, other: PairSlopes) -> PairSlopes:
        """Correct only if at most one of the two has a nonzero A."""
        return PairSlopes(
            self.pull + other.pull,
            self.apart + other.apart,
            self.shared + other.shared,
            self.together + other.together,
        )


def weight_of_one(correlations: Correlations | None, weighting: Weighting) -> float:
    """Return how much one instance adds to the weight of a pair: the unit of its contribution to the gradient."""
    if correlations is None:
        raise ConfigError("this regulariser does not use label sets, so no instance contributes to its gradient")
    return correlations.weight_of_one(weighting)
