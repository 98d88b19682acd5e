"""The output of a sentence encoder with tf-idf beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.tensor_folder import load_folder
from fedalc.data.text.agreed import agreed_text, needs_counts
from fedalc.data.text.features import fit_text, text_from_parts
from fedalc.data.text.joined import JoinedText
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError
from tests.data.text.encoders import make_encoder

TEXTS = ["wheat and corn", "cheap oil", "gas prices and oil prices", "", "corn"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("joined") / "encoder", "mean_tokens")


def unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_both_have_length_one_and_terms_their_weight(encoder: Path, weight: float) -> None:
    joined = fit_text(TEXTS, TextSettings(encoder=str(encoder), tfidf=weight))
    alone = fit_text(TEXTS, TextSettings(encoder=str(encoder)))
    terms = fit_text(TEXTS, TextSettings())
    assert isinstance(joined, JoinedText) and joined.feature_count == 8 + terms.feature_count
    new = [*TEXTS, "strange words"]
    wanted = [unit(alone.transform(new).toarray()), weight * unit(terms.transform(new).toarray())]
    found = joined.transform(new)
    assert found.dtype == np.float32 and found.shape == (6, joined.feature_count)
    np.testing.assert_allclose(found.toarray(), np.hstack(wanted), rtol=1e-5, atol=1e-6)
    assert found[3].nnz == 0 and found[5, :8].nnz == 8 and found[5, 8:].nnz == 0


def test_settings_of_terms_act(encoder: Path) -> None:
    pairs = fit_text(TEXTS, TextSettings(encoder=str(encoder), tfidf=1, words=(2, 2), most_terms=3))
    assert isinstance(pairs, JoinedText) and pairs.terms.feature_count == 3


def test_saved_with_the_model_and_found_again(encoder: Path, tmp_path: Path) -> None:
    text = fit_text(TEXTS, TextSettings(encoder=str(encoder), tfidf=0.5))
    split = fedalc.Split(text.transform(TEXTS * 3), [[1, 0], [0, 1], [0, 1], [0, 0], [1, 0]] * 3)
    data = fedalc.Dataset("texts", split, split, ("farm", "energy"), text=text)
    run = fedalc.train(data=data, method="fedalc-oneshot", folder=tmp_path / "run")
    wanted = run.model.predict(["cheap oil", "corn"])[1]
    model = fedalc.load_run(tmp_path / "run").model
    np.testing.assert_array_equal(model.predict(["cheap oil", "corn"])[1], wanted)
    assert isinstance(model.text, JoinedText)
    model.text.look_in(tmp_path / "absent")
    with pytest.raises(ConfigError, match="encoder is not in"):
        model.predict(["corn"])
    tensors, facts = load_folder(tmp_path / "run" / "model")
    assert {"text.terms", "text.idf"} <= set(tensors) and facts["text"]["encoder"]["folder"] == str(encoder)


def test_damaged_parts_are_refused(encoder: Path) -> None:
    arrays, facts = fit_text(TEXTS, TextSettings(encoder=str(encoder), tfidf=1)).parts()
    fewer = {**arrays, "idf": arrays["idf"][1:]}
    for wrong, what in ((fewer, facts), ({}, facts), (arrays, {**facts, "terms": None})):
        with pytest.raises((ValueError, KeyError, TypeError)):
            text_from_parts(wrong, what)


def test_parties_of_a_simulation_agree_on_terms(encoder: Path) -> None:
    settings = TextSettings(encoder=str(encoder), tfidf=1, least_parties=2)
    assert needs_counts(settings) and not needs_counts(TextSettings(encoder=str(encoder)))
    text = agreed_text([["corn and oil"], ["corn and gas"]], settings)
    assert isinstance(text, JoinedText) and text.terms.terms == ("and", "corn")  # type: ignore[attr-defined]


def test_it_needs_an_encoder(encoder: Path) -> None:
    with pytest.raises(ValueError, match="beside a sentence encoder: it needs --text-encoder FOLDER"):
        TextSettings(tfidf=1)
    with pytest.raises(ConfigError, match="--text-encoder FOLDER"):
        experiment({"text": {"tfidf": 1.0}})
    settings = experiment(
        {"encoder": {"pretrained": str(encoder)}, "text": {"tfidf": 1.0}}
    )  # --pretrained means it too
    assert settings.text.encoder == str(encoder) and settings.text.tfidf == 1
