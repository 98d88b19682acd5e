"""`run.evaluate` and `run.calibrate` on records in memory, as `fedalc.train` takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from tests.problems import small_dataset

TEXTS = [f"{'red apples' if n % 2 else 'blue skies'} and number {n % 7}" for n in range(60)]
LABELS = [["fruit"] if n % 2 else ["weather", "sky"] for n in range(60)]
DATA = small_dataset()


@pytest.fixture(scope="module")
def run() -> fedalc.Run:
    return fedalc.train(TEXTS, LABELS, tune=False)


@pytest.fixture(scope="module")
def rows() -> fedalc.Run:
    return fedalc.train(DATA, tune=False, table={"unlabelled": "keep"})


def test_texts_and_lists_of_labels(run: fedalc.Run) -> None:
    found = run.evaluate(TEXTS[:10], LABELS[:10])
    assert found.records == 10 and found.metrics["P@1"] == 100 and found.unknown_labels == ()
    wrong = run.evaluate(["red apples", "blue skies"], ["sky", "moon"])  # one label each, the second unknown
    assert wrong.metrics["P@1"] == 0 and wrong.unknown_labels == ("moon",)
    assert run.evaluate(np.array(TEXTS[:2]), [["sky"], []]).records == 1  # without a label: left out, as in training


def test_arrays_mean_the_same_as_a_split(rows: fedalc.Run) -> None:
    wanted = rows.evaluate(DATA.test).metrics
    for X, Y in ((DATA.test.features, DATA.test.labels), (DATA.test.features.toarray(), DATA.test.labels.toarray())):
        assert rows.evaluate(X, Y).metrics == wanted
    assert rows.calibrate(X, Y).model.calibration is not None


def test_frames(run: fedalc.Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "labels": ["|".join(labels) for labels in LABELS]})
    trained = fedalc.train(frame, tune=False)
    assert trained.evaluate(frame[:20]).metrics["P@1"] == 100
    other = frame.rename(columns={"text": "body", "labels": "kinds"})
    with pytest.raises(fedalc.DataError, match=r"no column 'text'.*'body', 'kinds'"):
        trained.evaluate(other)
    assert trained.evaluate(other, table={"text_columns": "body", "label_columns": "kinds"}).metrics["P@1"] == 100
    matrix = pandas.DataFrame([[1, 0], [0, 1]], columns=["fruit", "sky"])
    assert run.evaluate(TEXTS[1::-1], matrix).metrics["P@1"] >= 50
    split = frame.assign(split=["train", "test", "test"] * 20)
    assert fedalc.train(split, tune=False).evaluate(split).records == 40
    assert fedalc.train(split, tune=False).evaluate(frame).records == 60
    assert trained.evaluate({"train": frame, "test": frame[:7]}).records == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((TEXTS,), "evaluate\\(X, Y\\)"),
        ((None, LABELS), "labels but no records"),
        ((TEXTS, LABELS[:-1]), "X has 60 records, but Y has 59"),
        (("demo", LABELS), "the dataset 'demo' has labels already"),
        ((DATA, LABELS), "a Dataset has labels already"),
        ((TEXTS, np.eye(60)), "60 labels, but the model has 3"),
        ((TEXTS, ["moon"] * 60), "none of its labels is one of the model's"),
        ((np.eye(60), LABELS), "trained on"),
        ((3, None), "evaluate\\(X, Y\\)"),
    ],
)
def test_what_is_refused(run: fedalc.Run, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(fedalc.FedalcError, match=message):
        run.evaluate(*given).metrics  # noqa: B018


def test_texts_for_a_model_of_numbers(rows: fedalc.Run, tmp_path: Path) -> None:
    with pytest.raises(fedalc.DataError, match="holds texts, but this model was trained on"):
        rows.evaluate(TEXTS, LABELS)
    with pytest.raises(fedalc.ConfigError, match="table: expected a dict"):
        rows.evaluate(DATA, table="text")  # type: ignore[arg-type]
