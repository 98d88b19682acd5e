"""A model that was trained on texts keeps what turns them into features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedalc
from fedalc.core.tensor_folder import FACTS, SUMS
from fedalc.data.text.features import fit_text
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError, FedalcError
from fedalc.workflows.load_model import load_model

TEXTS = ["wheat and corn", "corn and grain", "oil and gas", "crude oil", "gas prices", "wheat prices"] * 4
LABELS = [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [1, 0]] * 4


def dataset(settings: TextSettings | None = None) -> fedalc.Dataset:
    text = fit_text(TEXTS, settings or TextSettings())
    split = fedalc.Split(text.transform(TEXTS), LABELS)
    return fedalc.Dataset("texts", split, split, ("farm", "energy"), text=text)


@pytest.mark.parametrize("method", ["fedalc-oneshot", "ovr"])
@pytest.mark.parametrize("kind", ["vocabulary", "hashing"])
def test_saved_with_the_model(method: str, kind: str, tmp_path: Path) -> None:
    data = dataset(TextSettings(kind=kind, buckets=256))
    run = fedalc.train(data=data, method=method, folder=tmp_path / "run")
    model = fedalc.load_run(tmp_path / "run").model
    for new in (["more corn", "cheap gas"], np.array(["more corn", "cheap gas"])):
        labels, scores = model.predict(new, 1)
        assert [model.label_names[best] for best in labels[:, 0]] == ["farm", "energy"]
        assert scores.tobytes() == run.model.predict(new, 1)[1].tobytes()
    assert labels[:, 0].tolist() == model.predict(data.text.transform(new), 1)[0][:, 0].tolist()
    with pytest.raises(DataError, match=r"give \[text\]"):
        model.predict("more corn")


def test_a_model_of_texts_says_what_is_not_a_text() -> None:
    model = fedalc.train(data=dataset(), method="fedalc-oneshot").model
    for wrong, message in (
        ([None], r"text 0 is missing \(None\)"),
        (["corn", float("nan")], r"text 1 is missing \(nan\)"),
        (np.array([None, "corn"], dtype=object), "text 0 is missing"),
        ([b"corn"], r"text 0 is bytes.*decode"),
        (np.array([b"corn"]), "text 0 is bytes"),
        (b"corn", r"give \[text\]"),
        ([5], "text 0 is not a string: 5"),
        (None, "expected a list of texts, found None"),
        ([["corn"]], r"such as 'corn'. Texts are a list, or one column"),
    ):
        with pytest.raises(DataError, match=message):
            model.predict(wrong)
    assert model.predict([], 1)[0].shape == (0, 1) and model.predict(np.array([]))[0].shape[0] == 0


def test_a_model_of_features_refuses_a_text() -> None:
    data = dataset()
    run = fedalc.train(data=fedalc.Dataset("rows", data.train, data.test), method="fedalc-oneshot")
    for text in ("more corn", ["more corn"], [b"more corn"], [None, "more corn"]):
        with pytest.raises(DataError, match="not on raw texts"):
            run.model.predict(text)


def test_damaged_parts_are_refused(tmp_path: Path) -> None:
    fedalc.train(data=dataset(), method="fedalc-oneshot").model.save(tmp_path / "model")
    (tmp_path / "model" / SUMS).unlink()
    facts = json.loads((tmp_path / "model" / FACTS).read_text())
    for wrong in ({"settings": 5}, "text", {**facts["text"], "version": 7}, {"version": 1, "settings": {"kind": "no"}}):
        (tmp_path / "model" / FACTS).write_text(json.dumps({**facts, "text": wrong}))
        with pytest.raises(FedalcError, match="damaged"):
            load_model(tmp_path / "model")


def test_a_dataset_refuses_a_text_of_other_width() -> None:
    data = dataset()
    other = fit_text(["aa bb", "aa bb"], TextSettings())
    with pytest.raises(DataError, match="its text gives"):
        fedalc.Dataset("texts", data.train, data.test, text=other)
