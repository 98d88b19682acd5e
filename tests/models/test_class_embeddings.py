from __future__ import annotations

import numpy as np
import pytest
import torch

from fedalc.models.class_embeddings import (
    are_axes,
    collapse,
    frequency_rows,
    orthogonal_rows,
    random_rows,
    unit_rows,
)


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


def by_frequency(counts: list[float], dim: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return frequency_rows(torch.tensor(counts, dtype=torch.float64), dim, generator, torch.float64)


def labels_alone(W: torch.Tensor) -> list[int]:
    """Return the labels that are orthogonal to all others."""
    cosine = (W @ W.T).abs()
    return (cosine.sum(1) - cosine.diagonal() < 1e-12).nonzero().flatten().tolist()


def test_every_label_has_an_axis_where_there_are_enough() -> None:
    for counts in ([3.0, 1.0, 0.0, 7.0], [5.0, 5.0]):
        W = by_frequency(counts, 4)
        assert torch.equal(W @ W.T, torch.eye(len(counts), dtype=torch.float64))


def test_frequent_labels_have_an_axis_of_their_own() -> None:
    random = np.random.default_rng(2)
    counts = (1000 / np.arange(1, 61)).round()[random.permutation(60)]
    W = by_frequency(counts.tolist(), 24)
    assert torch.allclose(W.norm(dim=1), torch.ones(60, dtype=torch.float64))
    alone = labels_alone(W)
    rarest = counts[alone].min()
    assert 1 < len(alone) < 24 and (counts[np.setdiff1d(np.arange(60), alone)] <= rarest).all()
    others = np.setdiff1d(np.argsort(-counts, kind="stable"), alone, assume_unique=True)
    left = 24 - len(alone)  # axes, in whose number the others are orthogonal in turn, commonest first
    for start in range(0, len(others), left):
        part = W[others[start : start + left]]
        assert torch.allclose(part @ part.T, torch.eye(len(part), dtype=torch.float64), atol=1e-12)
    assert not torch.allclose(W, by_frequency(counts.tolist(), 24, seed=1))


@pytest.mark.parametrize(
    ("counts", "dim", "alone"),
    [
        # 9·4 > 15; 3·3 > 6; 1·2 <= 3: two have their own.
        ([1, 9, 1, 3, 1], 4, [1, 3]),
        # 2·2 <= 6: none.
        ([2, 2, 2], 2, []),
        # 2·2 is no more than 4: it is not too common yet.
        ([2, 1, 1], 2, []),
        # 5·3 > 8; 1·2 <= 3.
        ([1, 1, 5, 1], 3, [2]),
        # 100·2 > 102; 1·1 <= 2: the last axis is always shared.
        ([100, 1, 1], 2, [0]),
    ],
)
def test_how_many_labels_have_an_axis_by_hand(counts: list[float], dim: int, alone: list[int]) -> None:
    W = by_frequency(counts, dim)
    assert [u for u in range(len(counts)) if W[u].abs().max() == 1 and (W[:, W[u].abs().argmax()] != 0).sum() == 1] == (
        alone
    )


def test_an_eighth_of_the_axes_is_left_to_the_rare() -> None:
    counts = [4.0**-place for place in range(40)]  # steep enough for the condition to hold to the end
    W = by_frequency(counts, 16)
    assert torch.equal(W[:14], torch.eye(16, dtype=torch.float64)[:14])
    assert (W[14:, :14] == 0).all()


def test_labels_nobody_holds_do_not_disturb() -> None:
    W = by_frequency([0.0, 0.0, 0.0, 6.0, 3.0], 3)
    assert torch.allclose(W.norm(dim=1), torch.ones(5, dtype=torch.float64))
    assert abs(W[3] @ W[4]) < 1e-12
    # Noised counts are no whole numbers: what is left of their sum may round to less than the last of them.
    W = by_frequency([75.44125186, 0.31197751, 0.70584148, 0.0, 0.0], 3)
    assert torch.allclose(W.norm(dim=1), torch.ones(5, dtype=torch.float64))


def test_collapse_of_one_point_and_of_a_basis() -> None:
    point = collapse(torch.ones(6, 4))
    assert point["mean_cosine"] == pytest.approx(1) and point["max_cosine"] == pytest.approx(1)
    assert point["effective_rank"] == pytest.approx(1, abs=1e-5)
    basis = collapse(torch.eye(5))
    assert basis["mean_cosine"] == pytest.approx(0) and basis["effective_rank"] == pytest.approx(5)


def test_rows_on_axes_need_no_products() -> None:
    """The short way gives what the long one does, and two rows on one axis do not take it."""
    axes = torch.eye(7)[[4, 0, 2]]
    turned = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(1))).Q
    assert are_axes(axes) and not are_axes(axes @ turned)
    assert collapse(axes) == pytest.approx(collapse(axes @ turned), abs=1e-5)
    twice = torch.eye(7)[[4, 4, 2]]
    assert not are_axes(twice) and collapse(twice)["max_cosine"] == pytest.approx(1)
    assert not are_axes(torch.cat([axes, torch.zeros(1, 7)]))


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
