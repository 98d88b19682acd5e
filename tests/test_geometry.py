from __future__ import annotations

import numpy as np
import pytest
import torch

from fedalc.geometry import collapse, nearest_classes, orthogonal_rows, random_rows, row_blocks, unit_rows


def test_unit_rows_keeps_zero_rows() -> None:
    assert unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [0, 0],
    ]


def test_a_row_without_direction_gets_no_gradient() -> None:
    W = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    unit_rows(W)[:, 0].sum().backward()
    assert W.grad is not None
    assert W.grad.tolist() == [[pytest.approx(16 / 125), pytest.approx(-12 / 125)], [0, 0]]


def test_orthogonal_rows_are_orthogonal_within_each_run_of_dim() -> None:
    W = orthogonal_rows(7, 3, torch.Generator().manual_seed(0), torch.float64)
    for start in (0, 3, 6):
        part = W[start : start + 3]
        assert torch.allclose(part @ part.T, torch.eye(len(part), dtype=torch.float64), atol=1e-12)


def test_nearest_classes_against_sorting() -> None:
    W = random_rows(30, 4, torch.Generator().manual_seed(1), torch.float64)
    candidates = torch.tensor([1, 5, 6, 7, 20, 29])
    for among, chosen in ((None, range(30)), (candidates, candidates.tolist())):
        value, index = nearest_classes(W, slice(4, 8), 3, among)
        for row, u in enumerate(range(4, 8)):
            order = sorted((v for v in chosen if v != u), key=lambda v: -(W[u] @ W[v]).item())[:3]
            assert index[row].tolist() == order
            assert value[row].tolist() == pytest.approx([(W[u] @ W[v]).item() for v in order])


def test_row_blocks_cover_all_rows_within_the_budget() -> None:
    W = torch.zeros(10, 2)
    blocks = list(row_blocks(W, budget=3 * 10 * 4))
    assert [b.stop - b.start for b in blocks] == [3, 3, 3, 1]
    assert len(list(row_blocks(W, budget=1))) == 10
    assert [b.stop - b.start for b in row_blocks(W, budget=2 * 100 * 4, per_row=100)] == [2] * 5


def test_collapse_of_one_point_and_of_a_basis() -> None:
    point = collapse(torch.ones(6, 4))
    assert point["mean_cosine"] == pytest.approx(1) and point["max_cosine"] == pytest.approx(1)
    assert point["effective_rank"] == pytest.approx(1, abs=1e-5)
    basis = collapse(torch.eye(5))
    assert basis["mean_cosine"] == pytest.approx(0) and basis["effective_rank"] == pytest.approx(5)


def test_collapse_against_the_dense_definition() -> None:
    W = random_rows(40, 6, torch.Generator().manual_seed(3), torch.float64)
    S = (W @ W.T).numpy()
    off = S[~np.eye(40, dtype=bool)]
    found = collapse(W, budget=7 * 40 * 8)
    assert found["mean_cosine"] == pytest.approx(off.mean(), abs=1e-12)
    assert found["max_cosine"] == pytest.approx(off.max(), abs=1e-12)
    singular = np.linalg.svd(W.numpy(), compute_uv=False)
    share = singular / singular.sum()
    assert found["effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-5)
