"""Owners' hits add up to the metrics of one place that has all labels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.evaluation.metrics import ranking_metrics
from fedalc.evaluation.owner_hits import RANKED_BY, count_hits, figures, most_hits


@pytest.mark.parametrize("label_count", [2, 4, 30])
def test_any_division_of_the_labels(label_count: int) -> None:
    random = np.random.default_rng(label_count)
    truth = csr_matrix((random.random((80, label_count)) < 0.3).astype(np.float32))
    truth = truth[np.flatnonzero(truth.getnnz(axis=1))]
    top = np.argsort(random.random(truth.shape), axis=1)[:, :5]
    sizes, owner = truth.getnnz(axis=1), random.integers(0, 3, label_count)
    total = np.zeros(6)
    for party in np.unique(owner):
        own = csr_matrix(truth.multiply(owner == party))
        own.eliminate_zeros()
        rows = np.flatnonzero(own.getnnz(axis=1))  # a party has no other instances
        hits = count_hits(top[rows], own[rows], sizes[rows])
        np.testing.assert_allclose(count_hits(top[rows], own[rows]), hits[:3])
        capped = count_hits(top[rows], own[rows], np.minimum(sizes[rows], 5))
        np.testing.assert_array_equal(hits, capped)
        assert (hits <= most_hits(own[rows].getnnz(axis=1), sizes[rows]) + 1e-12).all()
        total += hits
    wanted = ranking_metrics(top, truth)
    assert figures(total, truth.shape[0]) == pytest.approx({name: wanted[name] for name in RANKED_BY}, rel=1e-12)
    assert list(figures(total[:3], truth.shape[0])) == ["P@1", "P@3", "P@5"]


def test_the_most_hits_are_those_of_a_perfect_ranking() -> None:
    own = np.array([1, 2, 4, 7])
    labels = csr_matrix((np.arange(8) < own[:, None]).astype(np.float32))
    perfect = np.tile(np.arange(5), (4, 1))
    np.testing.assert_allclose(count_hits(perfect, labels, own), most_hits(own, own))
