"""An oracle's run from settings to folder: same contract as a federated run, and marked as centralised."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix

import fedalc
from fedalc.config.oracle_schema import OvrSettings
from fedalc.core.registry import ORACLES
from fedalc.data import load_dataset
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import hold_out
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.errors import ConfigError, DataError, FedalcError, Interrupted
from fedalc.evaluation.evaluate import measure
from fedalc.models.encoders import scale_rows
from fedalc.oracles import OracleScorer, TrainedOracle
from fedalc.oracles.one_vs_rest import OneVsRest
from fedalc.oracles.sleec import Sleec
from fedalc.oracles.training import OracleTraining
from fedalc.runs import history
from fedalc.training.base import Callback
from fedalc.workflows.load_model import load_model
from fedalc.workflows.preflight import check_memory
from tests.oracles.following import Counting
from tests.problems import real_data, small_dataset

DATA = make_demo(DemoSize(train=200, test=60, words=200))
OWN_ORACLES = ["sleec", "ovr", "mlp"]  # those of other packages: test_peers.py
SMALL: dict[str, Any] = {
    "sleec": {"dim": 10, "neighbours": 20, "nearest": 10},
    "mlp": {"hidden": 32, "epochs": 6, "batch_size": 32, "learning_rate": 0.05, "dropout": 0.0},
}


class Watching(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.seen.append((name, rounds))

    def step(self, number: int, what: str) -> None:
        self.seen.append(number)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.seen.append(record["phase"])


@pytest.mark.parametrize("method", OWN_ORACLES)
def test_the_run_folder_keeps_its_contract(tmp_path: Path, method: str) -> None:
    run = fedalc.train(data=DATA, method=method, folder=tmp_path / "r", **SMALL)
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names == {"config.toml", "history.jsonl", "result.json", "model", "report.html"}
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    federated = fedalc.train(data=DATA, method="fedavg", rounds=2, encoder={"dim": 4}).result
    assert set(result) == set(federated)
    assert result["centralised"] is True and federated["centralised"] is False
    assert result["collapse"] is None and result["bytes_up"] == result["bytes_down"] == 0
    assert result["rounds"] == result["rounds_run"] == 1 and result["seconds"] > 0
    calibrated = {"micro-F1", "macro-F1"} if method != "sleec" else set()  # sleec holds nothing out
    assert result["metrics"]["P@1"] > 30
    assert set(result["metrics"]) == (set(federated["metrics"]) - {"micro-F1", "macro-F1"}) | calibrated
    records = history.read(tmp_path / "r" / "history.jsonl")
    assert [record["phase"] for record in records] == (["fit"] if method == "sleec" else ["select", "refit"])
    again = fedalc.load_run(tmp_path / "r")
    assert again.settings == run.settings and again.metrics == run.metrics
    for ours, theirs in zip(*(r.model.predict(DATA.test.features, 3) for r in (again, run)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    page = (tmp_path / "r" / "report.html").read_text()
    assert f"<title>{method} (centralised) on demo</title>" in page and "<h2>Curves" not in page
    assert "Class embeddings" not in page and "sent by each client" not in page


@pytest.mark.parametrize("method", OWN_ORACLES)
def test_the_same_seed_gives_the_same_result(method: str) -> None:
    one, two = (fedalc.train(data=DATA, method=method, **SMALL).metrics for _ in range(2))
    assert one == two


def test_the_penalty_is_chosen_on_validation_and_fitted_on_all_of_train() -> None:
    watching = Watching()
    penalties = (0.001, 0.5, 500.0)
    run = fedalc.train(data=DATA, method="ovr", ovr={"penalties": penalties}, callbacks=[watching])
    part, validation = hold_out(DATA, 0.1, 0)
    scaled = Split(scale_rows(part.features, "unit"), part.labels)
    value = {}
    for penalty, oracle in OneVsRest.fits(run.settings, scaled, penalties, Counting()):
        held = np.asarray(part.labels.getnnz(axis=0) > 0)
        scorer = OracleScorer(oracle, scale_rows(validation.features, "unit"), held)
        value[penalty] = measure(scorer, validation.labels)["nDCG@5"]
    selection = run.result["selection"]
    assert selection["penalty"] == max(value, key=lambda penalty: value[penalty])
    assert {tried["penalty"]: tried["value"] for tried in selection["tried"]} == pytest.approx(value)
    assert selection["edge"] is None
    everything = Split(scale_rows(DATA.train.features, "unit"), DATA.train.labels)
    ((_, direct),) = OneVsRest.fits(run.settings, everything, (selection["penalty"],), Counting())
    assert isinstance(direct, OneVsRest) and isinstance(run.model.oracle, OneVsRest)
    np.testing.assert_array_equal(run.model.oracle.weights, direct.weights)
    assert watching.seen == [("select", 3), 1, 2, 3, "select", ("refit", 1), 1, "refit"]


def test_a_choice_at_the_edge_of_the_grid_says_so() -> None:
    for penalties, found in (((0.5, 500.0), "smallest"), ((0.5, 0.001), "largest"), ((0.5,), None)):
        run = fedalc.train(data=DATA, method="ovr", ovr={"penalties": penalties}, selection={"refit": False})
        assert run.result["selection"]["penalty"] == 0.5 and run.result["selection"]["edge"] == found


def test_regressions_that_do_not_converge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.oracles.logistic.STEPS", 1)
    selection = fedalc.train(data=DATA, method="ovr", ovr={"loss": "logistic"}).result["selection"]
    assert selection["unconverged"] > 0 and all(tried["unconverged"] >= 0 for tried in selection["tried"])
    keys: dict[str, Any] = {"selection": {"validation": 0.0}, "ovr": {"loss": "logistic", "penalties": (0.1,)}}
    assert fedalc.train(data=DATA, method="ovr", **keys).result["selection"] == {"unconverged": ANY}


def test_without_refit_the_chosen_one_is_kept() -> None:
    for method, penalty in (("ovr", 1.0), ("sleec", None)):
        keys = {"selection": {"refit": False}, "ovr": {"penalties": (1.0,)}}
        run = fedalc.train(data=DATA, method=method, **keys, **SMALL)
        assert run.result["selection"]["penalty"] == penalty
        if isinstance(run.model.oracle, Sleec):
            assert run.model.oracle.labels.shape[0] == 180  # of 200


def test_a_single_penalty_needs_no_validation() -> None:
    run = fedalc.train(data=DATA, method="ovr", selection={"validation": 0.0}, ovr={"penalties": (1.0,)})
    assert run.result["selection"] is None
    with pytest.raises(ConfigError, match=r"ovr\.penalties: several penalties need validation data"):
        fedalc.experiment({"method": "ovr", "selection": {"validation": 0.0}})


@pytest.mark.parametrize("loss", ["ridge", "logistic"])
def test_labels_without_an_instance_are_never_predicted(loss: str) -> None:
    data = small_dataset()
    Y = data.train.labels.toarray()
    Y[:, 2] = 0
    data = Dataset("small", Split(data.train.features, csr_matrix(Y)), data.test, data.label_names)
    for method in OWN_ORACLES:
        keys = {"ovr": {"loss": loss}, "sleec": {"dim": 3, "nearest": 2}}
        run = fedalc.train(data=data, method=method, **keys)
        labels, scores = run.model.predict(data.test.features, 7)
        assert labels.shape[1] == 6 and 2 not in labels and np.isfinite(scores).all()
        assert run.result["labels_without_client"] == 1 and run.result["labels"] == 7


@pytest.mark.parametrize("method", ORACLES)
def test_what_would_promise_something_is_refused_and_the_rest_ignored(method: str) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.mechanism: .* centralised"):
        fedalc.experiment({"method": method, "privacy": {"epsilon": 1.0}})
    with pytest.raises(ConfigError, match=r"collection\.correlations: .* centralised"):
        fedalc.experiment({"method": method, "collection": {"correlations": "c.json"}})
    fedalc.experiment({"method": method}, overrides=["client.epochs=3", "server.optimizer=cg", "engine=clients"])


def test_no_labels_at_all_is_an_error() -> None:
    data = small_dataset()
    empty = Split(data.train.features, csr_matrix(data.train.labels.shape))
    with pytest.raises(DataError, match="nothing to learn"):
        fedalc.train(data=Dataset("small", empty, data.test, data.label_names), method="ovr")


@pytest.mark.parametrize("method", OWN_ORACLES)
def test_what_does_not_fit_into_memory_is_refused(method: str) -> None:
    wide = csr_matrix(([1.0], ([0], [0])), shape=(1, 5_000_000))
    split = Split(wide, csr_matrix(np.ones((1, 1))))
    data = Dataset("wide", split, split, ("one",))
    settings = fedalc.experiment({"method": method, "sleec": {"learners": 100_000}})
    with pytest.raises(ConfigError, match=r"method: .* 5000000 features .* GB"):
        check_memory(settings, data)


@pytest.mark.parametrize("method", OWN_ORACLES)
def test_interrupted_it_begins_again(tmp_path: Path, method: str) -> None:
    class Stop(Callback):
        def step(self, number: int, what: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    settings = fedalc.experiment({"method": method, "dataset": "demo", **SMALL})
    with pytest.raises(Interrupted, match="no checkpoint, so it will start again"):
        fedalc.train(settings, data=DATA, folder=tmp_path / "r", callbacks=[Stop()])
    with pytest.raises(FedalcError, match="has not finished"):
        fedalc.load_run(tmp_path / "r")
    run = fedalc.train(settings, data=DATA, folder=tmp_path / "r", resume=True)
    assert run.metrics == fedalc.train(settings, data=DATA).metrics


@pytest.mark.parametrize("method", OWN_ORACLES)
def test_damaged_models_are_errors_that_say_so(tmp_path: Path, method: str) -> None:
    fedalc.train(data=DATA, method=method, folder=tmp_path / "r", **SMALL)
    facts_file = tmp_path / "r" / "model" / "facts.json"
    facts = json.loads(facts_file.read_text())
    assert facts["kind"] == method
    (tmp_path / "r" / "model" / "SHA256SUMS").unlink()  # or every change is noticed by that
    for changes, message in (
        ({"labels": facts["labels"][1:]}, "damaged"),
        ({"labels": None}, "damaged"),
        ({"kind": "oracle of Delphi"}, "does not know"),
        ({"kind": "encoder"}, "damaged"),
        ({"format": 99}, "format 99"),
    ):
        facts_file.write_text(json.dumps(facts | changes))
        with pytest.raises(FedalcError, match=message):
            load_model(tmp_path / "r" / "model")
    facts_file.write_text("[]")
    with pytest.raises(FedalcError, match="is not a JSON object"):
        load_model(tmp_path / "r" / "model")
    facts_file.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="200 features, but these have 3"):
        load_model(tmp_path / "r" / "model").predict(np.ones((1, 3)))
    (tmp_path / "r" / "model" / "tensors.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(FedalcError, match="damaged"):
        load_model(tmp_path / "r" / "model")


def spoilt(folder: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None], copy: Path) -> Path:
    """Return a copy of a model with some parts changed."""
    tensors, facts = load_file(folder / "tensors.safetensors"), json.loads((folder / "facts.json").read_text())
    change(tensors, facts)
    copy.mkdir(exist_ok=True)
    save_file(tensors, copy / "tensors.safetensors")
    (copy / "facts.json").write_text(json.dumps(facts))
    return copy


def put(where: str, value: Any) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        if where in tensors:
            tensors[where] = value(tensors[where]).contiguous()
        else:
            facts[where] = value

    return change


def nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, torch.nan)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int32)


def deeper(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[None]


def shorter(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


def beyond(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 10**6


COMMON = [
    ("kind", ["ovr"]),
    ("kind", {}),
    ("labels", "abcdefghijklmnopqrstuvwxyz"),
    ("labels", [1, 2, 3]),
    ("labels", ["too", "few"]),
    ("held", whole),
    ("held", shorter),
    ("held", deeper),
]
OWN: dict[str, list[tuple[str, Any]]] = {
    "ovr": [
        ("rows", "upside down"),
        ("rows", ["unit"]),
        *[(name, spoil) for name in ("weights", "intercepts") for spoil in (nan, whole, deeper)],
        ("intercepts", shorter),
    ],
    "sleec": [
        ("rows", "upside down"),
        *[("neighbours", number) for number in (0, -1, 2.5, True, "3", None)],
        *[(f"0.0.{name}", spoil) for name in ("centre", "embedded") for spoil in (nan, whole, deeper)],
        *[("0.0.weights.values", spoil) for spoil in (nan, whole, deeper, shorter)],
        *[(f"0.0.weights.{name}", spoil) for name in ("index", "starts") for spoil in (whole, deeper, beyond)],
        *[(f"0.0.{name}", spoil) for name in ("members", "features") for spoil in (whole, deeper, beyond, shorter)],
        *[(f"labels.{name}", spoil) for name in ("index", "starts") for spoil in (whole, deeper, beyond)],
    ],
    "fedmlh": [
        ("W", lambda W: W[:, :-1]),
        *[("W", spoil) for spoil in (nan, whole, deeper, shorter)],
        ("encoder.encoders.0.embedding", nan),
        *[("copies", number) for number in (0, -1, 3, 2.0, "2", 10**30)],
        *[("features", number) for number in (-1, 10**30, "many", None)],
        *[("dtype", name) for name in ("int64", "float64", "nn", None, [])],
    ],
}


@pytest.fixture(scope="module", params=OWN)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "r"
    federated = {"rounds": 2, "encoder": {"name": "linear", "dim": 4}, "hashing": {"tables": 2, "buckets": 5}}
    fedalc.train(data=DATA, method=request.param, folder=folder, **SMALL, **federated)
    return request.param, folder / "model"


def test_hostile_models_are_errors_that_name_the_folder(model: tuple[str, Path], tmp_path: Path) -> None:
    method, folder = model
    for where, value in COMMON + OWN[method]:
        copy = spoilt(folder, put(where, value), tmp_path / "copy")
        with pytest.raises(FedalcError, match=r"copy: (damaged|a model of kind)"):
            load_model(copy)
            pytest.fail(f"{where}: {value} was taken")


def test_older_models_of_sleec_have_dense_weights(tmp_path: Path) -> None:
    run = fedalc.train(data=DATA, method="sleec", folder=tmp_path / "r", **SMALL)
    weights = run.model.oracle.learners[0][0].weights

    def densely(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        for name in ("starts", "index", "values"):
            del tensors[f"0.0.weights.{name}"]
        tensors["0.0.weights"] = torch.from_numpy(weights.toarray())

    again = load_model(spoilt(tmp_path / "r" / "model", densely, tmp_path / "old"))
    for ours, theirs in zip(*(m.predict(DATA.test.features) for m in (again, run.model)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("method", OWN_ORACLES)
def test_who_asks_to_stop_when_the_fit_is_over_gets_its_result(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = OracleTraining.test

    def interrupted(self: OracleTraining, trained: TrainedOracle) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        return test(self, trained)

    monkeypatch.setattr(OracleTraining, "test", interrupted)
    run = fedalc.train(data=DATA, method=method, folder=tmp_path / "r", **SMALL)
    assert fedalc.load_run(tmp_path / "r").metrics == run.metrics and (tmp_path / "r" / "report.html").exists()


def test_an_older_model_is_an_encoder(tmp_path: Path) -> None:
    run = fedalc.train(data=DATA, method="fedavg", rounds=2, folder=tmp_path / "r", encoder={"dim": 4})
    facts_file = tmp_path / "r" / "model" / "facts.json"
    facts = json.loads(facts_file.read_text())
    assert facts.pop("kind") == "encoder"
    facts_file.write_text(json.dumps(facts))
    (tmp_path / "r" / "model" / "SHA256SUMS").unlink()
    labels, _ = load_model(tmp_path / "r" / "model").predict(DATA.test.features)
    np.testing.assert_array_equal(labels, run.model.predict(DATA.test.features)[0])


@pytest.mark.long
def test_a_comparison_takes_oracles_only_when_named(tmp_path: Path) -> None:
    keys = {"rounds": 2, "encoder": {"dim": 8}, "selection": {"every": 1}}
    methods = (*OWN_ORACLES, "fedavg")
    compared = fedalc.compare(methods, folder=tmp_path / "named", **keys, **SMALL)
    table = (tmp_path / "named" / "table.md").read_text()
    page = (tmp_path / "named" / "report.html").read_text()
    for method in OWN_ORACLES:
        assert f"| {method} (centralised) |" in table and f"{method} (centralised)" in page
    assert "| fedavg |" in table or "| fedavg (collapsed) |" in table
    assert set(compared.histories()) == set(compared.embeddings()) == {"fedavg"}
    alone = fedalc.compare(["ovr"], folder=tmp_path / "alone")
    assert [result["method"] for result in alone.results] == ["ovr"]
    everything = fedalc.compare(folder=tmp_path / "all", **keys)
    assert not {result["method"] for result in everything.results} & set(ORACLES)
    assert not set(everything.left_out) & set(ORACLES)


def test_the_grid_is_the_losss_own_unless_given() -> None:
    assert OvrSettings().grid[0] == 0.0625 and max(OvrSettings(loss="logistic").grid) < 1
    assert OvrSettings(penalties=(3.0,)).grid == (3.0,)
    with pytest.raises(ConfigError, match=r"ovr\.penalties"):
        fedalc.experiment({"method": "ovr", "ovr": {"penalties": []}})


def test_one_vs_rest_reaches_what_is_known_of_it_on_bibtex() -> None:
    run = fedalc.train(data=load_dataset("bibtex", real_data("bibtex").parent), method="ovr")
    assert run.metrics["P@1"] >= 64.5 and run.metrics["P@3"] > 39.5 and run.metrics["P@5"] > 28.8


@pytest.mark.long
def test_sleec_reaches_what_is_published_on_bibtex() -> None:
    run = fedalc.train(data=load_dataset("bibtex", real_data("bibtex").parent), method="sleec")
    assert run.metrics["P@1"] >= 64.5 and run.metrics["P@3"] >= 39.2 and run.metrics["P@5"] >= 28.3


@pytest.mark.long
def test_one_vs_rest_reaches_what_is_known_of_it_on_eurlex15k() -> None:
    data = load_dataset("eurlex15k", real_data("eurlex15k").parent)
    run = fedalc.train(data=data, method="ovr", ovr={"penalties": (0.25,)})  # what validation chooses, in less time
    assert run.metrics["P@1"] >= 87.5
