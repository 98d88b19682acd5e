"""How well an attack tells members from others: area under the ROC curve with its interval, and TPR at a small FPR."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

LOW_RATES = (0.01, 0.001)
INTERVAL = 1.96  # standard errors: 95 %


@dataclass(frozen=True)
class Power:
    """The power of an attack. `low`, `high`: the 95 % interval of the AUC. `caught`: the part of the members found at
    each of LOW_RATES; None if there are too few others to know that rate."""

    auc: float
    low: float
    high: float
    caught: tuple[float | None, ...]
    members: int
    others: int

    @property
    def shown(self) -> bool:
        """Whether the attack is better than chance, at 95 %."""
        return self.low > 0.5


def power_of(members: np.ndarray, others: np.ndarray) -> Power:
    """Return the power of an attack that gives these scores: higher ones to likely members.

    >>> power_of(np.array([3.0, 2.0, 1.0]), np.array([0.0, 1.5, 0.5])).auc.__round__(4)
    0.8889
    """
    m, n = len(members), len(others)
    above_others = (rankdata(np.concatenate([members, others]))[:m] - rankdata(members)) / n  # of each member
    below_members = 1 - (rankdata(np.concatenate([members, others]))[m:] - rankdata(others)) / m
    auc = float(above_others.mean())
    error = np.sqrt(_variance(above_others) / m + _variance(below_members) / n)  # DeLong et al. 1988
    caught = tuple(_caught(members, others, rate) for rate in LOW_RATES)
    low, high = max(0.0, auc - INTERVAL * error), min(1.0, auc + INTERVAL * error)
    return Power(auc, float(low), float(high), caught, m, n)


def _variance(values: np.ndarray) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _caught(members: np.ndarray, others: np.ndarray, rate: float) -> float | None:
    """Return the part of the members above the threshold that `rate` of the others exceed."""
    allowed = int(rate * len(others))
    if allowed < 1:
        return None
    threshold = np.sort(others)[-allowed - 1] if allowed < len(others) else -np.inf
    return float((members > threshold).mean())
