"""Names to pseudonyms and back, with the parties' key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedalc.cli.app import app
from fedalc.config.schema import EncoderSettings
from fedalc.errors import DataError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.pseudonyms import pseudonyms, read_names
from fedalc.models.encoders import make_encoder
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel

NAMES = ["flu", "a cold", "gout"]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    Key.fresh().write(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def names(tmp_path: Path) -> Path:
    (tmp_path / "names.txt").write_text("17\tflu\na cold\n\ngout\n", encoding="utf-8")
    return tmp_path / "names.txt"


def model_of(labels: tuple[str, ...]) -> TrainedModel:
    settings = EncoderSettings(name="linear", dim=4)
    encoder = make_encoder(5, settings, torch.Generator().manual_seed(0))
    return TrainedModel(Model(encoder, torch.eye(len(labels), 4)), settings, labels, np.ones(len(labels), dtype=bool))


def test_labels_are_listed_as_the_server_knows_them(key: Path, names: Path) -> None:
    expected = pseudonyms(Hasher("hmac-sha256", Key.read(key)), NAMES)
    result = CliRunner().invoke(app, ["key", "labels", str(key), str(names)])
    assert result.output.splitlines() == expected


def test_a_model_gets_its_names(tmp_path: Path, key: Path, names: Path) -> None:
    flu, _, gout = pseudonyms(Hasher("hmac-sha256", Key.read(key)), NAMES)
    model_of((gout, "ff" * 16, flu)).save(tmp_path / "run" / "model")
    out = tmp_path / "named"
    result = CliRunner().invoke(
        app, ["key", "name-model", str(tmp_path / "run"), str(key), str(names), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert TrainedModel.load(out).label_names == ("gout", "ff" * 16, "flu")
    assert "named 2 of 3 labels" in result.output


def test_another_key_is_noticed_and_nothing_is_written(tmp_path: Path, key: Path, names: Path) -> None:
    Key.fresh().write(tmp_path / "other")
    model_of(tuple(pseudonyms(Hasher("hmac-sha256", Key.read(tmp_path / "other")), NAMES))).save(tmp_path / "model")
    out = tmp_path / "named"
    result = CliRunner().invoke(
        app, ["key", "name-model", str(tmp_path / "model"), str(key), str(names), "--out", str(out)]
    )
    assert result.exit_code != 0 and "check the key" in str(result.exception)
    assert not out.exists()


@pytest.mark.parametrize("text", ["", "flu\nflu\n"])
def test_names_that_are_no_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"names\.txt"):
        read_names(tmp_path / "names.txt")
