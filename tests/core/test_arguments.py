"""Arguments of the Python API: valid ones work, invalid ones raise an error that says what is wrong."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.errors import ConfigError, DataError, FedalcError
from tests.problems import small_dataset

DATA = small_dataset()
X = DATA.test.features.toarray()
SMALL: dict[str, Any] = {"method": "fedavg", "rounds": 2, "encoder": {"dim": 4}}


class Follower(fedalc.Callback):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round(self, number: int, loss: float) -> None:
        self.rounds.append(number)


@pytest.fixture(scope="module")
def model() -> fedalc.TrainedModel:
    found = fedalc.train(dataset=DATA, **SMALL).model
    assert isinstance(found, fedalc.TrainedModel)
    return found


def test_a_dataset_may_be_given_as_dataset(tmp_path: Path) -> None:
    follower = Follower()
    run = fedalc.train(dataset=DATA, callbacks=follower, **SMALL)
    assert run.settings.dataset == "small" and follower.rounds[:2] == [1, 2]
    assert run.metrics == fedalc.train(data=DATA, **SMALL).metrics
    keys = {**SMALL, "folder": tmp_path / "c", "dataset": DATA, "callbacks": [follower]}
    del keys["method"]
    (one,) = fedalc.compare(["fedavg"], **keys).results
    assert one["metrics"] == run.metrics
    written = json.loads((tmp_path / "c" / "results.json").read_text())
    assert written[0]["settings"]["encoder.dim"] == 4


@pytest.mark.parametrize("method", ["fedavg", "ovr"])
def test_without_test_data_there_are_no_metrics(tmp_path: Path, method: str) -> None:
    data = fedalc.Dataset("mine", DATA.train, test=None, label_names=DATA.label_names)
    with pytest.warns(UserWarning, match="mine has no test data, so the result has no metrics"):
        run = fedalc.train(dataset=data, folder=tmp_path / "run", **{**SMALL, "method": method})
    assert run.metrics == {} and fedalc.load_run(str(tmp_path / "run")).metrics == {}
    assert "There was no test data." in (tmp_path / "run" / "report.html").read_text()


def test_a_model_is_saved_under_a_text_and_nothing_else_is_replaced(
    model: fedalc.TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second takes the place of the first
        model.save("m1")
    assert np.array_equal(fedalc.TrainedModel.load("m1").predict(X)[0], model.predict(X)[0])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("more of it")
    for place, message in (("mine", "contains other files, such as thesis.txt"), ("file", "is a file")):
        with pytest.raises(FedalcError, match=message):
            model.save(place)
    with pytest.raises(FedalcError, match="cannot be written"):
        model.save("file/within")
    assert (tmp_path / "mine" / "thesis.txt").exists() and (tmp_path / "file").read_text() == "more of it"


@pytest.mark.parametrize("earlier", [True, False])
def test_what_stands_beside_a_saved_model_stays(model: fedalc.TrainedModel, tmp_path: Path, earlier: bool) -> None:
    if earlier:
        model.save(tmp_path / "m1")
    for name in ("m1.part", "m1.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    with pytest.raises(FedalcError, match=r"m1\.old: saving needs this name temporarily; rename or remove it"):
        model.save(tmp_path / "m1")
    (tmp_path / "m1.old").rename(tmp_path / "m1.mine")
    model.save(tmp_path / "m1")
    assert len(list(tmp_path.rglob("thesis.txt"))) == 2 and len(list(tmp_path.iterdir())) == 3


def test_a_model_that_does_not_fit_on_the_disk_says_so(
    model: fedalc.TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedalcError, match=r"m1: cannot be written: No space left.*free some disk space"):
        model.save(tmp_path / "m1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("k", [-1, 0, 2.0, "3", None, True])
def test_k_is_a_whole_number_from_1_on(model: fedalc.TrainedModel, k: Any) -> None:
    with pytest.raises(ConfigError, match="k: expected a whole number from 1 on"):
        model.predict(X, k=k)


def test_predict_takes_what_numpy_takes(model: fedalc.TrainedModel) -> None:
    labels, scores = model.predict(X.tolist(), k=10**20)
    assert labels.shape == scores.shape == (len(X), int(model.held.sum()))
    assert np.array_equal(model.predict(X, k=np.int64(2))[0], labels[:, :2])
    assert model.predict(X[:0])[0].shape[0] == 0
    for wrong, message in (
        (np.where(X > 0, np.nan, X), "is not a finite number"),
        (X[0], r"x.reshape\(1, -1\)"),
        (X[:, :3], "20 features, but these have 3"),
        (DATA.test, "expected two dimensions"),
    ):
        with pytest.raises(DataError, match=message):
            model.predict(wrong)


def test_an_oracle_is_as_careful() -> None:
    model = fedalc.train(dataset=DATA, method="ovr").model
    with pytest.raises(DataError, match="row 0, column 0 is not a finite number"):
        model.predict(np.full(X.shape, np.nan))
    with pytest.raises(ConfigError, match="k: expected a whole number"):
        model.predict(X, k=-1)


def test_scores_that_are_not_numbers_are_refused() -> None:
    raw = {"dim": 4, "features": "raw", "output": "raw"}
    model = fedalc.train(dataset=DATA, **{**SMALL, "encoder": raw}).model
    with pytest.raises(DataError, match="row 0 has values so large that its scores are not numbers"):
        model.predict(np.where(np.arange(20) % 2, 3e38, -3e38)[None])


def test_scores_of_the_square_loss_are_not_cosines() -> None:
    """`predict` describes them as unbounded numbers."""
    data = fedalc.load_dataset("demo")
    exact = fedalc.train(dataset=data, method="fedalc-oneshot", encoder={"dim": 128}).model
    unit = fedalc.train(dataset=data, method="fedavg", rounds=1, encoder={"dim": 16}).model
    assert exact.predict(data.train.features, k=1)[1].max() > 1
    assert np.abs(unit.predict(data.train.features, k=79)[1]).max() <= 1 + 1e-6


def demo(**keys: Any) -> Callable[[], object]:
    return lambda: fedalc.train(**{"dataset": DATA, **SMALL, **keys})


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "a function": (demo(callbacks=[print]), r"callbacks\[0\]: .*print.* is not a callback: .*fedalc.Callback"),
    "a class": (demo(callbacks=[Follower]), "the class itself"),
    "no callbacks": (demo(callbacks=None), "expected a list of callbacks, found None"),
    "two datasets": (demo(data=DATA), "give one of dataset and data"),
    "a name as data": (demo(data="demo"), "names and folders are for dataset="),
    "matrices as dataset": (demo(dataset=(X, X)), "dataset: expected a name, a folder or a fedalc.Dataset"),
    "nothing as dataset": (demo(dataset=None), "dataset: expected a name, a folder or a fedalc.Dataset, found None"),
    "a folder of a number": (demo(folder=5), "folder: expected a path, found 5"),
    "resume nothing": (demo(resume=True), "folder: there is nothing to resume"),
    "rounds in words": (demo(rounds="many"), "rounds: .*found 'many'"),
    "an optimizer's name": (demo(server="adam"), "server: .*found 'adam'"),
    "positional": (lambda: fedalc.train(5), "expected labels"),
    "load_run nowhere": (lambda: fedalc.load_run("nowhere"), "nowhere: not a run folder"),
    "load_run nothing": (lambda: fedalc.load_run(None), "folder: expected a path, found None"),  # type: ignore[arg-type]
    "load nowhere": (lambda: fedalc.TrainedModel.load("nowhere"), "nowhere"),
    "load_dataset": (lambda: fedalc.load_dataset(5), "dataset: expected a path, found 5"),  # type: ignore[arg-type]
    "data_dir": (lambda: fedalc.load_dataset("bibtex", 5), "data_dir: expected a path"),  # type: ignore[arg-type]
    "methods as text": (
        lambda: fedalc.compare("fedavg", folder="c"),
        r"expected a list of names, such as \['fedavg'\]",
    ),
    "no methods": (lambda: fedalc.compare([], folder="c"), "expected at least one method name"),
    "seeds as text": (lambda: fedalc.compare(["fedavg"], folder="c", seeds="0"), "seeds: expected whole numbers"),  # type: ignore[arg-type]
    "settings as text": (lambda: fedalc.experiment("demo"), "expected a dict of settings"),  # type: ignore[arg-type]
    "an override": (lambda: fedalc.experiment(overrides=[5]), "expected a list of key=value.*found 5"),  # type: ignore[list-item]
    "Experiment": (lambda: fedalc.Experiment(rounds="x"), "rounds: .*found 'x'"),  # type: ignore[arg-type]
    "Experiment's section": (lambda: fedalc.Experiment(encoder={"dim": 0}), "encoder.dim: .*found 0"),  # type: ignore[arg-type]
    "a dotted name": (
        lambda: fedalc.Experiment(**{"server.ridge": 1}),
        "no such setting in this form; in Python, server={'ridge': …}",
    ),  # type: ignore[arg-type]
    "Experiment's typo": (lambda: fedalc.Experiment(round=1), "round: there is no such setting; did you mean 'rounds'"),  # type: ignore[call-arg]
    "users": (lambda: fedalc.Split(X, X > 1, users=5), "users should be a list"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_every_mistake_is_an_error_of_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = CALLS[name]
    with pytest.raises(FedalcError, match=message):
        call()
    assert not list(tmp_path.iterdir())
