"""One real party per enrolled person: verification gives the same figures as a simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.identities import IdentitiesSize, make_identities
from fedalc.deployment.local import write_party
from fedalc.labels.collection.keys import Key
from tests.data.conftest import real_data
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import asked, run

SMALL = make_identities(IdentitiesSize(enrolled=6, strangers=3, train=8, test=4))
FIGURES = ("EER", "EER-others", "EER-strangers", "TPR@FAR0.01", "P@1")


def deployed(tmp_path: Path, data: Dataset, method: str, **settings: Any) -> dict[str, Any]:
    """Run a party for each person and return result.json."""
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    nodes = {}
    for person, name in enumerate(data.label_names):
        file = write_party(tmp_path / f"party {person}", data.train, [person], [name])
        nodes[person + 1] = {"data": str(file), "key": str(key), "client": name, "fewest": 1, "share-names": True}
    assert data.strangers is not None
    names = np.array(data.label_names)
    np.savez(
        tmp_path / "held-out.npz",
        X=np.vstack([data.test.features.toarray(), data.strangers.features.toarray()]),
        labels=np.concatenate([names[data.test.labels.indices], ["nobody"] * len(data.strangers)]),
    )
    rounds = settings.pop("rounds", 3)
    config = asked(method, {"task": "verification", **settings}, **{"held-out": str(tmp_path / "held-out.npz")})
    config["num-server-rounds"] = rounds
    run(LocalGrid(nodes), tmp_path / "run", config | {"num-parties": len(nodes)})
    result: dict[str, Any] = json.loads((tmp_path / "run" / "result.json").read_text())
    return result


def simulated(data: Dataset, method: str, **keys: Any) -> dict[str, Any]:
    selection = {"validation": 0.0, "calibrate": False}
    return dict(fedalc.train(data, task="verification", method=method, selection=selection, **keys).result)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["verification"]["trials"] == theirs["verification"]["trials"]
    figures = [name for name in FIGURES if name in theirs["metrics"]]
    assert len(figures) >= 4
    for name in figures:
        assert ours["metrics"][name] == pytest.approx(theirs["metrics"][name], abs=0.05), name


@pytest.mark.parametrize("method", ["fedncm", "fedalc-plda"])
def test_a_party_for_each_person(tmp_path: Path, method: str) -> None:
    dim = {"fedncm": 6, "fedalc-plda": 11}[method]
    result = deployed(tmp_path, SMALL, method, **{"encoder.dim": dim})
    assert (result["parties"], result["clients"]) == (6, 6)
    assert_same(result, simulated(SMALL, method, encoder={"dim": dim}))


@pytest.mark.long
def test_in_several_rounds(tmp_path: Path) -> None:
    """Pseudonyms give W another order, so that another start is drawn: the parties learn, and every figure is there."""
    result = deployed(tmp_path, SMALL, "fedalc", **{"encoder.name": "linear", "encoder.dim": 16, "rounds": 60})
    assert result["verification"]["trials"] == {"genuine": 24, "others": 120, "strangers": 72}
    assert result["metrics"]["EER"] < 40


@pytest.mark.long
def test_forty_real_speakers(tmp_path: Path) -> None:
    data = fedalc.load_dataset("speakers60", real_data("speakers60").parent)
    data = replace(data, label_names=tuple(f"speaker {name}" for name in data.label_names))
    for method, dim in (("fedncm", 40), ("fedalc-plda", 79)):
        folder = tmp_path / method
        folder.mkdir()
        result = deployed(folder, data, method, **{"encoder.dim": dim})
        assert result["parties"] == 40
        assert_same(result, simulated(data, method, encoder={"dim": dim}))
    assert result["metrics"]["TPR@FAR0.001"] > 97
