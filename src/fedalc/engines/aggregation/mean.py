"""`mean`: federated averaging (McMahan et al., 2017). It is not robust: one lying party can move it anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.engines.aggregation.base import Aggregation, WeightedSum
from fedalc.engines.aggregation.lengths import Lengths


class Mean(Aggregation):
    """Σ P_k Δ_k / Σ P_k."""

    def __init__(
        self, theta: Sequence[Tensor], weights: Mapping[int, float], lengths: Lengths, settings: Experiment
    ) -> None:
        super().__init__(theta, weights, lengths, settings)
        self.sum = WeightedSum(theta)

    def add(self, party: int, change: Sequence[Tensor], length: float) -> None:
        self.sum.add(change, self.weights[party])

    def result(self) -> list[Tensor]:
        return self.sum.mean()
