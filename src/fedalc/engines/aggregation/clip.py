"""`clip`: norm bounding (Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.engines.aggregation.base import Aggregation, WeightedSum, capped
from fedalc.engines.aggregation.held import HeldChanges
from fedalc.engines.aggregation.lengths import Lengths, usual_length


class Clip(Aggregation):
    """Σ P_k min(1, C/‖Δ_k‖) Δ_k / Σ P_k: the mean of changes that are cut to length C and keep their direction.

    C is the median length of the parties' last changes in earlier rounds (`usual_length`), so changes are added up as
    they arrive. In the first round C is the median of that round, so all its changes are held (`HeldChanges`).

    A change is cut by its length and not by P_k·length, which would shrink large parties and costs quality
    (docs/robust.md). But parties report their own weights and may lie, so weights are cut too (`capped`).
    """

    def __init__(
        self, theta: Sequence[Tensor], weights: Mapping[int, float], lengths: Lengths, settings: Experiment
    ) -> None:
        super().__init__(theta, capped(weights), lengths, settings)
        self.sum = WeightedSum(theta)
        self.held = None if lengths.usual else HeldChanges(theta, settings.memory_budget)
        self._lengths: dict[int, float] = {}  # lengths of this round

    def add(self, party: int, change: Sequence[Tensor], length: float) -> None:
        self._lengths[party] = length
        if self.held is None:
            self.sum.add(change, self.weights[party], _factor(self.lengths.usual, length))
        else:
            self.held.add(party, change)

    def result(self) -> list[Tensor]:
        if self.held is None or not len(self.held):
            return self.sum.mean()
        bound = usual_length(self._lengths.values())  # zero if at most one change is not zero: then nothing is cut
        parties = self.held.parties
        factors = [self.weights[k] * (_factor(bound, self._lengths[k]) if bound else 1.0) for k in parties]
        try:
            return self.held.weighted(factors, sum(self.weights[k] for k in parties))
        finally:
            self.held.close()


def _factor(bound: float, length: float) -> float:
    return min(1.0, bound / length) if length > 0 else 1.0
