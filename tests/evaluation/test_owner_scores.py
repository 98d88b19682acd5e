"""Positive-only owners count in bins what one place with all held-out records counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.evaluation.calibrate import HeldOut, fit_calibration
from fedalc.evaluation.owner_scores import BINS, EDGES, MIDDLES, in_bins, owner_scores, pairs_in_bins

LABELS = 6
SHARES = np.log([0.5, 0.3, 0.2, 0.1, 0.1, 0.02])


def problem(records: int = 400) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    truth = generator.random((records, LABELS)) < np.exp(SHARES)
    truth[np.arange(records), generator.integers(4, size=records)] = True  # nobody would hold one without a label
    return truth, 0.2 + 0.15 * generator.normal(size=truth.shape) + 0.3 * truth


def in_one_place(truth: np.ndarray, scores: np.ndarray) -> HeldOut:
    labels = np.tile(np.arange(LABELS), (len(truth), 1)).ravel()
    return HeldOut(scores.ravel(), labels, truth.ravel(), np.ones(truth.size), SHARES[labels], len(truth))


def parts_of(truth: np.ndarray, scores: np.ndarray, holders: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each owner counts the records of its labels. If h owners have a label, each has all its records."""
    sharing = np.bincount(np.concatenate(holders), minlength=LABELS)
    parts = []
    for own in holders:
        has = truth & np.isin(np.arange(LABELS), own)
        rows = np.flatnonzero(has.any(1))
        parts.append(owner_scores(scores[rows], csr_matrix(has[rows] / sharing), truth.sum(1)[rows]))
    return parts


@pytest.mark.parametrize(
    "holders", [[[0], [1], [2], [3], [4], [5]], [[0, 1, 2], [3], [4, 5]], [[0, 1, 2], [1, 2, 3, 4, 5]]]
)
def test_owners_count_what_one_place_would(holders: list[list[int]]) -> None:
    truth, scores = problem()
    every, hits = (np.sum(part, axis=0) for part in zip(*parts_of(truth, scores, holders), strict=True))
    assert every.shape == (LABELS, BINS)
    place = np.searchsorted(EDGES, scores, side="right")
    for label in range(LABELS):  # literally
        np.testing.assert_allclose(every[label], np.bincount(place[:, label], minlength=BINS), atol=1e-12)
        own = np.bincount(place[truth[:, label], label], minlength=BINS)
        np.testing.assert_allclose(hits[label], own, atol=1e-12)
    together = fit_calibration([in_bins(in_one_place(truth, scores), LABELS, SHARES)], LABELS, SHARES)
    apart = fit_calibration([pairs_in_bins(every, hits, SHARES, len(truth))], LABELS, SHARES)
    assert together is not None and apart is not None
    for ours, theirs in zip(apart.parts().values(), together.parts().values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_bins_are_narrow_enough() -> None:
    """The fit to middles of bins gives nearly the probabilities and thresholds of the fit to scores."""
    truth, scores = problem(2000)
    whole = in_one_place(truth, scores)
    exact, binned = (
        fit_calibration([whole], LABELS, SHARES),
        fit_calibration([in_bins(whole, LABELS, SHARES)], LABELS, SHARES),
    )
    assert exact is not None and binned is not None
    assert np.abs(exact.probabilities(scores) - binned.probabilities(scores)).max() < 0.02
    reached = []
    for fitted in (exact, binned):
        given = fitted.probabilities(scores) >= fitted.thresholds("f1")
        reached.append(2 * (given & truth).sum() / (given.sum() + truth.sum()))
    assert abs(reached[0] - reached[1]) < 0.002 and reached[0] > 0.7


def test_every_score_has_a_bin() -> None:
    scores = np.array([[-1e9, -0.3, 0.0, 1e-9, 0.7, 1e9]])
    every, hits = owner_scores(scores, csr_matrix(np.ones((1, 6))), np.array([6]))
    assert every.sum() == hits.sum() == 6
    found = MIDDLES[np.nonzero(every)[1]]
    np.testing.assert_allclose(found[[1, 2, 3, 4]], scores[0, [1, 2, 3, 4]], rtol=0.011, atol=3e-4)
    assert (np.diff(MIDDLES) > 0).all() and (MIDDLES[1:-1] > EDGES[:-1]).all() and (MIDDLES[1:-1] < EDGES[1:]).all()
