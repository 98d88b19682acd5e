"""The interface of an aggregation rule: it combines the parties' changes of θ into one for the server's optimiser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.engines.aggregation.held import HeldChanges
from fedalc.engines.aggregation.lengths import Lengths, median_length

HEAVIEST = 10.0  # largest weight of a party, in units of the median weight
FEWEST = 3  # with fewer parties no weight can be called too large


class Aggregation(ABC):
    """Combines the changes of one round. A party's change is the mean over its labels,
    Δ_k = Σ_{u ∈ k} p_u (θ - θ_u) / P_k, and its weight is P_k = Σ_{u ∈ k} p_u. Changes come one by one, in any order; a
    party that does not answer is left out.

    `lengths` holds the lengths of changes in earlier rounds. A rule may read it and does not change it.
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
        """Return one tensor per parameter of θ; zeros if no party answered."""


class WeightedSum:
    """Σ c_k Δ_k / Σ P_k, in double precision, so that the order of arrival hardly matters. Memory: θ once."""

    def __init__(self, theta: Sequence[Tensor]) -> None:
        self.theta = theta
        self.totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in theta]
        self.part = 0.0

    def add(self, change: Sequence[Tensor], weight: float, factor: float = 1.0) -> None:
        """Add `weight`·`factor`·Δ to the sum and `weight` to the divisor."""
        for total, tensor in zip(self.totals, change, strict=True):
            total.add_(tensor.to(total), alpha=weight * factor)
        self.part += weight

    def mean(self) -> list[Tensor]:
        scale = 1 / self.part if self.part else 0.0
        return [total.mul_(scale).to(parameter) for total, parameter in zip(self.totals, self.theta, strict=True)]


class Comparing(Aggregation):
    """A rule that needs all changes at once.

    Memory: parties × θ; at most `memory_budget` bytes of it in memory, the rest on disk (`HeldChanges`).
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
        """Combine the held changes. There is at least one."""


def cut_like(weights: np.ndarray, used: float) -> np.ndarray:
    """Return the weights of a party's labels, scaled so that they add up to the weight that the rule uses for it.

    >>> cut_like(np.array([1.0, 3.0]), 2.0).tolist()
    [0.5, 1.5]
    """
    return weights * min(1.0, used / weights.sum()) if weights.sum() > 0 else weights


def capped(weights: Mapping[int, float]) -> dict[int, float]:
    """Return the weights, each cut to HEAVIEST times the median: parties report their own weights and may lie.

    >>> capped({0: 1.0, 1: 2.0, 2: 500.0})
    {0: 1.0, 1: 2.0, 2: 20.0}
    """
    if len(weights) < FEWEST:
        return dict(weights)
    most = HEAVIEST * median_length(weights.values())
    return {party: min(weight, most) for party, weight in weights.items()}
