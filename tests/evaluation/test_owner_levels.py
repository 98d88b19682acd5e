"""Positive-only owners add up exactly what one place with all held-out records counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.evaluation.owner_levels import joined_counts, owner_counts
from fedalc.models.thresholds import Rule, count_at_levels


@pytest.mark.parametrize("owners", [[[0], [1], [2], [3], [4], [5]], [[0, 1, 2], [3], [4, 5]]])
def test_owners_count_what_one_place_would(owners: list[list[int]]) -> None:
    generator = np.random.default_rng(4)
    truth = generator.random((80, 6)) < [0.5, 0.3, 0.2, 0.1, 0.1, 0.02]
    truth[np.arange(80), generator.integers(4, size=80)] = True  # no record without a label: nobody would hold it
    log_odds = generator.normal(0, 2, truth.shape) + 2 * truth
    sizes, labels = truth.sum(1), np.tile(np.arange(6), (80, 1))
    together = count_at_levels(log_odds.ravel(), labels.ravel(), truth.ravel(), np.ones(480), 6)
    parts = []
    for own in owners:
        has = truth & np.isin(np.arange(6), own)
        rows = np.flatnonzero(has.any(1))  # all that this owner has: records of its own labels, and their sizes
        parts.append(owner_counts(log_odds[rows], csr_matrix(has[rows].astype(np.float32)), sizes[rows]))
    apart = joined_counts(parts, truth.sum(0))
    np.testing.assert_array_equal(apart.labels, together.labels)
    np.testing.assert_array_equal(apart.positives, together.positives)
    np.testing.assert_allclose(apart.predicted, together.predicted, rtol=1e-6)
    np.testing.assert_array_equal(apart.hits, together.hits)
    for rule in (Rule("f1"), Rule("precision", 0.8)):
        np.testing.assert_array_equal(apart.thresholds(rule, 6), together.thresholds(rule, 6))
