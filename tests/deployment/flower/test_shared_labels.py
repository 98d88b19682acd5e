"""Parties with the same labels: the deployment of a folder per party gives the model of its simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.shared_labels import HOLDERS
from fedalc.deployment.twin import in_one_process
from fedalc.evaluation.evaluate import evaluate
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.runs.result import read_result
from tests.data.clinics import HELD, NAMES, union, write_clinics
from tests.data.test_parties import load_dataset
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, ROUNDS, RUN_ID, SETTINGS, asked, kept_out, notes, overrides, run

PARTIES = {3: "east", 101: "north", 7: "south"}  # node → party; the order is that of names, not of nodes
SHARED = {"clients": "parties", "dtype": "float64"}


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    return write_clinics(tmp_path / "clinics", union())


@pytest.fixture
def nodes(tmp_path: Path, clinics: Path) -> dict[int, dict[str, Any]]:
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    common = {"key": str(key), "fewest": 1}
    return {node: {"data": str(clinics / party), "client": party, **common} for node, party in PARTIES.items()}


def for_three(method: str, settings: dict[str, Any], **config: Any) -> dict[str, Any]:
    return asked(method, SHARED | settings, **{"num-parties": 3, **config})


def assert_equal(
    tmp_path: Path, nodes: dict[int, dict[str, Any]], method: str, settings: dict[str, Any], rounds: int = ROUNDS
) -> None:
    found = run(LocalGrid(nodes), tmp_path / "run", for_three(method, settings, **{"num-server-rounds": rounds}))
    literal_settings = experiment(
        {"method": method, "engine": "clients", "rounds": rounds}, overrides=overrides(SHARED | settings)
    )
    data = load_dataset(tmp_path / "clinics")
    literal = in_one_process(literal_settings, data.train, data.label_names, nodes[7]["key"], RUN_ID)
    start = [parameter.clone() for parameter in literal.model.theta]
    for _ in range(1 if literal.method.one_round else rounds):
        literal.run_round()
    expected = literal.averaged_model()
    moved = max((before - after).abs().max().item() for before, after in zip(start, expected.theta, strict=True))
    assert moved > 1e-3, "nothing was learnt"
    for ours, theirs in zip([*found.model.theta, found.model.W], [*expected.theta, expected.W], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


SQUARE = LINEAR | {"client.label_power": 0.3}
LOCAL = {"client.epochs": 2, "client.batch_size": 3, "server.participation": 0.6}
SGD: dict[str, Any] = {"server.optimizer": "sgd", "server.aggregation": "mean"}
SGD |= {"server.learning_rate": 0.5, "client.learning_rate": 0.5}
LOSS = LINEAR | {"embeddings.start": "by-frequency", "server.ridge": 0.3, "encoder.constant": 0.7}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", SETTINGS),
    "fedavg, some clients, minibatches": ("fedavg", SETTINGS | LOCAL),
    "fedalc": ("fedalc", SETTINGS),
    "fedalc, clip": ("fedalc", SETTINGS | {"server.aggregation": "clip"}),
    "fedaws, median": ("fedaws", SETTINGS | {"server.aggregation": "median"}),
    "exact, cg": ("fedalc-exact", SQUARE | {"server.optimizer": "cg"}),
    "exact, expected sizes": ("fedalc-exact", SQUARE | {"server.optimizer": "cg", "client.set_size": "expected"}),
    "exact, newton": ("fedalc-exact", LOSS | {"client.loss": "logistic", "server.optimizer": "newton"}),
    "exact, sgd": ("fedalc-exact", LOSS | SGD | {"client.loss": "softmax"}),
    "oneshot": ("fedalc-oneshot", SQUARE),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_the_simulation_of_a_folder_is_its_deployment(
    tmp_path: Path, nodes: dict[int, dict[str, Any]], case: str
) -> None:
    assert_equal(tmp_path, nodes, *CASES[case])


def test_who_is_in(tmp_path: Path, nodes: dict[int, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    run(LocalGrid(nodes), tmp_path / "run", for_three("fedalc-oneshot", SQUARE))
    assert "3 parties with 7 labels (4 at several parties)" in capsys.readouterr().out
    census = Census.load(tmp_path / "run")
    assert census is not None and census.roster.parties == tuple(PARTIES.values())
    assert len(census.roster.counts) == sum(map(len, HELD.values()))
    assert {int(h) for holders in census.holders.values() for h in holders} == {1, 2}
    result = read_result(tmp_path / "run")
    assert (result["parties"], result["clients"]) == (3, 11)


def test_without_the_setting_shared_labels_are_left_out(
    tmp_path: Path, nodes: dict[int, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(LocalGrid(nodes), tmp_path / "run", for_three("fedalc-oneshot", SQUARE | {"clients": "labels"}))
    said = capsys.readouterr().out
    assert 'set clients = "parties"' in said and "claim" in said
    census = Census.load(tmp_path / "run")
    assert census is not None and census.holders == {}
    assert census.roster.parties == ("east", "south")  # north claims labels of both


def joined(clinics: Path, key: str, share: float = 0.3) -> tuple[Split, np.ndarray]:
    """Return all records in one place, with labels in the order of pseudonyms, and which of them are held out."""
    data = load_dataset(clinics)
    hasher, whole = Hasher("hmac-sha256", Key.read(key), run=RUN_ID), data.train.in_one_place
    order = byte_order(hasher.labels(data.label_names))
    return Split(whole.features, whole.labels[:, order]), kept_out(key, whole.features, share)


def test_parties_measure_what_one_place_would(tmp_path: Path, clinics: Path, nodes: dict[int, dict[str, Any]]) -> None:
    """P@k and nDCG@k: a hit that two parties see counts once."""
    config = {"held-out-share": 0.3, "num-server-rounds": 4}
    asking = SQUARE | {"server.optimizer": "cg", "selection.every": 4, "encoder.features": "raw"}
    found = run(LocalGrid(nodes), tmp_path / "run", for_three("fedalc-exact", asking, **config))
    whole, out = joined(clinics, nodes[7]["key"])
    expected = evaluate(found.model, whole.rows(np.flatnonzero(out)), found.held)
    measured = read_result(tmp_path / "run")["metrics"]
    assert set(measured) == {f"party {name}@{k}" for name in ("P", "nDCG") for k in (1, 3, 5)}
    for name, value in measured.items():
        assert value == pytest.approx(expected[name.removeprefix("party ")], rel=1e-12), name
    assert 0 < measured["party P@1"] < 100


@pytest.mark.long
def test_a_run_is_resumed(tmp_path: Path, nodes: dict[int, dict[str, Any]]) -> None:
    asking = for_three("fedalc-exact", SQUARE | {"server.optimizer": "cg"}, **{"held-out-share": 0.3})
    whole = run(LocalGrid(nodes), tmp_path / "whole", asking)
    grid = LocalGrid(nodes)

    def stop(message: Message) -> None:
        if message.metadata.group_id == "3":
            raise KeyboardInterrupt

    grid.before_push = stop
    with pytest.raises(KeyboardInterrupt):
        run(grid, tmp_path / "run", asking)
    again = run(LocalGrid(nodes), tmp_path / "run", asking | {"resume": True})
    torch.testing.assert_close(again.model.theta, whole.model.theta, rtol=1e-10, atol=1e-12)


def test_a_server_may_not_change_the_numbers_of_holders(tmp_path: Path, nodes: dict[int, dict[str, Any]]) -> None:
    """Other parts would be another answer, and the difference shows the records in which they differ."""
    grid = LocalGrid(nodes)

    def change(message: Message) -> None:
        if message.metadata.group_id == "2" and message.metadata.dst_node_id == 7:
            from fedalc.deployment.flower.wire import pack, unpack

            holders = unpack(message.content, HOLDERS, {HOLDERS: ("uint32", (None,))})[HOLDERS].copy()
            holders[0] += 1
            message.content[HOLDERS] = pack({HOLDERS: holders})

    grid.before_push = change
    asking = LOSS | SGD | {"client.loss": "softmax"}
    run(grid, tmp_path / "run", for_three("fedalc-exact", asking, **{"min-parties": 2}))
    assert (2, "south", "refused the server's message: sends other numbers of holders than before in this run") in [
        (t, party, why.removeprefix("error: ")) for t, party, why in notes(tmp_path / "run")
    ]


def test_two_parties_with_the_same_data(tmp_path: Path) -> None:
    """Their answers are equal, which is no replay; after a restart their names tell them apart."""
    write_clinics(tmp_path / "clinics", union(), {"east": range(7), "north": range(7)})
    for name in ("train.txt", "labels.txt"):
        (tmp_path / "clinics" / "north" / name).write_bytes((tmp_path / "clinics" / "east" / name).read_bytes())
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    nodes = {
        node: {"data": str(tmp_path / "clinics" / party), "client": party, "key": str(key), "fewest": 1}
        for node, party in {1: "east", 2: "north"}.items()
    }
    nodes_later = {11: nodes[2], 12: nodes[1]}
    grid = LocalGrid(nodes)

    def restart(message: Message) -> None:
        if message.metadata.group_id == "2" and message.metadata.message_type == "train":
            grid.nodes = nodes_later

    grid.before_push = restart
    settings = SETTINGS | {"server.aggregation": "mean"}
    run(grid, tmp_path / "run", asked("fedavg", SHARED | settings, **{"num-parties": 2}))
    later = {node for node, kind, t in grid.asked if kind == "train" and t == "3"}
    assert later == {11, 12}
    refused = [why for _, _, why in notes(tmp_path / "run") if "another party sent" in why or "no party" in why]
    assert refused == []


def test_the_names_of_labels(tmp_path: Path, nodes: dict[int, dict[str, Any]]) -> None:
    """A label has a name if one of its parties shares names."""
    nodes[101]["share-names"] = True
    found = run(LocalGrid(nodes), tmp_path / "run", for_three("fedalc-oneshot", SQUARE))
    assert {name for name in found.label_names if name in NAMES} == {NAMES[u] for u in HELD["north"]}


def test_the_setting_reaches_the_parties(tmp_path: Path, nodes: dict[int, dict[str, Any]]) -> None:
    grid = LocalGrid(nodes)
    grid.keeps = True
    run(grid, tmp_path / "run", for_three("fedalc-oneshot", SQUARE))
    task = grid.pushed[0].content["task"]
    assert isinstance(task, ConfigRecord) and '"clients": "parties"' in str(task["settings"])


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["exact, cg", "exact, newton", "oneshot"])
def test_by_secure_sums_too(tmp_path: Path, nodes: dict[int, dict[str, Any]], case: str) -> None:
    method, settings = CASES[case]
    models = [
        run(LocalGrid(nodes), tmp_path / secure, for_three(method, settings, **{"secure-sums": secure})).model
        for secure in ("off", "on")
    ]
    for plain, masked in zip(models[0].theta, models[1].theta, strict=True):
        torch.testing.assert_close(masked, plain, rtol=1e-6, atol=1e-8)
