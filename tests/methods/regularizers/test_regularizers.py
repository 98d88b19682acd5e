"""Each regulariser against a literal double loop, its gradient against autograd and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedalc.errors import ConfigError
from fedalc.labels.correlations import Correlations
from fedalc.methods.regularizers import (
    AllPairs,
    NearestPairs,
    Potential,
    Regularizer,
    Sum,
    Together,
    attract,
    repel,
    repel_within,
)
from fedalc.models.class_embeddings import random_rows
from tests.problems import random_split

C, D = 9, 5
KNOWN = Correlations.from_label_sets(random_split(60, 4, C, seed=5).labels)
W0 = random_rows(C, D, torch.Generator().manual_seed(1), torch.float64)
SMALL = 3 * 6 * C * 8  # bytes: a few rows at a time, so that blocks meet


def distance(W: Tensor, u: int, v: int) -> Tensor:
    return 1 - W[u] @ W[v]


def sigma(u: int, v: int) -> float:
    return float(KNOWN.counts[u] - KNOWN.together[u, v]) / KNOWN.instances


def gamma(u: int, v: int) -> float:
    return sigma(u, v) / sum(sigma(u, other) for other in range(C) if other != u)


def nearest(W: Tensor, u: int, k: int, among: range | list[int] = range(C)) -> list[int]:
    others = [v for v in among if v != u]
    return sorted(others, key=lambda v: distance(W, u, v).item())[:k]


def hinge(nu: float | Tensor, d: Tensor) -> Tensor:
    return torch.clamp(nu - d, min=0) ** 2


def all_pairs(term: Callable[[Tensor, int, int], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda W: sum((term(W, u, v) for u in range(C) for v in range(C) if v != u), start=torch.zeros(()))


def near_pairs(
    term: Callable[[Tensor, int, int], Tensor],
    k: int,
    among: range | list[int] = range(C),
    of: range | list[int] = range(C),
):
    """The neighbours are those of the initial W and are not differentiated."""
    lists = {u: nearest(W0, u, k, among) for u in of}
    return lambda W: sum((term(W, u, v) for u in of for v in lists[u]), start=torch.zeros(()))


def adaptive(k: int):
    margin = {u: distance(W0, u, nearest(W0, u, k + 1)[-1]).item() for u in range(C)}
    return near_pairs(lambda W, u, v: sigma(u, v) * hinge(margin[u], distance(W, u, v)), k)


CANDIDATES = [0, 2, 3, 6, 8]
CASES: dict[str, tuple[Regularizer, Callable[[Tensor], Tensor]]] = {
    "spreadout": (
        AllPairs(repel_within(0.8), budget=SMALL),
        all_pairs(lambda W, u, v: hinge(0.8, distance(W, u, v))),
    ),
    "mined spreadout": (
        NearestPairs(3, repel, budget=SMALL),
        near_pairs(lambda W, u, v: -(distance(W, u, v) ** 2), 3),
    ),
    "mined spreadout within a subset": (
        NearestPairs(3, repel, candidates=torch.tensor(CANDIDATES), budget=SMALL),
        near_pairs(lambda W, u, v: -(distance(W, u, v) ** 2), 3, CANDIDATES),
    ),
    "mined spreadout of some rows": (
        NearestPairs(3, repel, rows=torch.tensor(CANDIDATES), budget=SMALL),
        near_pairs(lambda W, u, v: -(distance(W, u, v) ** 2), 3, of=CANDIDATES),
    ),
    "mined correlation of some rows, within a subset": (
        NearestPairs(
            2,
            repel_within(1.3),
            KNOWN,
            candidates=torch.tensor(CANDIDATES),
            rows=torch.tensor([1, 2, 8]),
            budget=SMALL,
        ),
        near_pairs(lambda W, u, v: sigma(u, v) * hinge(1.3, distance(W, u, v)), 2, CANDIDATES, of=[1, 2, 8]),
    ),
    "correlation": (
        AllPairs(repel_within(1.2), KNOWN, "sigma", budget=SMALL),
        all_pairs(lambda W, u, v: sigma(u, v) * hinge(1.2, distance(W, u, v))),
    ),
    "normalised correlation": (
        AllPairs(repel_within(1.2), KNOWN, "gamma", budget=SMALL),
        all_pairs(lambda W, u, v: gamma(u, v) * hinge(1.2, distance(W, u, v))),
    ),
    "mined correlation": (
        NearestPairs(4, repel_within(1.0), KNOWN, "sigma", budget=SMALL),
        near_pairs(lambda W, u, v: sigma(u, v) * hinge(1.0, distance(W, u, v)), 4),
    ),
    "mined correlation with counts": (
        NearestPairs(4, repel_within(1.0), KNOWN, "counts", budget=SMALL),
        near_pairs(lambda W, u, v: KNOWN.instances * sigma(u, v) * hinge(1.0, distance(W, u, v)), 4),
    ),
    "mined correlation, adaptive margin": (NearestPairs(3, None, KNOWN, "sigma", budget=SMALL), adaptive(3)),
    "fixed": (
        Sum(((0.7, Together(attract, KNOWN, budget=SMALL)), (1.3, AllPairs(repel_within(1.0), KNOWN, budget=SMALL)))),
        all_pairs(
            lambda W, u, v: (
                0.7 * float(KNOWN.together[u, v]) / KNOWN.instances * distance(W, u, v) ** 2
                + 1.3 * sigma(u, v) * hinge(1.0, distance(W, u, v))
            )
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_the_literal_twin(name: str) -> None:
    ours, twin = CASES[name]
    value, gradient = ours.value_and_gradient(W0)
    gradient = gradient.to_dense()
    W = W0.clone().requires_grad_()
    expected = twin(W)
    expected.backward()
    assert abs(expected.item()) > 0.01, "a case in which nothing is active tests nothing"
    assert value == pytest.approx(expected.item(), rel=1e-12)
    assert W.grad is not None
    assert torch.allclose(gradient, W.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradient_by_finite_differences(name: str) -> None:
    ours, _ = CASES[name]
    gradient = ours.value_and_gradient(W0)[1].to_dense()
    if name == "mined correlation, adaptive margin":
        pytest.skip("its margin is a constant of the step, which a finite difference would move; the twin covers it")
    step = 1e-6
    for u, d in ((0, 0), (3, 2), (8, 4)):
        up, down = W0.clone(), W0.clone()
        up[u, d] += step
        down[u, d] -= step
        slope = (ours.value_and_gradient(up)[0] - ours.value_and_gradient(down)[0]) / (2 * step)
        assert gradient[u, d].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_from_instances_as_the_paper_writes_it() -> None:
    """The paper sums over instances and over the positive and negative labels of each. n and c give the same sum."""
    labels = random_split(60, 4, C, seed=5).labels
    sets = [set(row.indices) for row in labels if row.nnz]
    total = sum(hinge(1.1, distance(W0, y, z)).item() for s in sets for y in s for z in range(C) if z not in s) / len(
        sets
    )
    value, _ = AllPairs(repel_within(1.1), KNOWN, "sigma").value_and_gradient(W0)
    assert value == pytest.approx(total, rel=1e-12)


def test_two_orthogonal_rows_by_hand() -> None:
    """d = 1: spreadout with ν = 1.5 costs (0.5)² for each order; the gradient of w_0 is 2·2·0.5·w_1."""
    W = torch.eye(2, dtype=torch.float64)
    value, gradient = AllPairs(repel_within(1.5)).value_and_gradient(W)
    assert value == pytest.approx(0.5)
    assert gradient.tolist() == [[0, 2], [2, 0]]


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5])
def test_the_adaptive_margin_with_few_classes(classes: int) -> None:
    """Without a (K+1)-th class the farthest class sets the margin, as with K = number of others - 1."""
    known = Correlations.from_label_sets(random_split(30, 4, classes, seed=classes).labels)
    W = random_rows(classes, D, torch.Generator().manual_seed(2), torch.float64)
    value, gradient = NearestPairs(7, None, known).value_and_gradient(W)
    assert torch.isfinite(gradient).all()
    assert value == pytest.approx(NearestPairs(max(1, classes - 2), None, known).value_and_gradient(W)[0])
    few = NearestPairs(7, None, KNOWN, candidates=torch.tensor([1, 5])).value_and_gradient(W0)
    assert torch.isfinite(few[1]).all()


def test_more_neighbours_than_classes_is_all_of_them() -> None:
    few, _ = NearestPairs(C - 1, repel).value_and_gradient(W0)
    many, _ = NearestPairs(100, repel).value_and_gradient(W0)
    assert few == pytest.approx(many)
    only_self = NearestPairs(3, repel, candidates=torch.tensor([4]))
    assert only_self.value_and_gradient(W0)[0] == pytest.approx(
        -sum(distance(W0, u, 4).item() ** 2 for u in range(C) if u != 4)
    )


@pytest.mark.parametrize("potential", [repel, None])
def test_more_neighbours_than_an_index_has_classes(potential: Potential | None) -> None:
    pytest.importorskip("faiss")
    W = random_rows(5, D, torch.Generator().manual_seed(2), torch.float64)
    known = Correlations.from_label_sets(random_split(30, 4, 5, seed=5).labels)
    for rows in (None, torch.tensor([1, 3])):
        exact = NearestPairs(7, potential, known, rows=rows, search="exact").value_and_gradient(W)
        value, gradient = NearestPairs(7, potential, known, rows=rows, search="index").value_and_gradient(W)
        assert value == pytest.approx(exact[0], rel=1e-5)
        assert torch.allclose(gradient.to_dense(), exact[1].to_dense(), atol=1e-5)


@pytest.mark.parametrize("form", [AllPairs(repel_within(1.2), KNOWN, budget=SMALL), NearestPairs(3, None, KNOWN)])
def test_slopes_are_those_of_a_dense_matrix(form: AllPairs | NearestPairs) -> None:
    """A_uv = φ'(s_uv)/N at the selected pairs, as a dense matrix, with its products A W and A Aᵀ."""
    dense = torch.zeros(C, C, dtype=torch.float64)
    for u in range(C):
        if isinstance(form, AllPairs):
            taken, margin = [v for v in range(C) if v != u], 1.2
        else:
            taken, margin = nearest(W0, u, 3), distance(W0, u, nearest(W0, u, 4)[-1]).item()
        for v in taken:
            dense[u, v] = 2 * torch.clamp(margin - distance(W0, u, v), min=0) / KNOWN.instances
    u, v = torch.cartesian_prod(torch.arange(C), torch.arange(C)).T
    slopes = form.slopes(W0, u, v)
    assert torch.allclose(slopes.pull, dense @ W0)
    assert torch.allclose(slopes.apart, dense[u, v])
    assert torch.allclose(slopes.shared, (dense @ dense.T)[u, v])
    assert not slopes.together.any()


def test_slopes_are_refused_where_an_instance_has_no_part_of_its_own() -> None:
    u = torch.arange(3)
    apart = AllPairs(repel_within(1.0), KNOWN)
    for refused, why in (
        (AllPairs(repel_within(1.0)), "does not use label sets"),
        (NearestPairs(3, repel), "does not use label sets"),
        (AllPairs(repel_within(1.0), KNOWN, "gamma"), "private"),
        (NearestPairs(3, None, KNOWN, "conditional"), "private"),
        (Sum(((1.0, apart), (1.0, apart))), "not for several"),
    ):
        with pytest.raises(ConfigError, match=why):
            refused.slopes(W0, u, u)
    assert Sum(((1.0, apart), (0.0, apart))).slopes(W0, u, u).apart.shape == (3,)


def test_nothing_in_a_sum_is_nothing() -> None:
    u = torch.arange(3)
    assert not Sum(()).slopes(W0, u, u).pull.any()
    assert Sum(((0.0, Together(attract, KNOWN)),)).value_and_gradient(W0)[0] == 0
