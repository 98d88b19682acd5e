"""`multi-krum` (Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant
gradient descent", 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.engines.aggregation.base import Comparing, capped
from fedalc.engines.aggregation.coordinatewise import number_of
from fedalc.engines.aggregation.lengths import Lengths


class MultiKrum(Comparing):
    """If f of n parties may lie, the score of a change is the sum of its squared distances to the n - f - 2 nearest
    others. The result is the weighted mean (`capped`) of the n - f changes with the lowest scores.

    f is the share `server.byzantine` of n, rounded down, and at most what the rule can withstand: 2f + 2 < n.
    """

    def __init__(
        self, theta: Sequence[Tensor], weights: Mapping[int, float], lengths: Lengths, settings: Experiment
    ) -> None:
        super().__init__(theta, capped(weights), lengths, settings)

    def combined(self) -> list[Tensor]:
        count = len(self.held)
        lying = krum_withstands(self.settings.server.byzantine, count)
        factors = np.array([self.weights[party] for party in self.held.parties])
        if lying:
            scores = krum_scores(self._squared_distances(), lying)
            factors[np.argsort(scores, kind="stable")[count - lying :]] = 0
        return self.held.weighted(factors, factors.sum())

    def _squared_distances(self) -> np.ndarray:
        """Return the squared distances between all pairs, computed around the mean to avoid cancellation."""
        products = np.zeros((len(self.held), len(self.held)))
        for _, values in self.held.blocks():
            around = values - values.mean(axis=0, dtype=np.float64)
            products += around @ around.T
        squares = np.diag(products)
        return np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)


def krum_scores(squared: np.ndarray, lying: int) -> np.ndarray:
    """Return the score of each change, from the squared distances between all pairs."""
    others = squared.copy()
    np.fill_diagonal(others, np.inf)
    return np.asarray(np.sort(others, axis=1)[:, : len(squared) - lying - 2].sum(axis=1))


def krum_withstands(share: float, parties: int) -> int:
    return min(number_of(share, parties), max(0, (parties - 3) // 2))
