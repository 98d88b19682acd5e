"""Runs on the features of a frozen network: which settings they get, every kind of method, and predictions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedalc
from fedalc.config.resolve import default_choice, experiment
from fedalc.data.images.loose_files import read_pictures
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.synthetic.mosaics import MosaicsSize, make_mosaics
from fedalc.errors import ConfigError, FedalcError
from fedalc.workflows.enrol import enrol_file
from fedalc.workflows.export_onnx import export_onnx
from fedalc.workflows.predict import predict_file
from fedalc.workflows.prediction_files import Answer
from fedalc.workflows.verify import verify_file
from tests.data.pretrained.networks import save_resnet
from tests.data.text.encoders import make_encoder
from tests.problems import small_dataset

pytest.importorskip("transformers")

MOSAICS = make_mosaics(MosaicsSize(train=60, test=20))


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fedalc.report.page.write_page", lambda *folder: None)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    save_resnet(tmp_path / "network", size=32)
    return tmp_path / "network"


def resolved(**keys: Any) -> fedalc.Experiment:
    return experiment(keys, defaults=default_choice(keys))


# --- settings ---


def test_pictures_with_a_frozen_network_are_searched_like_features(network: Path) -> None:
    settings = resolved(dataset="voc2012", encoder={"pretrained": str(network)})
    assert settings.encoder.frozen and settings.encoder.name == "linear" and settings.tuning.search
    assert settings.images.size == 32, "the network's own"
    assert settings.selection.metric == "mAP"
    settings = resolved(dataset="voc2012", method="fedaws", encoder={"pretrained": str(network), "name": "mlp"})
    assert settings.encoder.frozen and settings.encoder.name == "mlp" and not settings.tuning.search


def test_a_resnet_starts_from_the_weights_as_before(network: Path) -> None:
    settings = resolved(dataset="voc2012", encoder={"name": "resnet18", "pretrained": str(network)})
    assert not settings.encoder.frozen and settings.images.size == 96
    settings = resolved(dataset="voc2012")
    assert settings.encoder.name == "resnet-small" and settings.encoder.pretrained is None


def test_a_sentence_encoder_is_for_texts(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "sentences")
    settings = resolved(dataset="demo", encoder={"pretrained": str(folder)})
    assert settings.text.kind == "encoder" and settings.text.encoder == str(folder)
    assert settings.encoder.pretrained is None and not settings.encoder.frozen and settings.tuning.search


@pytest.mark.parametrize(
    ("encoder", "why"),
    [
        ({"name": "resnet18", "frozen": True}, "encoder.frozen: resnet18 is trained from the weights"),
        ({"name": "linear", "frozen": False}, "encoder.pretrained: linear does not start from them"),
        ({"pretrained": "/no/such"}, "encoder.pretrained: /no/such: no such file or folder"),
        ({"pretrained": None, "frozen": True}, "encoder.frozen: needs the weights of a network"),
    ],
)
def test_settings_that_do_not_go_together(network: Path, encoder: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolved(dataset="mosaics", method="fedavg", encoder={"pretrained": str(network), **encoder})


def test_a_network_for_pictures_does_not_take_features(network: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.pretrained: is a network for pictures, but .* has no pictures"):
        fedalc.train(data=small_dataset(), method="fedavg", encoder={"pretrained": str(network)}, rounds=1)


def test_a_network_for_texts_does_not_take_pictures_or_features(tmp_path: Path) -> None:
    """It was ignored without a word: the run trained a network of its own."""
    sentences = str(make_encoder(tmp_path / "sentences"))
    for keys in ({"dataset": "voc2012"}, {"dataset": "voc2012", "method": "fedavg"}):
        with pytest.raises(
            ConfigError, match=r"encoder\.pretrained: .*is a network for texts, but voc2012 has pictures"
        ):
            resolved(**keys, encoder={"pretrained": sentences})
    own = replace(MOSAICS, name="our pictures")
    with pytest.raises(ConfigError, match=r"encoder\.pretrained: .*for texts, but our pictures has pictures"):
        fedalc.train(data=own, method="fedalc-exact", rounds=2, encoder={"pretrained": sentences})
    with pytest.raises(ConfigError, match=r"text\.encoder: .*is a network for texts, but our pictures has pictures"):
        fedalc.train(data=own, method="fedalc-exact", rounds=2, text={"encoder": sentences})
    with pytest.raises(ConfigError, match=r"text\.encoder: .*is a network for texts, but .* has no texts"):
        fedalc.train(data=small_dataset(), method="fedavg", rounds=1, encoder={"pretrained": sentences})


# --- training ---


@pytest.mark.parametrize("method", ["fedalc-oneshot", "fedalc-exact", "fedaws", "ovr"])
def test_methods_on_features(network: Path, method: str) -> None:
    keys: dict[str, Any] = {"encoder": {"pretrained": str(network)}, "selection": {"every": 1}}
    keys |= {} if method in ("fedalc-oneshot", "ovr") else {"rounds": 2}
    run = fedalc.train(data=MOSAICS, method=method, **keys)
    assert set(run.metrics) >= {"P@1", "mAP"}
    images = MOSAICS.test.features
    rows = run.model.pictures.transform(images)
    np.testing.assert_array_equal(run.model.predict(images, 3)[0], run.model.predict(rows, 3)[0])
    assert run.model.picture_size == 32 and run.model.feature_count == 8


def test_the_network_sees_each_picture_once(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    rows = PictureFeatures._rows

    def counted(self: Any, weights: Any, images: Any, digests: Any) -> Any:
        seen.append(len(images))
        return rows(self, weights, images, digests)

    monkeypatch.setattr(PictureFeatures, "_rows", counted)
    keys: dict[str, Any] = {"encoder": {"pretrained": str(network)}, "rounds": 1, "selection": {"every": 1}}
    comparison = fedalc.compare(["fedavg", "fedalc", "fedalc-oneshot"], MOSAICS, **keys)
    assert seen == [60, 20], "once for all methods"
    assert len({run.settings.encoder.weights for run in comparison.runs}) == 1


def test_other_weights_than_those_of_the_settings_are_refused(network: Path) -> None:
    keys: dict[str, Any] = {"method": "fedalc-oneshot", "encoder": {"pretrained": str(network), "weights": "0" * 64}}
    with pytest.raises(ConfigError, match=r"encoder\.weights: .*has other weights"):
        fedalc.train(data=MOSAICS, **keys)


# --- a run folder ---


@pytest.mark.long
def test_the_search_and_predictions_on_picture_files(network: Path, tmp_path: Path) -> None:
    folder = _write_pictures(tmp_path / "mine")
    keys: dict[str, Any] = {"dataset": str(folder), "encoder": {"pretrained": str(network)}, "images": {"size": 32}}
    run = fedalc.train(**keys, folder=tmp_path / "run")
    assert run.result["tuning"]["metric"] == "mAP" and all(
        "mAP" in one["metrics"] for one in run.result["tuning"]["tried"]
    )
    assert run.settings.encoder.frozen
    assert (tmp_path / "run" / "contact-sheet.png").exists()
    again = fedalc.load_run(tmp_path / "run")
    assert again.settings.encoder.weights == run.model.pictures.digest
    out, moved = tmp_path / "out.csv", network.rename(tmp_path / "moved")
    picture = folder / "0.png"
    shutil.rmtree(tmp_path / "cache")
    how: dict[str, Any] = {"form": "csv", "out": out, "broken": "refuse", "sheet": None, "sheet_pictures": 1}
    with pytest.raises(ConfigError, match="is not in"):
        predict_file(tmp_path / "run", picture, Answer(2), device="cpu", **how)
    predict_file(tmp_path / "run", picture, Answer(2), device="cpu", pretrained=[str(moved)], **how)
    best = out.read_text().splitlines()[1].split(",")[2]
    run.model.pictures.look_in(moved)
    wanted = run.model.predict(read_pictures(picture, 32, fit="squeeze"), 1)[0]
    assert best == str(wanted[0, 0])
    assert run.evaluate(str(folder)).metrics.keys() >= {"P@1"}


def test_the_head_is_exported(network: Path, tmp_path: Path) -> None:
    """It takes features of the network, not pictures."""
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    keys: dict[str, Any] = {"method": "fedalc-oneshot", "encoder": {"pretrained": str(network)}}
    run = fedalc.train(data=MOSAICS, folder=tmp_path / "run", **keys)
    exported = export_onnx(tmp_path / "run", tmp_path / "head.onnx")
    assert exported.input == "features"
    rows = run.model.pictures.transform(MOSAICS.test.features)
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    scores = session.run(["scores"], {"features": rows.toarray().astype(np.float32)})[0]
    np.testing.assert_array_equal(np.argmax(scores, axis=1), run.model.predict(MOSAICS.test.features, 1)[0][:, 0])


def test_predict_of_another_model_has_no_use_for_a_network(tmp_path: Path) -> None:
    fedalc.train(data=small_dataset(), method="fedalc-oneshot", folder=tmp_path / "run")
    how: dict[str, Any] = {"form": "csv", "out": None, "broken": "refuse", "sheet": None, "sheet_pictures": 1}
    with pytest.raises(FedalcError, match="--pretrained: this model was not trained on the features"):
        predict_file(tmp_path / "run", "x.txt", Answer(2), device="cpu", pretrained=["x"], **how)


def test_parts_of_a_split_keep_their_pictures(network: Path) -> None:
    from fedalc.data.pretrained.apply import with_features
    from fedalc.data.pretrained.pictures import Views

    made = with_features(MOSAICS, PictureFeatures.open([network], Views(32)))
    part = made.train.rows(np.array([5, 2]))
    assert part.pictures is not None and part.pictures.names == MOSAICS.train.features[[5, 2]].names
    assert made.fingerprint == replace(made, pictures=None).fingerprint


def _write_pictures(folder: Path) -> Path:
    """Write mosaics that are wider than high, so that a centre square would lose something."""
    from PIL import Image

    folder.mkdir()
    names, split = MOSAICS.label_names, MOSAICS.train
    for part, rows in (("train", range(45)), ("test", range(45, 60))):
        lines = ["picture,labels"]
        for row in rows:
            Image.fromarray(split.features[row].pixels()[0]).resize((48, 32)).save(folder / f"{row}.png")
            lines.append(f"{row}.png,{'|'.join(names[label] for label in split.labels[row].indices)}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_persons_are_verified_and_enrolled_by_pictures(network: Path, tmp_path: Path) -> None:
    """Colours stand for faces."""
    rng, colours = np.random.default_rng(0), ((230, 20, 20), (20, 200, 20), (20, 20, 220), (220, 220, 20))
    for person in range(4):
        (tmp_path / f"person {person}").mkdir()
        for number in range(40):
            pixels = np.clip(rng.normal(colours[person], 25, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"person {person}" / f"{number}.png")
    lines = [f"person {person}/{number}.png,p{person}" for person in range(3) for number in range(40)]
    (tmp_path / "train.csv").write_text("picture,labels\n" + "\n".join(lines) + "\n")
    (tmp_path / "test.csv").write_text("picture,labels\n" + "\n".join(lines[::20]) + "\n")
    run = tmp_path / "run"
    given = {"encoder": {"pretrained": str(network)}, "method": "fedncm", "folder": run, "verbose": False}
    fedalc.train(tmp_path, task="verification", **given)
    own, other = (verify_file(run, str(tmp_path / f"person {person}"), claim="p0", far=0.1) for person in (0, 1))
    assert len(own) == len(other) == 40 and own.scores.min() > other.scores.max()
    assert "p3 is enrolled with 40 records: 4 persons" in enrol_file(run, "p3", str(tmp_path / "person 3"), None)
    own, other = (verify_file(run, str(tmp_path / f"person {person}"), claim="p3", far=0.1) for person in (3, 1))
    assert own.scores.min() > other.scores.max()
