"""Probabilities fitted on held-out scores: known ones are found again, sampling changes little, little data is safe."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss
from torch import Tensor

from fedalc.data.dataset import Split
from fedalc.evaluation import calibrate
from fedalc.evaluation.calibrate import fit_calibration, held_out_scores, log_shares, some_records
from fedalc.models.calibration import sigmoid

LABELS = 300


class Fixed:
    """Scores that are there already."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = torch.from_numpy(scores)

    def of_instances(self, rows: slice) -> Tensor:
        return self.scores[rows].clone()


def world(records: int, seed: int, labels: int = LABELS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and the true probabilities: log-odds bend at a score of 0.3, and rare labels are less likely."""
    generator = np.random.default_rng(seed)
    frequency = np.linspace(-1, 1, labels)
    scores = generator.normal(0, 0.25, size=(records, labels))
    p = sigmoid(12 * np.minimum(scores, 0.3) + 3 * np.maximum(scores - 0.3, 0) - 5 + frequency)
    return scores, (generator.random(p.shape) < p).astype(np.float32), p


def fitted(records: int = 800, labels: int = LABELS, held: np.ndarray | None = None):  # type: ignore[no-untyped-def]
    scores, truth, _ = world(records, 0, labels)
    held = np.ones(labels, bool) if held is None else held
    scores[:, ~held] = -np.inf
    shares = log_shares(csr_matrix(world(2000, 2, labels)[1]))
    scored = held_out_scores(Fixed(scores), csr_matrix(truth), held, shares)
    return fit_calibration([scored], labels, shares), scored


@pytest.mark.few(1)
@pytest.mark.parametrize("keep_all", [True, False])
def test_the_true_probabilities_are_found_again(keep_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if keep_all:
        monkeypatch.setattr(calibrate, "KEEP_ALL", LABELS)
    calibration, scored = fitted()
    assert (len(scored.scores) < 0.5 * 800 * LABELS) != keep_all
    assert scored.weights.sum() == pytest.approx(800 * LABELS)
    scores, truth, p = world(500, 1)
    found = calibration.probabilities(scores)
    best, ours = log_loss(truth.ravel(), p.ravel()), log_loss(truth.ravel(), found.ravel())
    assert ours < best * 1.01
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        inside = (found > low) & (found <= high)
        assert truth[inside].mean() == pytest.approx(found[inside].mean(), rel=0.15)


def test_without_the_labels_shares_the_offsets_make_up_for_them() -> None:
    scores, truth, _ = world(800, 0)
    scored = held_out_scores(Fixed(scores), csr_matrix(truth), np.ones(LABELS, bool))
    calibration = fit_calibration([scored], LABELS)
    assert calibration is not None
    assert np.corrcoef(calibration.offsets, np.linspace(-1, 1, LABELS))[0, 1] > 0.6


def test_labels_without_a_client_are_left_out() -> None:
    held = np.arange(LABELS) % 3 > 0
    calibration, scored = fitted(held=held)
    assert held[scored.labels].all() and np.isfinite(scored.scores).all()
    assert np.isfinite(calibration.offsets).all()


def test_a_label_that_never_occurs_stays_near_the_others() -> None:
    scores, truth, _ = world(800, 0)
    truth[:, 7] = 0
    scored = held_out_scores(Fixed(scores), csr_matrix(truth), np.ones(LABELS, bool))
    calibration = fit_calibration([scored], LABELS)
    assert calibration is not None
    others = np.delete(calibration.offsets, 7)
    assert others.mean() - 1.5 < calibration.offsets[7] < others.mean()


def test_too_few_positives_give_no_calibration() -> None:
    scores, truth, _ = world(100, 0, labels=5)
    truth[:] = 0
    truth[:3, 0] = 1
    assert fit_calibration([held_out_scores(Fixed(scores), csr_matrix(truth), np.ones(5, bool))], 5) is None


def test_equal_scores_are_no_problem() -> None:
    truth = (np.random.default_rng(0).random((100, 5)) < 0.4).astype(np.float32)
    scored = held_out_scores(Fixed(np.zeros((100, 5))), csr_matrix(truth), np.ones(5, bool))
    calibration = fit_calibration([scored], 5)
    assert calibration is not None
    np.testing.assert_allclose(calibration.probabilities(np.zeros((1, 5))), truth.mean(), atol=0.1)


def test_memory_decides_only_how_much_is_scored_at_once() -> None:
    scores, truth, _ = world(60, 0)
    one, many = (
        held_out_scores(Fixed(scores), csr_matrix(truth), np.ones(LABELS, bool), budget=budget)
        for budget in (2**28, 24 * LABELS)
    )
    np.testing.assert_array_equal(one.weights, many.weights)
    np.testing.assert_array_equal(one.scores, many.scores)


def test_many_records_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(np.eye(30, dtype=np.float32), np.eye(30, dtype=np.float32))
    assert some_records(split, 0) is split
    monkeypatch.setattr(calibrate, "MOST_SCORES", 300)
    assert len(some_records(split, 0)) == 10
