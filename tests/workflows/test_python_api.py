"""What Python users see of a run: data as arguments, frames, short descriptions and progress."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from tests.problems import small_dataset

DATA = small_dataset()
SMALL: dict[str, Any] = {"method": "fedalc", "rounds": 4, "encoder": {"name": "linear", "dim": 8}}


def scores(run: fedalc.Run) -> np.ndarray:
    return np.asarray(run.model.predict(DATA.test.features, k=3)[1])


def test_a_dataset_comes_first_or_by_name() -> None:
    first, named, data = (
        fedalc.train(DATA, **SMALL),
        fedalc.train(dataset=DATA, **SMALL),
        fedalc.train(data=DATA, **SMALL),
    )
    settings = fedalc.experiment({**SMALL, "dataset": "small"})
    again = fedalc.train(settings, data=DATA), fedalc.train(settings=settings, data=DATA)
    for run in (named, data, *again):
        assert np.array_equal(scores(first), scores(run)) and run.metrics == first.metrics


def test_a_name_or_path_comes_first(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("train", "test"):
        (tmp_path / "mine" / f"{name}.txt").write_text("4 3 2\n0 0:1\n1 1:1\n0 0:2\n1 2:1\n")
    for path in (tmp_path / "mine", str(tmp_path / "mine")):
        assert fedalc.train(path, tune=False).metrics["P@1"] > 0
    with pytest.raises(fedalc.ConfigError, match="did you mean bibtex"):
        fedalc.train("bibtxe")


def test_matrices() -> None:
    X, Y = DATA.train.features, DATA.train.labels
    run = fedalc.train(X.toarray(), Y.toarray(), **SMALL)
    assert run.settings.method == "fedalc" and scores(run).shape == (30, 3) and run.metrics  # a fifth was held out
    tested = fedalc.train(X, Y, test=(DATA.test.features, DATA.test.labels), table={"unlabelled": "keep"}, **SMALL)
    assert tested.metrics == fedalc.train(DATA, **SMALL).metrics


def test_texts_and_frames() -> None:
    pandas = pytest.importorskip("pandas")
    texts = [f"{'red apples' if n % 2 else 'blue skies'} and number {n % 7}" for n in range(60)]
    labels = [["fruit"] if n % 2 else ["weather", "sky"] for n in range(60)]
    run = fedalc.train(texts, labels, tune=False)
    assert run.model.label_names == ("fruit", "sky", "weather") and run.metrics["P@1"] == 100
    best, _ = run.model.predict(["an apples pie"], k=1)
    assert run.model.label_names[best[0, 0]] == "fruit"
    again = fedalc.train(pandas.DataFrame({"text": texts, "labels": labels}), tune=False)
    assert np.array_equal(again.model.model.W, run.model.model.W) and again.metrics == run.metrics
    short = fedalc.train(texts, labels, tune=False, text={"words": [1, 1]}, table={"test_share": 0.5})
    assert short.model.text.settings.words == (1, 1)


def test_the_history_is_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    selection = {"every": 2, "patience": None}
    run = fedalc.train(DATA, **SMALL, selection=selection)
    in_folder = fedalc.train(DATA, **SMALL, selection=selection, folder=tmp_path / "run")
    loaded = fedalc.load_run(tmp_path / "run")
    frame = run.history
    assert isinstance(frame, pandas.DataFrame) and list(frame["round"][:2]) == [2, 4]
    assert {"phase", "loss", "validation P@1", "max_cosine", "seconds", "bytes_up"} <= set(frame.columns)
    for other in (in_folder, loaded):
        pandas.testing.assert_frame_equal(frame.drop(columns="seconds"), other.history.drop(columns="seconds"))
    assert [record["metrics"] for record in run.records] == [record["metrics"] for record in loaded.records]


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedalc.train(DATA, **SMALL)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fedalc.FedalcError, match=r"pip install 'fedalc\[tables\]'"):
        _ = run.history
    assert run.records


def test_a_comparison_in_memory() -> None:
    pandas = pytest.importorskip("pandas")
    keys = {"rounds": 3, "encoder": {"name": "linear", "dim": 8}}
    found = fedalc.compare(["fedavg", "fedalc"], DATA, seeds=[0, 1], **keys)
    assert found.folder is None and len(found.runs) == 4
    table = found.table
    assert isinstance(table, pandas.DataFrame) and list(table["method"]) == ["fedavg", "fedavg", "fedalc", "fedalc"]
    assert list(table["seed"]) == [0, 1, 0, 1] and table["P@1"].between(0, 100).all()
    assert table["P@1"][2] == fedalc.train(DATA, method="fedalc", **keys).metrics["P@1"]
    assert set(found.histories()) == {"fedavg", "fedalc"} and found.histories()["fedalc"]
    with pytest.raises(fedalc.ConfigError, match="without a folder"):
        fedalc.compare(["fedavg"], DATA, overwrite=True)


def test_descriptions_are_short(tmp_path: Path) -> None:
    run = fedalc.train(DATA, **SMALL, folder=tmp_path / "a<b")
    oracle = fedalc.train(DATA, method="ovr").model
    for thing in (run, DATA, DATA.train, run.model, run.settings, oracle):
        assert len(repr(thing).splitlines()) == 1 and len(repr(thing)) < 250, repr(thing)
    assert "fedalc on small" in repr(run) and "a&lt;b" in run._repr_html_()
    assert "60 train, 30 test records, 20 features, 7 labels" in repr(DATA)


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By default only where somebody can see it as it happens."""
    fedalc.train(DATA, **SMALL)
    fedalc.compare(["fedavg"], DATA, rounds=2)
    fedalc.FedALCClassifier("fedalc", rounds=2).fit(DATA.train.features, DATA.train.labels)
    assert capsys.readouterr() == ("", "")
    fedalc.train(DATA, **SMALL, verbose=True)
    assert "fedalc refit 4/4  loss" in capsys.readouterr().err
    fedalc.FedALCClassifier("fedalc", rounds=2, verbose=True).fit(DATA.train.features, DATA.train.labels)
    assert "fedalc select" in capsys.readouterr().err
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    fedalc.train(DATA, **SMALL)
    assert "fedalc refit" in capsys.readouterr().err
    fedalc.train(DATA, **SMALL, verbose=False)
    assert capsys.readouterr() == ("", "")


def test_none_is_not_the_demo() -> None:
    for call in (lambda: fedalc.train(None), lambda: fedalc.compare(["fedavg"], None)):
        with pytest.raises(fedalc.ConfigError, match="data: expected data, found None"):
            call()


def test_errors_name_the_function_that_was_called() -> None:
    X, Y = np.eye(4), ["a", "b"] * 2
    for call, message in (
        (lambda: fedalc.compare(["fedavg"], (X, Y)), r"tuple has none. Give compare\(methods, X, Y\)"),
        (lambda: fedalc.compare(["fedavg"], None), r'fedalc.compare\(methods, "demo"\)'),
        (lambda: fedalc.compare(["fedavg"], labels=Y), r"give both, compare\(methods, X, Y\)"),
        (lambda: fedalc.compare(["fedavg"], "demo", test=(X, Y)), r"in memory: compare\(methods, X, Y, test="),
        (lambda: fedalc.train((X, Y)), r"tuple has none. Give train\(X, Y\)"),
        (lambda: fedalc.data.dataset_from((X, Y)), r"tuple has none. Give dataset_from\(X, Y\)"),
    ):
        with pytest.raises(fedalc.ConfigError, match=message):
            call()


def test_a_folder_that_is_taken_hides_no_other_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that the run there has not read is read first. Otherwise the folder is refused at once."""
    (tmp_path / "a.csv").write_text(
        "text,labels\n" + "".join(f"red apples {n},fruit\nblue sky {n},sky\n" for n in range(9))
    )
    (tmp_path / "b.csv").write_text("words\n1\n")
    fedalc.train(tmp_path / "a.csv", tune=False, folder=tmp_path / "run")

    def again(file: str, **keys: Any) -> str:
        with pytest.raises(fedalc.FedalcError) as refused:
            fedalc.train(tmp_path / file, tune=False, folder=tmp_path / "run", **keys)
        return str(refused.value)

    assert "b.csv: which columns are labels?" in again("b.csv")
    assert "no such file" in again("c.csv")
    assert "there is no column 'body'" in again("a.csv", table={"text_columns": "body"})
    assert "already holds a run" in again("a.csv", table={"test_share": 0.5})
    assert "resnet18 does not fit" in again("a.csv", table={"test_share": 0.5}, method="fedavg", encoder="resnet18")
    monkeypatch.setattr("fedalc.workflows.inputs.load_dataset", None)
    assert "already holds a run" in again("a.csv")
