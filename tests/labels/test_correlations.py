"""n, c and the weights derived from them, against counting by hand and by loops."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.errors import ConfigError
from fedalc.labels.correlations import PAIRS_AT_ONCE, Correlations, _carriers
from tests.labels.collection.problems import assert_same
from tests.problems import random_split

# Five instances: {0,1}, {0,1,2}, {0}, {2}, {} — the last is on no client.
BY_HAND = csr_matrix(np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0]], dtype=np.float32))


def test_counts_by_hand() -> None:
    known = Correlations.from_label_sets(BY_HAND)
    assert known.instances == 4
    assert known.counts.tolist() == [3, 2, 2]
    assert known.together.toarray().tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]


def test_sigma_by_hand() -> None:
    """σ_01 = one instance of four has 0 and not 1; σ_10 = none has 1 and not 0; and so on."""
    sigma = Correlations.from_label_sets(BY_HAND).apart(slice(0, 3), "sigma", torch.zeros(1, dtype=torch.float64))
    assert sigma.tolist() == [[0, 0.25, 0.5], [0, 0, 0.25], [0.25, 0.25, 0]]


def test_gamma_by_hand() -> None:
    gamma = Correlations.from_label_sets(BY_HAND).apart(slice(0, 3), "gamma", torch.zeros(1, dtype=torch.float64))
    assert torch.allclose(gamma, torch.tensor([[0, 1 / 3, 2 / 3], [0, 0, 1], [0.5, 0.5, 0]], dtype=torch.float64))


def test_conditional_by_hand() -> None:
    """Of label 0's three instances one lacks 1 and two lack 2; of label 2's two, one lacks each other."""
    share = Correlations.from_label_sets(BY_HAND).apart(slice(0, 3), "conditional", torch.zeros(1, dtype=torch.float64))
    assert torch.allclose(share, torch.tensor([[0, 1 / 3, 2 / 3], [0, 0, 0.5], [0.5, 0.5, 0]], dtype=torch.float64))


def test_sigma_is_the_papers_indicator_sum() -> None:
    labels = random_split(40, 5, 6, seed=3).labels
    sets = [set(row.indices) for row in labels]
    held = [s for s in sets if s]
    sigma = Correlations.from_label_sets(labels).apart(slice(0, 6), "sigma", torch.zeros(1, dtype=torch.float64))
    for u in range(6):
        for v in range(6):
            expected = sum(u in s and v not in s for s in held) / len(held)
            assert sigma[u, v].item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("weighting", ["sigma", "gamma", "conditional", "counts"])
def test_blocks_and_single_pairs_agree(weighting: str) -> None:
    known = Correlations.from_label_sets(random_split(50, 5, 8, seed=1).labels)
    like = torch.zeros(1, dtype=torch.float64)
    whole = known.apart(slice(0, 8), weighting, like)  # type: ignore[arg-type]
    part = known.apart(slice(2, 5), weighting, like)  # type: ignore[arg-type]
    assert torch.equal(whole[2:5], part)
    columns = torch.tensor([[0, 7], [1, 2], [3, 6]])
    picked = known.apart_at(torch.arange(2, 5), columns, weighting, like)  # type: ignore[arg-type]
    assert torch.allclose(picked, whole[2:5].gather(1, columns), atol=1e-15)


def test_a_label_always_with_all_others_has_no_gamma() -> None:
    known = Correlations.from_label_sets(csr_matrix(np.ones((3, 2), dtype=np.float32)))
    assert known.apart(slice(0, 2), "gamma", torch.zeros(1)).tolist() == [[0, 0], [0, 0]]


def test_pairs_together_are_all_of_c_whatever_the_batch() -> None:
    known = Correlations.from_label_sets(random_split(50, 5, 8, seed=2).labels)
    for at_once in (1, 3, 1000):
        dense = torch.zeros(8, 8, dtype=torch.float64)
        for u, v, share in known.pairs_together(at_once, dense):
            dense[u, v] += share
        assert np.allclose(dense.numpy(), known.together.toarray() / known.instances)


def test_weights_count_an_instance_in_part() -> None:
    """{0,1} half, {0,1,2} fully, {0} twice, {2} not at all; N stays 4."""
    known = Correlations.from_label_sets(BY_HAND, np.array([0.5, 1, 2, 0, 7]))
    assert known.instances == 4
    assert known.counts.tolist() == [3.5, 1.5, 1]
    assert known.together.toarray().tolist() == [[0, 1.5, 1], [1.5, 0, 1], [1, 1, 0]]


def test_weights_of_one_are_the_plain_counts() -> None:
    labels = random_split(50, 5, 8, seed=2).labels
    plain, weighted = Correlations.from_label_sets(labels), Correlations.from_label_sets(labels, np.ones(50))
    assert weighted.instances == plain.instances
    assert np.array_equal(weighted.counts, plain.counts)
    assert (weighted.together != plain.together).nnz == 0


def test_the_weight_of_one_instance() -> None:
    known = Correlations.from_label_sets(BY_HAND)
    assert known.weight_of_one("sigma") == 0.25
    assert known.weight_of_one("counts") == 1
    for weighting in ("gamma", "conditional"):
        with pytest.raises(ConfigError, match="private"):
            known.weight_of_one(weighting)  # type: ignore[arg-type]


def dense_twin(labels: csr_matrix, weights: np.ndarray) -> np.ndarray:
    """Return Yᵀ diag(weights) Y without its diagonal."""
    Y = labels.toarray()
    together = Y.T @ (weights[:, None] * Y)
    np.fill_diagonal(together, 0)
    return together


ODD = {
    "empty rows": csr_matrix(np.array([[0, 0, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=np.float32)),
    "one label": csr_matrix(np.ones((3, 1), dtype=np.float32)),
    "no instance": csr_matrix((0, 4), dtype=np.float32),
    "no label set": csr_matrix((3, 4), dtype=np.float32),
    "labels without instance": csr_matrix(np.array([[0, 1, 0, 0, 1], [0, 1, 0, 0, 0]], dtype=np.float32)),
    "all of all": csr_matrix(np.ones((6, 5), dtype=np.float32)),
    "random": random_split(60, 5, 9, seed=4).labels,
}


@pytest.mark.parametrize("at_once", [1, 7, 1 << 19])
@pytest.mark.parametrize("labels", ODD.values(), ids=ODD)
def test_counts_are_those_of_the_dense_product(
    labels: csr_matrix, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedalc.labels.correlations.PAIRS_AT_ONCE", at_once)
    known = Correlations.from_label_sets(labels)
    assert np.array_equal(known.counts, labels.toarray().sum(axis=0))
    assert np.array_equal(known.together.toarray(), dense_twin(labels, np.ones(labels.shape[0])))
    assert known.counts.dtype == np.int64 and known.together.dtype == np.int32
    assert known.together.has_canonical_format and known.together.indices.dtype == np.int32
    weights = np.random.default_rng(0).random(labels.shape[0])
    weighted = Correlations.from_label_sets(labels, weights)
    np.testing.assert_allclose(weighted.counts, weights @ labels.toarray(), rtol=1e-14)
    np.testing.assert_allclose(weighted.together.toarray(), dense_twin(labels, weights), rtol=1e-14)
    assert weighted.together.dtype == np.float64


def test_whatever_the_numbers_in_Y_are_a_label_counts_once() -> None:
    wide = csr_matrix(BY_HAND, dtype=np.int64) * 3
    assert Correlations.from_label_sets(wide).together.toarray().tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]


def test_counts_that_float32_would_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 2²⁴ float32 cannot count, so the products use float64. The test lowers that limit."""
    monkeypatch.setattr("fedalc.labels.correlations._EXACT_IN_FLOAT32", 2)
    kinds: list[type] = []

    def carriers(labels: csr_matrix, rows: slice, weights: np.ndarray | None, kind: type) -> csr_matrix:
        kinds.append(kind)
        return _carriers(labels, rows, weights, kind)  # type: ignore[arg-type]

    monkeypatch.setattr("fedalc.labels.correlations._carriers", carriers)
    assert Correlations.from_label_sets(BY_HAND).together.toarray().tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]
    assert kinds == [np.float64]


def test_memory_does_not_grow_with_labels_squared() -> None:
    """100,000 labels: labels² would be 10 GB even in single bytes."""
    random = np.random.default_rng(0)
    pairs = np.unique(random.integers(0, 20_000, 60_000) * 100_000 + random.integers(0, 100_000, 60_000))
    labels = csr_matrix((np.ones(len(pairs), dtype=np.float32), (pairs // 100_000, pairs % 100_000)))
    labels.resize(20_000, 100_000)
    tracemalloc.start()
    known = Correlations.from_label_sets(labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sizes = np.diff(labels.indptr)
    assert known.together.sum() == (sizes * (sizes - 1)).sum()
    assert peak < 50 * PAIRS_AT_ONCE + 40 * 100_000


@pytest.mark.parametrize("weights", [None, np.full(50, 0.5)])
def test_tensors_and_back(weights: np.ndarray | None) -> None:
    known = Correlations.from_label_sets(random_split(50, 5, 8, seed=2).labels, weights)
    back = Correlations.restored(known.tensors(), known.instances)
    assert_same(back, known)


def test_tensors_of_before_counts_were_narrow() -> None:
    known = Correlations.from_label_sets(random_split(50, 5, 8, seed=2).labels)
    tensors = known.tensors()
    tensors["labels.together"] = tensors["labels.together"].long()
    assert_same(Correlations.restored(tensors, known.instances), known)
