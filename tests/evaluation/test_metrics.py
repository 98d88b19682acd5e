"""Metrics against scikit-learn, against their definitions, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics import average_precision_score, f1_score, ndcg_score, recall_score

from fedalc.evaluation.metrics import Propensity, Ranked, all_metrics, ranking_metrics
from fedalc.evaluation.score_blocks import mean_average_precision, top_labels

RANDOM = np.random.default_rng(8)
SCORES = RANDOM.normal(size=(40, 12))
TRUTH = (RANDOM.random((40, 12)) < 0.2).astype(np.float32)
TRUTH[3] = 0  # an instance without labels
TRUTH[:, 5] = 0  # a label no test instance has
TOP = np.argsort(-SCORES, axis=1)[:, :5]


def block(rows: slice) -> torch.Tensor:
    return torch.from_numpy(SCORES[rows])


def columns(labels: slice) -> torch.Tensor:
    return torch.from_numpy(SCORES[:, labels])


def test_by_hand() -> None:
    """Ranked 2, 0, 1 with true labels 0 and 1: a miss, then two hits."""
    found = ranking_metrics(np.array([[2, 0, 1]]), csr_matrix([[1, 1, 0]]), np.array([1.0, 3.0, 1.0]))
    assert found["P@1"] == 0
    assert found["P@3"] == pytest.approx(200 / 3)
    assert found["P@5"] == pytest.approx(200 / 5)  # divided by k, though there are only three labels
    assert found["nDCG@3"] == pytest.approx(100 * (1 / np.log2(3) + 1 / 2) / (1 + 1 / np.log2(3)))
    assert found["PSP@1"] == 0  # possible: 3
    assert found["PSP@3"] == pytest.approx(100 * (1 + 3) / (3 + 1))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_ndcg_equals_scikit_learn(k: int) -> None:
    ours = ranking_metrics(TOP, csr_matrix(TRUTH))[f"nDCG@{k}"]
    assert ours == pytest.approx(100 * ndcg_score(TRUTH, SCORES, k=k), rel=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_precision_and_psp_by_their_definitions(k: int) -> None:
    weight = Propensity().inverse(TRUTH.sum(0), 40)
    found = ranking_metrics(TOP, csr_matrix(TRUTH), weight)
    precision = np.mean([sum(TRUTH[i, label] for label in TOP[i, :k]) / k for i in range(40)])
    assert found[f"P@{k}"] == pytest.approx(100 * precision)
    got = sum(TRUTH[i, label] * weight[label] for i in range(40) for label in TOP[i, :k])
    best = sum(sum(sorted((weight[label] for label in np.flatnonzero(TRUTH[i])), reverse=True)[:k]) for i in range(40))
    assert found[f"PSP@{k}"] == pytest.approx(100 * got / best)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_recall_equals_scikit_learn(k: int) -> None:
    """The mean over instances; one without labels counts as 0."""
    given = np.zeros_like(TRUTH)
    np.put_along_axis(given, TOP[:, :k], 1, axis=1)
    expected = recall_score(TRUTH, given, average="samples", zero_division=0)
    assert ranking_metrics(TOP, csr_matrix(TRUTH))[f"R@{k}"] == pytest.approx(100 * expected, rel=1e-12)


def test_f1_of_label_sets_equals_scikit_learn() -> None:
    """Macro-F1 is the mean over the labels that occur. Without sets there is no F1."""
    given = (SCORES > 0.8).astype(np.float32)
    found = all_metrics(Ranked(TOP, csr_matrix(TRUTH), sets=csr_matrix(given)))
    occurring = np.flatnonzero(TRUTH.any(0))
    macro = f1_score(TRUTH, given, labels=occurring, average="macro", zero_division=0)
    assert given[:, 5].any() and 5 not in occurring
    assert found["macro-F1"] == pytest.approx(100 * macro, rel=1e-12)
    assert found["micro-F1"] == pytest.approx(100 * f1_score(TRUTH, given, average="micro"), rel=1e-12)
    assert not {"micro-F1", "macro-F1"} & set(ranking_metrics(TOP, csr_matrix(TRUTH)))
    nothing = csr_matrix(TRUTH.shape, dtype=np.float32)
    none = all_metrics(Ranked(TOP, csr_matrix(TRUTH), sets=nothing))
    assert none["micro-F1"] == none["macro-F1"] == 0


def test_propensity_by_hand() -> None:
    """A = 1, B = 1, N = e²: C = (2 - 1)·2 = 2; a label seen 3 times: 1/p = 1 + 2/4."""
    assert Propensity(A=1, B=1).inverse(np.array([3]), np.exp(2))[0] == pytest.approx(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [1, 500, 10**9])
def test_map_equals_scikit_learn(budget: int) -> None:
    present = TRUTH.any(axis=0)
    expected = average_precision_score(TRUTH[:, present], SCORES[:, present], average="macro")
    assert mean_average_precision(columns, csr_matrix(TRUTH), budget) == pytest.approx(100 * expected, rel=1e-12)


def test_map_with_equal_scores_equals_scikit_learn() -> None:
    coarse = np.round(SCORES)
    present = TRUTH.any(axis=0)
    expected = average_precision_score(TRUTH[:, present], coarse[:, present], average="macro")
    ours = mean_average_precision(lambda labels: torch.from_numpy(coarse[:, labels]), csr_matrix(TRUTH))
    assert ours == pytest.approx(100 * expected, rel=1e-12)


def test_top_labels_do_not_depend_on_the_budget() -> None:
    for budget in (1, 200, 10**9):
        index, value = top_labels(block, 40, 12, 5, budget)
        assert np.array_equal(index.numpy(), TOP)
        assert np.allclose(value.numpy(), np.take_along_axis(SCORES, TOP, axis=1))


def test_fewer_labels_than_asked_for() -> None:
    index, _ = top_labels(lambda rows: torch.tensor([[0.2, 0.9]])[rows], 1, 2, 5)
    assert index.tolist() == [[1, 0]]
    assert ranking_metrics(index.numpy(), csr_matrix([[1, 1]]))["nDCG@5"] == pytest.approx(100)
