"""The oracles of other packages give what the packages give, and their models survive being saved."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.core.registry import ORACLES
from fedalc.data.dataset import Dataset, Split
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.errors import FedalcError, Interrupted
from fedalc.models.encoders import scale_rows
from fedalc.oracles.packaged import PackagedOracle, Ranked, quiet
from fedalc.runs.folder import read_settings
from fedalc.training.callbacks import Callback
from tests.oracles.following import Counting
from tests.problems import small_dataset

DATA = make_demo(DemoSize(train=200, test=60, words=200))
MODELS = [("omikuji", "parabel"), ("omikuji", "bonsai"), ("napkinxc", "plt"), ("napkinxc", "br")]


def trained(method: str, model: str, data: Dataset = DATA, **keys: Any) -> fedalc.Run:
    pytest.importorskip(method)
    return fedalc.train(data=data, method=method, **{method: {"model": model}}, **keys)


def precision(ranked: Ranked, truth: csr_matrix, k: int) -> float:
    """P@k in percent, from what a package returns."""
    hits = [sum(truth[row, label] > 0 for label, _ in best[:k]) for row, best in enumerate(ranked)]
    return 100 * float(np.mean(hits)) / k


def directly(method: str, files: Any, features: csr_matrix, folder: Path) -> Ranked:
    """Predict with the package alone, as its documentation shows."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with quiet():
        if method == "omikuji":
            from omikuji import Model

            model = Model.load(str(folder))
            rows = [features[row] for row in range(features.shape[0])]
            return [model.predict(list(zip(row.indices.tolist(), row.data.tolist(), strict=True))) for row in rows]
        from napkinxc.models import BR, PLT

        model = (PLT if "tree.bin" in files else BR)(str(folder))
        model.load()
        return model.predict_proba(features, top_k=10)


@pytest.mark.parametrize(("method", "model"), MODELS)
def test_precision_is_that_of_the_package_itself(method: str, model: str, tmp_path: Path) -> None:
    run = trained(method, model)
    oracle = run.model.oracle
    assert isinstance(oracle, PackagedOracle)
    ranked = directly(method, oracle.files, scale_rows(DATA.test.features, "unit"), tmp_path / "files")
    for k in (1, 3, 5):
        assert run.metrics[f"P@{k}"] == pytest.approx(precision(ranked, DATA.test.labels, k), abs=1e-9)
    assert run.metrics["P@1"] > 30 and run.result["centralised"] and run.result["bytes_up"] == 0


@pytest.mark.parametrize("method", ["omikuji", "napkinxc"])
def test_training_is_that_of_the_package_itself(method: str, tmp_path: Path) -> None:
    """Neither package can be repeated exactly, so trainings are compared by their precision."""
    ours = [trained(method, model).metrics["P@3"] for name, model in MODELS[::2] if name == method for _ in range(3)]
    X, Y, test = scale_rows(DATA.train.features, "unit"), DATA.train.labels, scale_rows(DATA.test.features, "unit")
    theirs = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        with quiet():
            if method == "omikuji":
                from omikuji import Model

                lines = [f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}"]
                for row in range(X.shape[0]):
                    words = [f"{i}:{v!r}" for i, v in zip(X[row].indices, X[row].data.tolist(), strict=True)]
                    lines.append(",".join(map(str, Y[row].indices)) + " " + " ".join(words))
                (tmp_path / "data.txt").write_text("\n".join(lines) + "\n")
                Model.train_on_data(str(tmp_path / "data.txt")).save(str(folder))
            else:
                from napkinxc.models import PLT

                PLT(str(folder)).fit(X, Y)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        theirs.append(precision(directly(method, files, test, tmp_path / f"{number}-again"), DATA.test.labels, 3))
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=3)


@pytest.mark.parametrize("model", ["parabel", "bonsai"])
def test_the_saved_model_predicts_the_same(model: str, tmp_path: Path) -> None:
    run = trained("omikuji", model, folder=tmp_path / "r")
    again = fedalc.load_run(tmp_path / "r")
    assert again.settings == run.settings and again.metrics == run.metrics
    (ours, score), (theirs, other) = (r.model.predict(DATA.test.features, 3) for r in (run, again))
    np.testing.assert_allclose(score, other, rtol=1e-5)  # omikuji adds its trees in any order
    assert (ours == theirs).mean() > 0.98


def test_a_package_that_crashes_on_damaged_files_gets_none(tmp_path: Path) -> None:
    run = trained("napkinxc", "plt", folder=tmp_path / "r")
    again = fedalc.load_run(tmp_path / "r")  # as `compare` does to go on
    assert again.metrics == run.metrics and len(run.model.predict(DATA.test.features)[0]) == 60
    with pytest.raises(FedalcError, match="napkinxc does not predict from a saved model"):
        again.model.predict(DATA.test.features)


def test_damaged_files_are_errors() -> None:
    oracle = trained("omikuji", "parabel").model.oracle
    assert isinstance(oracle, PackagedOracle)
    for name in oracle.files:
        damaged = replace(oracle, files={**oracle.files, name: oracle.files[name][:-9]})
        with pytest.raises(FedalcError, match="omikuji cannot use its model, which is damaged"):
            damaged.scores(DATA.test.features)
    with pytest.raises(FedalcError, match="damaged"):
        replace(oracle, labels=3).scores(DATA.test.features)


@pytest.mark.parametrize(("method", "model"), MODELS)
def test_odd_data(method: str, model: str) -> None:
    """An instance without labels, one without features, a label without instances."""
    small = small_dataset()
    X, Y = small.train.features.toarray(), small.train.labels.toarray()
    X[0], Y[1], Y[:, 2] = 0, 0, 0
    data = Dataset("small", Split(csr_matrix(X), csr_matrix(Y)), small.test, small.label_names)
    run = trained(method, model, data)
    labels, scores = run.model.predict(np.vstack([small.test.features.toarray(), 0 * X[:1]]), 7)
    assert labels.shape[1] == 6 and 2 not in labels and np.isfinite(scores).all()
    assert run.result["labels_without_client"] == 1


@pytest.mark.parametrize(("method", "model"), MODELS[::2])
def test_nothing_is_printed(method: str, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    trained(method, model)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("method", ["omikuji", "napkinxc"])
def test_without_the_package_one_line_says_what_to_install(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fedalc.oracles.packaged.find_spec", lambda name: None)
    with pytest.raises(FedalcError, match=rf'^{method} needs the package {method}: pip install "fedalc\[peers\]"$'):
        fedalc.train(data=DATA, method=method, folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("method", "model"), MODELS[::2])
def test_interrupted_it_begins_again(method: str, model: str, tmp_path: Path) -> None:
    class Stop(Callback):
        def step(self, number: int, what: str) -> None:
            os.kill(os.getpid(), 2)

    with pytest.raises(Interrupted, match="no checkpoint, so it will start again"):
        trained(method, model, folder=tmp_path / "r", callbacks=[Stop()])
    assert fedalc.train(read_settings(tmp_path / "r"), data=DATA, folder=tmp_path / "r", resume=True)


class Fake(PackagedOracle):
    """Returns the same label for every instance."""

    kind = package = "numpy"

    @staticmethod
    def train_package(settings: Any, train: Split, folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"\1\2\3")
        (folder / "empty").touch()

    @staticmethod
    def rank(folder: Path, features: csr_matrix, k: int) -> Ranked:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"model.bin": b"\1\2\3", "empty": b""}
        return [[(4, 0.5), (1, 0.25)]] * features.shape[0]


def fitted() -> PackagedOracle:
    ((_, oracle),) = Fake.fits(fedalc.experiment({}), DATA.train, (None,), Counting())
    assert isinstance(oracle, Fake)
    return oracle


def test_files_go_through_tensors_and_labels_not_returned_score_zero() -> None:
    tensors, facts = fitted().parts()
    assert {name: tensor.dtype for name, tensor in tensors.items()} == dict.fromkeys(
        ("file.model.bin", "file.empty"), torch.uint8
    )
    oracle = Fake.from_parts(tensors, {**facts, "labels": ["a"] * DATA.label_count})
    assert oracle == Fake(fitted().files, 200, DATA.label_count)
    scores = oracle.scores(DATA.test.features[:3])(slice(0, 3), slice(0, 6))
    np.testing.assert_array_equal(scores, [[0, 0.25, 0, 0, 0.5, 0]] * 3)


@pytest.mark.parametrize(
    "change",
    [
        {"file.../../evil": torch.zeros(3, dtype=torch.uint8)},
        {"file./etc/evil": torch.zeros(3, dtype=torch.uint8)},
        {"file...": torch.zeros(3, dtype=torch.uint8)},
        {"file.": torch.zeros(3, dtype=torch.uint8)},
        {"file.model.bin": torch.zeros(3)},
        {"file.model.bin": torch.zeros(1, 3, dtype=torch.uint8)},
    ],
)
def test_hostile_files_are_refused(change: dict[str, torch.Tensor]) -> None:
    tensors, facts = fitted().parts()
    with pytest.raises((ValueError, TypeError)):
        Fake.from_parts(tensors | change, {**facts, "labels": ["a"]})


@pytest.mark.parametrize("change", [{"features": 0}, {"features": "9"}, {"features": True}])
def test_hostile_facts_are_refused(change: dict[str, Any]) -> None:
    tensors, facts = fitted().parts()
    with pytest.raises((ValueError, TypeError)):
        Fake.from_parts(tensors, {**facts, "labels": ["a"], **change})


def test_they_are_oracles_and_outside_of_dev() -> None:
    import tomllib

    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name.split(">")[0] for name in extras["peers"]} == {"omikuji", "napkinxc"} <= set(ORACLES)
    assert not any("peers" in need for need in extras["dev"])
