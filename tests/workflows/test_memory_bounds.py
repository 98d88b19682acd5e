"""Memory of steps, measured by the tensors they create, stays within the bounds of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fedalc
from fedalc.core.progress_events import watching
from fedalc.evaluation.evaluate import measure
from fedalc.labels.correlations import Correlations
from fedalc.methods.base import descend
from fedalc.methods.regularizers import NearestPairs, Sum, Together, attract, repel
from fedalc.models import scoring
from fedalc.models.class_embeddings import collapse, random_rows
from fedalc.models.scoring import Scorer
from tests.problems import random_split, small_dataset

C, D = 60, 16
W0 = random_rows(C, D, torch.Generator().manual_seed(1), torch.float64)
SIZE = W0.nbytes
KNOWN = Correlations.from_label_sets(random_split(200, 4, C, seed=5).labels)


class Made(TorchDispatchMode):
    """Sums the bytes of all tensors created meanwhile, without views. Keeps them, so that no address is reused."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._sizes: dict[int, int] = {}
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and not tensor.is_sparse:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._known:
                    self._sizes[storage.data_ptr()] = storage.nbytes()
                    self._kept.append(tensor)
        return result

    @property
    def sizes(self) -> list[int]:
        return sorted(self._sizes.values(), reverse=True)


def test_pairs_together_share_the_budget() -> None:
    budget = 4 * SIZE
    with Made(W0) as made:
        Together(attract, KNOWN, budget).value_and_gradient(W0)
    assert KNOWN.together.nnz * D * 8 > budget, "more than one block"
    assert SIZE // 2 < made.sizes[0] <= budget // 4


def test_the_nearest_pairs_make_one_gradient() -> None:
    with Made(W0) as made:
        NearestPairs(3, repel, KNOWN, budget=SIZE // 2).value_and_gradient(W0)
    assert made.sizes[0] == SIZE and made.sizes[1] <= SIZE // 2


def test_the_slopes_of_nearest_pairs_take_no_row_of_each() -> None:
    budget, first = 2 * SIZE, torch.arange(5)
    with Made(W0, first) as made:
        NearestPairs(10, repel, KNOWN, budget=budget).slopes(W0, first, first)
    assert made.sizes[0] <= budget  # of all pairs: ten times W


def test_a_sum_scales_no_gradient_apart() -> None:
    terms = tuple((0.5, NearestPairs(3, repel, KNOWN, budget=SIZE // 2)) for _ in range(2))
    with Made(W0) as made:
        Sum(terms).value_and_gradient(W0)
    assert made.sizes.count(SIZE) == 3 and made.sizes[3] <= SIZE // 2  # the sum, and each term's in its turn


@pytest.mark.parametrize("labels", [None, torch.arange(0, C, 2), torch.tensor([3, 9])])
def test_collapse_copies_no_rows(labels: Tensor | None) -> None:
    W = W0 * torch.linspace(0.2, 3, C, dtype=torch.float64).unsqueeze(1)
    W[9] = 2 * W[3]
    budget = SIZE // 3
    with Made(W) as made:
        found = collapse(W, budget, labels)
    assert made.sizes[0] <= budget
    chosen = W if labels is None else W[labels]
    cosine = torch.corrcoef(torch.cat([chosen, -chosen], dim=1))  # of a mean of 0: the plain cosine
    cosine.fill_diagonal_(-1)
    assert found["max_cosine"] == pytest.approx(cosine.max().item(), abs=1e-12)
    assert found == pytest.approx(collapse(chosen), abs=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_descent_moves_some_rows_at_a_time(sparse: bool) -> None:
    slope, rows = W0.flip(0), torch.arange(0, C, 2 if sparse else 1)
    gradient = torch.sparse_coo_tensor(
        rows.unsqueeze(0), slope[rows], W0.shape, is_coalesced=True, check_invariants=True
    )

    class Known:
        def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
            return 0.0, gradient if sparse else slope

    W, expected = W0.clone(), W0.clone()
    expected[rows] = torch.nn.functional.normalize(W0[rows] - 0.1 * slope[rows])
    with Made(W, slope, gradient.values(), gradient.indices()) as made:
        descend(W, Known(), 0.1, budget=SIZE // 5)
    assert torch.allclose(W, expected, atol=1e-14)
    assert made.sizes[0] <= SIZE // 20


def test_embeddings_are_kept_up_to_a_quarter_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "AT_ONCE", 8)
    data = small_dataset()
    keys = {"rounds": 1, "dtype": "float64", "encoder": {"name": "linear", "dim": 8}}
    model = fedalc.train(data=data, **keys).model.model
    features, held = data.test.features, np.ones(len(model.W), dtype=bool)
    size = features.shape[0] * 8 * 8
    expected = Scorer(model, features, held).top(3)
    ranked: list[int] = []
    for budget, kept in ((4 * size, True), (4 * size - 1, False)):
        scorer = Scorer(model, features, held, budget)
        ranked.clear()
        with watching(lambda what, done, _: ranked.append(done) if "ranked" in what else None):
            found = scorer.top(3)
        assert ranked == [0, 8, 16, 24, 30]
        assert torch.equal(found[0], expected[0]) and torch.allclose(found[1], expected[1], rtol=1e-12)
        assert ("encoded" in vars(scorer)) is kept


def test_map_keeps_to_the_budget_it_is_given() -> None:
    asked: list[slice] = []

    class Scores:
        def of_labels(self, labels: slice) -> Tensor:
            asked.append(labels)
            return torch.eye(4)[:, labels]

        def top(self, k: int) -> tuple[Tensor, Tensor]:
            return torch.arange(4).unsqueeze(1), torch.ones(4, 1)

    measure(Scores(), csr_matrix(np.eye(4)), with_map=True, budget=2 * 40 * 4)
    assert asked == [slice(0, 2), slice(2, 4)]
