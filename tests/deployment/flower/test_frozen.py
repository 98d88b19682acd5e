"""Parties with pictures, on the features of a frozen network of which each has its own copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.data.images.images import Images
from fedalc.data.pretrained.apply import features_of
from fedalc.data.pretrained.pictures import PictureFeatures, Views
from tests.data.pretrained.networks import save_resnet
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import Nodes, asked, literal_twin, notes, overrides, run, write_parties
from tests.deployment.flower.test_party import every_byte
from tests.problems import random_split

pytestmark = pytest.mark.long

pytest.importorskip("transformers")

SIDE, NODE = 32, 7
SETTINGS: dict[str, Any] = {"encoder.name": "linear", "encoder.dim": 8, "encoder.constant": 1.0, "images.size": SIDE}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pictures() -> Split:
    labels = random_split(40, 2, 7, seed=5, per_instance=7).labels
    labels = labels[np.flatnonzero(labels.getnnz(axis=1))]
    pixels = np.random.default_rng(3).integers(0, 256, (labels.shape[0], SIDE, SIDE, 3), dtype=np.uint8)
    return Split(Images(pixels, [str(row) for row in range(len(pixels))]), labels)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_resnet(tmp_path / "weights of the server")
    return tmp_path / "weights of the server"


@pytest.fixture
def clinics(tmp_path: Path, pictures: Split, weights: Path) -> Nodes:
    shutil.copytree(weights, tmp_path / "copy")  # elsewhere
    (tmp_path / "clinics").mkdir()
    nodes = write_parties(tmp_path / "clinics", pictures)
    return {node: {**config, "size": SIDE, "pretrained": str(tmp_path / "copy")} for node, config in nodes.items()}


@pytest.mark.parametrize("method", ["fedalc-oneshot", "fedaws"])
def test_the_same_as_in_one_process(
    tmp_path: Path, pictures: Split, weights: Path, clinics: Nodes, method: str
) -> None:
    settings = SETTINGS | {"dtype": "float64", "encoder.pretrained": str(weights)}
    if method == "fedaws":
        settings |= {"server.aggregation": "mean"}
    rounds = 1 if method == "fedalc-oneshot" else 2
    grid = LocalGrid(clinics)
    grid.keeps = True
    found = run(grid, tmp_path / "run", asked(method, settings, **{"num-server-rounds": rounds}))
    features = features_of(pictures, PictureFeatures.open([weights], Views(SIDE)))
    keys = {"method": method, "engine": "clients"}
    literal = literal_twin(experiment(keys, overrides=overrides(settings)), features, clinics[NODE]["key"])
    for _ in range(rounds):
        literal.run_round()
    wanted = literal.averaged_model()
    assert max(parameter.abs().max().item() for parameter in wanted.theta) > 1e-3, "nothing was learnt"
    for one, other in zip([*found.model.theta, found.model.W], [*wanted.theta, wanted.W], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    assert sum(parameter.numel() for parameter in found.model.theta) == 9 * found.encoder.dim, "θ is the head alone"
    assert b"weights of the server" not in every_byte(grid, tmp_path / "nothing"), "the server's folder is told nobody"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    network = sum(file.stat().st_size for file in weights.glob("*.safetensors"))
    assert result["bytes_down"] < network * len(clinics)
    labels, _ = found.predict(pictures.features[:3], 2)  # the server's model reads pictures
    assert labels.shape == (3, 2) and found.picture_size == SIDE


def test_parties_refuse_other_weights_and_say_which(tmp_path: Path, weights: Path, clinics: Nodes) -> None:
    save_resnet(tmp_path / "other", seed=1)
    clinics[NODE]["pretrained"] = str(tmp_path / "other")
    del clinics[9]["pretrained"]
    settings = SETTINGS | {"encoder.pretrained": str(weights)}
    run(LocalGrid(clinics), tmp_path / "run", asked("fedalc-oneshot", settings, **{"num-parties": 2}))
    said = " ".join(str(note) for note in notes(tmp_path / "run"))
    ours = PictureFeatures.open([weights], Views(SIDE)).digest[:12]
    theirs = PictureFeatures.open([tmp_path / "other"], Views(SIDE)).digest[:12]
    assert f"weights {ours}…, and this party's weights are {theirs}…" in said
    assert f"weights {ours}…, and this party has none (--pretrained)" in said
