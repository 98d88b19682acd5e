"""What an aggregation rule is: the parties' changes of θ go in, and one change for the server's optimiser comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.engines.aggregation.held import HeldChanges
from fedalc.engines.aggregation.lengths import Lengths, median_length

HEAVIEST = 10.0  # how many times the median party's weight a party may have
FEWEST = 3  # parties among which a weight can be called too large


class Aggregation(ABC):
    """Of one round. A party's change is the mean over its labels, Δ_k = Σ_{u ∈ k} p_u (θ - θ_u) / P_k, and its weight
    P_k = Σ_{u ∈ k} p_u. Changes come one by one, in any order; a party that stays away is left out.

    `lengths`: what is known of changes' lengths from earlier rounds. A rule may use it and does not change it.
    """

    def __init__(
        self, theta: Sequence[Tensor], weights: Mapping[int, float], lengths: Lengths, settings: Experiment
    ) -> None:
        self.theta = theta
        self.weights = weights
        self.lengths = lengths
        self.settings = settings

    @abstractmethod
    def add(self, party: int, change: Sequence[Tensor], length: float) -> None:
        """`length`: ‖Δ_k‖."""

    @abstractmethod
    def result(self) -> list[Tensor]:
        """One tensor per parameter of θ; zeros where nobody was heard."""


class WeightedSum:
    """Σ c_k Δ_k / Σ P_k, in double precision, so that the order of arrival hardly shows. Memory: θ once."""

    def __init__(self, theta: Sequence[Tensor]) -> None:
        self.theta = theta
        self.totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in theta]
        self.part = 0.0

    def add(self, change: Sequence[Tensor], weight: float, factor: float = 1.0) -> None:
        """Adds `weight`·`factor`·Δ to the sum and `weight` to what it is divided by."""
        for total, tensor in zip(self.totals, change, strict=True):
            total.add_(tensor.to(total), alpha=weight * factor)
        self.part += weight

    def mean(self) -> list[Tensor]:
        scale = 1 / self.part if self.part else 0.0
        return [total.mul_(scale).to(parameter) for total, parameter in zip(self.totals, self.theta, strict=True)]


class Comparing(Aggregation):
    """Rules that need all changes at once.

    Memory: parties × θ, of which at most `memory_budget` bytes in memory and the rest on disk (`HeldChanges`).
    """

    def __init__(
        self, theta: Sequence[Tensor], weights: Mapping[int, float], lengths: Lengths, settings: Experiment
    ) -> None:
        super().__init__(theta, weights, lengths, settings)
        self.held = HeldChanges(theta, settings.memory_budget)

    def add(self, party: int, change: Sequence[Tensor], length: float) -> None:
        self.held.add(party, change)

    def result(self) -> list[Tensor]:
        try:
            return self.combined() if len(self.held) else WeightedSum(self.theta).mean()
        finally:
            self.held.close()

    @abstractmethod
    def combined(self) -> list[Tensor]:
        """Of at least one change."""


def capped(weights: Mapping[int, float]) -> dict[int, float]:
    """Weights, where none is more than HEAVIEST times the median: they are what parties say of themselves.

    >>> capped({0: 1.0, 1: 2.0, 2: 500.0})
    {0: 1.0, 1: 2.0, 2: 20.0}
    """
    if len(weights) < FEWEST:
        return dict(weights)
    most = HEAVIEST * median_length(weights.values())
    return {party: min(weight, most) for party, weight in weights.items()}
