"""Error rates of verification: cases worked by hand, and scikit-learn's ROC curve."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import roc_curve

from fedalc.core.registry import METRICS
from fedalc.evaluation.metrics import Ranked, all_metrics, find_metric
from fedalc.evaluation.verification import FARS, error_curve, make_trials

NAMES = ["EER", *(f"TPR@FAR{far:g}" for far in FARS)]


def test_by_hand() -> None:
    """Thresholds 0.9, 0.7, 0.6, 0.5, 0.3: FAR 0, 0, 1/2, 1/2, 1 and FRR 3/4, 1/2, 1/2, 0, 0."""
    curve = error_curve(np.array([0.9, 0.7, 0.5, 0.5]), np.array([0.6, 0.3]))
    assert curve.far.tolist() == [0, 0, 0, 0.5, 0.5, 1]
    assert curve.frr.tolist() == [1, 0.75, 0.5, 0.5, 0, 0]
    assert curve.eer == 0.5
    assert curve.tpr(0.5) == 1
    assert curve.tpr(0.4) is None  # two impostors cannot show a FAR below one half


def test_eer_is_on_the_line_between_two_thresholds() -> None:
    """From (FAR, FRR) = (0, 1/3) to (1/2, 0): they are equal at 1/5."""
    curve = error_curve(np.array([3.0, 3.0, 1.0]), np.array([1.0, 0.0]))
    assert curve.eer == pytest.approx(0.2)


def test_equal_scores_are_accepted_together() -> None:
    """All scores are the same, as after a collapse: nothing but accepting all or none."""
    curve = error_curve(np.ones(5), np.ones(7))
    assert (curve.eer, curve.tpr(0.5)) == (0.5, 0.0)


def test_perfect_and_reversed() -> None:
    assert error_curve(np.array([2.0, 3.0]), np.array([0.0, 1.0])).eer == 0
    assert error_curve(np.array([0.0, 1.0]), np.array([2.0, 3.0])).eer == 1


@pytest.mark.parametrize("decimals", [1, 6])  # 1: many equal scores
def test_as_scikit_learn(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    genuine, impostors = rng.normal(1.5, 1, 300).round(decimals), rng.normal(0, 1, 4000).round(decimals)
    curve = error_curve(genuine, impostors)
    truth = np.repeat([1, 0], [300, 4000])
    fpr, tpr, _ = roc_curve(truth, np.concatenate([genuine, impostors]), drop_intermediate=False)
    np.testing.assert_allclose(curve.far, fpr)
    np.testing.assert_allclose(1 - curve.frr, tpr)
    grid = np.linspace(0, 1, 200_001)  # the same lines, looked at finely
    on_line = np.interp(grid, fpr, tpr)
    assert curve.eer == pytest.approx(grid[np.argmin(np.abs(1 - on_line - grid))], abs=2e-5)
    for far in (0.01, 0.001):
        assert curve.tpr(far) == pytest.approx(tpr[fpr <= far].max())
    assert curve.tpr(0.0001) is None


def test_points_are_vertices_of_the_curve() -> None:
    rng = np.random.default_rng(0)
    curve = error_curve(rng.normal(1, 1, 500), rng.normal(0, 1, 5000))
    points = curve.points()
    vertices = {(far, frr) for far, frr in zip(curve.far.tolist(), curve.frr.tolist(), strict=True)}
    assert 50 < len(points) < 200
    assert all((far, frr) in vertices for far, frr in points)
    assert points[-1][0] == 1


def test_trials_of_records() -> None:
    """Label 2 has no client, so the record that only has it is a stranger's; record 3 has two labels."""
    scores = np.array([[9, 1, -np.inf, 2], [8, 7, -np.inf, 3], [4, 5, -np.inf, 6], [1, 2, -np.inf, 0]], dtype=float)
    truth = csr_matrix([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    trials = make_trials(scores, truth, np.array([True, True, False, True]), np.array([[0, 0.5, -np.inf, 0.25]]))
    assert trials is not None
    assert sorted(trials.genuine) == [0, 7, 8, 9]
    assert sorted(trials.others) == [1, 1, 2, 2, 3]
    assert sorted(trials.strangers) == [0, 0.25, 0.5, 4, 5, 6]


def test_without_genuine_trials_there_are_none() -> None:
    assert make_trials(np.ones((2, 2)), csr_matrix((2, 2)), np.ones(2, dtype=bool)) is None


def test_metrics_of_both_kinds_of_impostors() -> None:
    rng = np.random.default_rng(3)
    truth = csr_matrix(np.eye(20)[np.arange(100) % 20])
    scores, strangers = truth.toarray() * 2 + rng.normal(size=(100, 20)), rng.normal(size=(50, 20)) + 1
    trials = make_trials(scores, truth, np.ones(20, dtype=bool), strangers)
    assert trials is not None
    found = all_metrics(Ranked(np.argsort(-scores, axis=1), truth, trials=trials))
    assert found["EER-others"] == pytest.approx(100 * error_curve(trials.genuine, trials.others).eer)
    assert found["EER-others"] < found["EER"] < found["EER-strangers"]
    assert found["TPR@FAR0.01-strangers"] < found["TPR@FAR0.01"] < found["TPR@FAR0.01-others"]
    assert "TPR@FAR0.0001" not in found  # 2,900 impostors' trials
    assert "TPR@FAR0.0001" in trials.summary()["not_measured"]
    assert all(find_metric(name).needs == "trials" for name in METRICS if name.startswith(("EER", "TPR")))
    assert "EER" not in all_metrics(Ranked(np.argsort(-scores, axis=1), truth))


def test_a_smaller_eer_is_better() -> None:
    assert find_metric("EER").is_better(0.5, than=1.0)
    assert find_metric("TPR@FAR0.001").is_better(99.0, than=98.0)


def test_every_metric_is_registered() -> None:
    assert {f"{name}{kind}" for name in NAMES for kind in ("", "-others", "-strangers")} <= set(METRICS)
