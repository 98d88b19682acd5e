"""AUC, its interval and the rates at few false alarms, beside slow literal twins."""

from __future__ import annotations

import numpy as np
import pytest

from fedalc.audit.membership import likelihood_ratio
from fedalc.audit.statistics import power_of


def test_auc_and_its_interval_are_those_of_all_pairs() -> None:
    """DeLong's variance from the matrix of all comparisons; ties count half."""
    random = np.random.default_rng(0)
    members, others = random.integers(0, 9, 40).astype(float), random.integers(-3, 7, 25).astype(float)
    above = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    error = (above.mean(1).var(ddof=1) / 40 + above.mean(0).var(ddof=1) / 25) ** 0.5
    found = power_of(members, others)
    assert found.auc == pytest.approx(above.mean())
    assert (found.low, found.high) == pytest.approx((above.mean() - 1.96 * error, above.mean() + 1.96 * error))
    assert (found.members, found.others) == (40, 25)


def test_members_caught_at_few_false_alarms() -> None:
    others = np.arange(1000.0)
    members = np.array([989.5, 990.5, 998.5, 999.5, 1e4, -1.0, 989.0, 500.0, 998.0, 0.0])
    found = power_of(members, others)
    assert found.caught == (0.6, 0.3)  # above 989, which ten of the others exceed; above 998, which one does
    assert power_of(members, others[:999]).caught[1] is None
    assert power_of(members, others[:50]).caught == (None, None)


def test_an_attack_without_information_is_chance_in_nineteen_of_twenty_trials() -> None:
    random = np.random.default_rng(1)
    trials = [power_of(random.normal(size=100), random.normal(size=100)) for _ in range(400)]
    outside = sum(not trial.low <= 0.5 <= trial.high for trial in trials)
    assert outside <= 20 + 4 * 19**0.5  # binomial: mean 20, variance 19


def test_a_perfect_attack() -> None:
    found = power_of(np.ones(5), np.zeros(5))
    assert (found.auc, found.low, found.high) == (1, 1, 1) and found.shown
    assert not power_of(np.zeros(5), np.zeros(5)).shown


def test_the_likelihood_ratio_by_hand() -> None:
    """Two records, four shadow models. With the first: 3, 5, without: 0, 2; with the second: 1, 1, without: 0, 0.
    Variances over both records: (2 + 0) / 2 with, (2 + 0) / 2 without."""
    shadows = np.array([[3.0, 1.0], [5.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    members = np.array([[True, True], [True, False], [False, True], [False, False]])
    found = likelihood_ratio(np.array([4.0, 0.5]), shadows, members)
    np.testing.assert_allclose(found, [(4 - 1) ** 2 / 2 - 0, 0.5**2 / 2 - 0.5**2 / 2])
