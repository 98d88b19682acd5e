"""A metric registered from outside: computed, used for selection, shown, and refused if it is invalid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import fedalc
from fedalc.core.registry import METRICS
from fedalc.errors import ConfigError, FedalcError
from fedalc.evaluation.metrics import find_metric, ranking_metrics, register_metric
from fedalc.report.tables import markdown_table
from fedalc.runs import history
from tests.problems import small_dataset

DATA = small_dataset()
KEYS = {"rounds": 4, "encoder": {"name": "linear", "dim": 8}, "client": {"learning_rate": 0.5}}


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    before = dict(METRICS._registered)
    yield
    METRICS._registered.clear()
    METRICS._registered.update(before)


def precision(top: np.ndarray, truth: csr_matrix) -> float:
    """P@5, implemented differently."""
    rows = np.arange(len(top))[:, None]
    return 100 * float(np.asarray(truth[rows, top].todense()).sum()) / (5 * len(top))


def missing(top: np.ndarray, truth: csr_matrix) -> float:
    """Return the share of true labels that are not among the top 2."""
    rows = np.arange(len(top))[:, None]
    return 100 - 100 * float(np.asarray(truth[rows, top].todense()).sum()) / truth.nnz


def test_it_is_measured_beside_the_others() -> None:
    register_metric("mine")(precision)
    run = fedalc.train(data=DATA, **KEYS)
    assert run.metrics["mine"] == pytest.approx(run.metrics["P@5"])
    assert type(run.metrics["mine"]) is float
    assert list(run.metrics)[-1] == "mine"


@pytest.mark.parametrize("method", ["fedavg", "ovr"])
def test_a_run_is_chosen_by_it(tmp_path: Path, method: str) -> None:
    """By the smallest value if less is better."""
    register_metric("missing@2", k=2, larger_is_better=False)(missing)
    selection = {"metric": "missing@2", "validation": 0.3, "every": 1, "refit": False}
    keys = {"method": "ovr", "ovr": {"penalties": (0.01, 1.0, 100.0)}} if method == "ovr" else KEYS
    run = fedalc.train(data=DATA, folder=tmp_path / "run", **keys, selection=selection)
    chosen = run.result["selection"]
    assert chosen["value"] == chosen["metrics"]["validation missing@2"]
    if method == "ovr":
        assert chosen["value"] == min(tried["value"] for tried in chosen["tried"])
    else:
        records = history.read(tmp_path / "run/history.jsonl")
        values = [record["metrics"]["validation missing@2"] for record in records]
        assert chosen["value"] == min(values) and chosen["round"] == 1 + values.index(min(values))


def test_methods_are_compared_by_it(tmp_path: Path) -> None:
    register_metric("mine")(precision)
    compared = fedalc.compare(dataset=DATA, methods=["fedavg", "fedalc"], folder=tmp_path / "both", **KEYS)
    results = [run.result for run in compared.runs]
    assert all("mine" in result["metrics"] for result in results)
    heading = (tmp_path / "both/table.md").read_text().splitlines()[0]
    assert "| mAP | mine | max cosine |" in heading
    METRICS._registered.pop("mine")  # another process, where it is not registered
    assert "| mine |" in markdown_table(results)


def test_smaller_is_better_has_no_bold_cell() -> None:
    results = [{"method": name, "metrics": {"P@1": at, "less": at}} for name, at in (("fedavg", 1.0), ("fedalc", 2.0))]
    assert "**2.00** | – | – | – | – | **2.00**" in markdown_table(results)
    register_metric("less", larger_is_better=False)(missing)
    assert "**2.00** | – | – | – | – | 2.00" in markdown_table(results)


@pytest.mark.parametrize("k", [2, 5, 7])
def test_it_is_given_as_many_labels_as_it_asks_for(k: int) -> None:
    shapes: list[tuple[int, ...]] = []

    def look(top: np.ndarray, truth: csr_matrix) -> float:
        shapes.append(top.shape)
        assert truth.shape == (len(top), 7)
        return 0.0

    without = fedalc.train(data=DATA, **KEYS).metrics
    register_metric("look", k=k)(look)
    assert fedalc.train(data=DATA, **KEYS).metrics == without | {"look": 0.0}
    assert {width for _, width in shapes} == {k}


def test_one_that_returns_no_number_or_fails_is_named() -> None:
    register_metric("gap")(lambda top, truth: math.nan)
    with pytest.raises(FedalcError, match=r"^the metric 'gap' returned nan: it should return a finite number$"):
        fedalc.train(data=DATA, **KEYS)
    METRICS._registered.pop("gap")
    register_metric("broken")(lambda top, truth: 1 / 0)
    with pytest.raises(FedalcError, match=r"^the metric 'broken' failed: ZeroDivisionError: division by zero$"):
        ranking_metrics(np.array([[0]]), csr_matrix([[1]]))


def test_what_cannot_be_registered() -> None:
    with pytest.raises(ConfigError, match="fedalc has its own 'P@1'"):
        register_metric("P@1")(precision)
    with pytest.raises(ConfigError, match="k is a whole number from 1 on, not 0"):
        register_metric("mine", k=0)
    with pytest.raises(ConfigError, match=r"3 is not a function of \(top, truth\)"):
        register_metric("mine")(3)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match=r"unknown metric 'F2'; there are P@1, .*, mAP, .*macro-F1, "):
        fedalc.experiment({"selection": {"metric": "F2"}})
    with pytest.raises(ConfigError, match="PSP@5 is for the test set"):
        fedalc.experiment({"selection": {"metric": "PSP@5"}})
    with pytest.raises(ConfigError, match="micro-F1 needs thresholds, which are chosen after training"):
        fedalc.experiment({"selection": {"metric": "micro-F1"}})


def test_its_facts_are_found_however_it_was_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point returns the function itself."""
    points = {"plain": EntryPoint("plain", "tests.evaluation.test_register:precision", "fedalc.metrics")}
    monkeypatch.setitem(METRICS.__dict__, "_entry_points", points)
    assert find_metric("plain").larger_is_better and find_metric("plain").needs == "top"
    register_metric("mine")(precision)
    assert find_metric("mine").help == "P@5, implemented differently."


def test_one_function_can_be_two_metrics() -> None:
    def depth(top: np.ndarray, truth: csr_matrix) -> float:
        return float(top.shape[1])

    register_metric("depth@2", k=2)(depth)
    register_metric("depth@4", k=4, larger_is_better=False)(depth)
    found = ranking_metrics(np.array([[0, 1, 2, 3, 4]]), csr_matrix(np.ones((1, 5))))
    assert (found["depth@2"], found["depth@4"]) == (2.0, 4.0)
    assert find_metric("depth@2").larger_is_better and not find_metric("depth@4").larger_is_better


def test_a_builtin_is_no_trouble_and_a_broken_package_costs_only_its_own_metric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = {"broken": EntryPoint("broken", "no_such_module:f", "fedalc.metrics")}
    monkeypatch.setitem(METRICS.__dict__, "_entry_points", points)
    with pytest.warns(UserWarning, match="the metric 'broken' of 'no_such_module:f' cannot be loaded"):
        assert ranking_metrics(np.array([[0]]), csr_matrix(np.ones((1, 1))))["P@1"] == 100
