"""Nearest classes equal those found by sorting, for every search; and the largest entries of long rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedalc
from fedalc.config import neighbour_search
from fedalc.config.resolve import experiment
from fedalc.core import nearest as neighbours
from fedalc.core.nearest import largest, nearest
from fedalc.errors import ConfigError
from fedalc.models.class_embeddings import collapse, random_rows, unit_rows
from tests.problems import small_dataset


def rows_of(count: int, dim: int, seed: int = 1) -> Tensor:
    return random_rows(count, dim, torch.Generator().manual_seed(seed), torch.float64)


def in_groups(groups: int, each: int, dim: int) -> Tensor:
    """Return rows that have neighbours: each lies near the centre of its group."""
    near = rows_of(groups, dim).repeat_interleave(each, 0) + 0.05 * rows_of(groups * each, dim, seed=2)
    return unit_rows(near)[torch.randperm(groups * each, generator=torch.Generator().manual_seed(3))]


@pytest.mark.parametrize("asked", [None, torch.tensor([4, 5, 6, 7, 28])])
@pytest.mark.parametrize("candidates", [None, torch.tensor([1, 5, 6, 7, 20, 29])])
@pytest.mark.parametrize("budget", [1, 1000, 10**9])
def test_nearest_against_sorting(asked: Tensor | None, candidates: Tensor | None, budget: int) -> None:
    W = rows_of(30, 4)
    chosen = range(30) if candidates is None else candidates.tolist()
    found = list(nearest(W, 3, asked, candidates, budget=budget))
    assert torch.cat([rows for rows, _, _ in found]).tolist() == (list(range(30)) if asked is None else asked.tolist())
    for rows, value, index in found:
        for place, u in enumerate(rows.tolist()):
            order = sorted((v for v in chosen if v != u), key=lambda v: -(W[u] @ W[v]).item())[:3]
            assert index[place].tolist() == order
            assert value[place].tolist() == pytest.approx([(W[u] @ W[v]).item() for v in order])


@pytest.mark.parametrize("length", [255, 256, 700, 767, 768, 769, 5000])
def test_largest_of_long_rows(length: int) -> None:
    scores = torch.randn(20, length, generator=torch.Generator().manual_seed(length))
    scores[:, length // 3] = -torch.inf
    scores[3, :] = -torch.inf
    scores[3, length - 2] = 0.5
    value, index = largest(scores, 3)
    assert torch.equal(value, scores.topk(3, dim=1).values)
    assert torch.equal(scores.gather(1, index), value)
    assert index[3, 0] == length - 2
    assert all(len(set(row)) == 3 for row in index.tolist())


def test_an_index_finds_what_is_near() -> None:
    pytest.importorskip("faiss")
    W = in_groups(100, 30, 16)
    recall = []
    ((_, _, true),) = nearest(W, 10, search="exact")
    for rows, value, index in nearest(W, 10, search="index", budget=200_000):
        assert not (index == rows.unsqueeze(1)).any(), "a class is not its own neighbour"
        assert torch.allclose(value, (W[rows].unsqueeze(1) * W[index]).sum(2), atol=1e-6)
        assert (value.diff(dim=1) <= 0).all()
        recall += [len(set(a) & set(b)) / 10 for a, b in zip(index.tolist(), true[rows].tolist(), strict=True)]
    assert len(recall) == len(W)
    assert sum(recall) / len(recall) > 0.9


def test_an_index_of_few_classes_lists_all_and_then_nobody() -> None:
    pytest.importorskip("faiss")
    W = rows_of(5, 4)
    ((rows, value, index),) = nearest(W, 7, search="index")
    assert torch.isinf(value[:, 4:]).all() and torch.isfinite(value[:, :4]).all()
    assert torch.equal(index[:, 4:], rows.unsqueeze(1).expand(-1, 3))


def test_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact up to the limit, by an index above; a sample of classes or a few rows stay exact."""
    searched = []
    monkeypatch.setattr(neighbours, "_by_index", lambda *asked: searched.append("index") or [])
    monkeypatch.setattr(neighbours, "AFFORDABLE", 2 * 20 * 20 * 4)
    pytest.importorskip("faiss")
    assert list(nearest(rows_of(20, 4), 3)) and not searched
    list(nearest(rows_of(21, 4), 3))
    assert searched == ["index"]
    assert list(nearest(rows_of(21, 4), 3, search="exact"))
    assert list(nearest(rows_of(21, 4), 3, torch.arange(5)))
    assert list(nearest(rows_of(21, 4), 3, candidates=torch.arange(9)))
    assert searched == ["index"]


def test_without_an_index_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(neighbours, "AFFORDABLE", 100)
    with pytest.raises(ConfigError, match=r"regularizer.search.*20 classes.*fedalc\[scale\].*participants"):
        list(nearest(rows_of(20, 4), 3))
    with pytest.raises(ConfigError, match=r"regularizer.search: needs faiss: pip install"):
        list(nearest(rows_of(20, 4), 3, search="index"))


@pytest.mark.parametrize(
    ("changes", "rows", "section"),
    [
        ({"method": "fedaws"}, 1000, "regularizer"),
        ({"method": "fedalc", "regularizer": {"candidates": 5000}}, 1000, "regularizer"),
        (
            {"method": "fedalc", "regularizer": {"rows": "participants"}, "server": {"participation": 0.02}},
            20,
            "regularizer",
        ),
        ({"method": "fedalc-fixed", "fixed": {"form": "mined"}}, 1000, "fixed"),
        ({"method": "fedalc", "regularizer": {"candidates": 500}}, None, ""),
        ({"method": "fedalc", "regularizer": {"form": "full", "margin": 1.0, "search": "exact"}}, None, ""),
        ({"method": "fedalc-fixed", "fixed": {"search": "exact"}}, None, ""),
        ({"method": "fedavg"}, None, ""),
    ],
    ids=str,
)
def test_what_is_searched_is_known_before_it_begins(
    changes: dict[str, Any], rows: int | None, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(changes)
    found = neighbour_search.searched(settings, 1000)
    assert found == (None if rows is None else (rows, "auto", section))
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(neighbours, "AFFORDABLE", 100)
    if rows is None:
        neighbour_search.check_affordable(settings, 1000)
    else:
        with pytest.raises(ConfigError, match=rf"^{section}.search: .*{section}.search = \"exact\""):
            neighbour_search.check_affordable(settings, 1000)


@pytest.mark.parametrize(("method", "section"), [("fedalc", "regularizer"), ("fedalc-fixed", "fixed")])
def test_all_pairs_of_very_many_classes_are_refused(method: str, section: str) -> None:
    """2·670,091²·512 operations."""
    asked = {"method": method, "regularizer": {"margin": 1.0}}
    settings = experiment(asked, overrides=[f"{section}.form=full"])
    with pytest.raises(ConfigError) as refused:
        neighbour_search.check_affordable(settings, 670_091)
    assert str(refused.value) == (
        f"{section}.form: all pairs of 670,091 classes take 4.6e+14 operations in every step, more than 4e+12; "
        f'use mined, or {section}.search = "exact" and wait'
    )
    neighbour_search.check_affordable(settings, 62_000)
    exact = experiment(asked, overrides=[f"{section}.form=full", f"{section}.search=exact"])
    neighbour_search.check_affordable(exact, 670_091)
    other = experiment({"method": "fedavg"}, overrides=[f"{section}.form=full"])
    neighbour_search.check_affordable(other, 670_091)


def test_a_search_that_cannot_be_done_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(neighbours, "AFFORDABLE", 100)
    with pytest.raises(ConfigError, match=r"regularizer\.search"):
        fedalc.train(data=small_dataset(), method="fedaws", rounds=2, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_largest_cosine_of_very_many_rows_is_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    W = rows_of(40, 6)
    W[8] = W[3]
    assert collapse(W)["max_cosine"] == pytest.approx(1)
    monkeypatch.setattr("fedalc.models.class_embeddings.LOOKED_AT", 2 * 40 * 40 * 6 // 4)  # every fourth row
    assert collapse(W)["max_cosine"] == pytest.approx(1)
    W[8] = W[9]
    W[2] = W[3]
    found = collapse(W)["max_cosine"]
    assert found == pytest.approx(1)  # row 8 is looked at, with 9
    W[8] = -W[9]
    assert collapse(W)["max_cosine"] < 0.99  # rows 2 and 3 are not


@pytest.mark.parametrize("budget", [1, 3000, 10**9])
def test_largest_products_do_not_depend_on_the_budget(budget: int) -> None:
    A, W = rows_of(9, 6, seed=4), rows_of(800, 6, seed=5)
    hidden = torch.tensor([3, 799, 400])

    def hide(scores: Tensor, columns: slice) -> None:
        scores[:, [int(h) - columns.start for h in hidden if columns.start <= h < columns.stop]] = -torch.inf

    expected = A @ W.T
    expected[:, hidden] = -torch.inf
    value, index = neighbours.largest_products(A, W, 4, hide, budget)
    assert torch.allclose(value, expected.topk(4, dim=1).values, rtol=1e-14)
    assert torch.equal(index, expected.topk(4, dim=1).indices)
