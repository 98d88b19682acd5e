"""Fewer bytes on the wire: parties' answers give the model of a simulation, and its ledger is what travels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.wire import BadMessage, pack, unpack_parts
from fedalc.deployment.twin import in_one_process
from fedalc.training.federated import FederatedTraining
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import (
    LINEAR,
    NAMES,
    ROUNDS,
    RUN_ID,
    SETTINGS,
    Nodes,
    asked,
    fails,
    in_round,
    notes,
    overrides,
    run,
)

OWN: dict[str, Any] = {"compression.rows": "own"}
CG: dict[str, Any] = {**LINEAR, "server.optimizer": "cg", "embeddings.start": "by-frequency"}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "cg": ("fedalc-exact", CG),
    "cg with a constant": ("fedalc-exact", CG | {"encoder.constant": 0.7}),
    "one round": ("fedalc-oneshot", {**LINEAR, "embeddings.start": "by-frequency"}),
    "mlp": ("fedavg", SETTINGS | {"server.participation": 0.6}),
    "rows of W": ("fedalc", SETTINGS),
}


def rounded_all(kind: str) -> dict[str, Any]:
    return OWN | {"compression.up": kind, "compression.down": kind}


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


def twin(method: str, settings: dict[str, Any], train: Split, folder: Path, key: str) -> FederatedTraining:
    """Return the same training in one process, with the same parties."""
    census = Census.load(folder)
    assert census is not None
    asking = {"method": method, "engine": "clients", "rounds": ROUNDS}
    literal = in_one_process(
        experiment(asking, overrides=overrides(settings)), train, NAMES, key, RUN_ID, census.roster.owner
    )
    for _ in range(1 if literal.method.one_round else ROUNDS):
        literal.run_round()
    return literal


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["full", "bfloat16", "int8"])
@pytest.mark.parametrize("training", TRAININGS)
def test_equal_to_a_simulation(tmp_path: Path, train: Split, parties: Nodes, training: str, kind: str) -> None:
    """The model and the bytes, also where parties round: they draw as a simulation does. In float64, so that no draw
    falls to another side."""
    method, settings = TRAININGS[training]
    settings = settings | rounded_all(kind) | {"dtype": "float64"}
    if method == "fedalc-oneshot":
        settings.pop("compression.down")
    found = run(LocalGrid(parties), tmp_path / "run", asked(method, settings)).model
    wanted = twin(method, settings, train, tmp_path / "run", parties[7]["key"])
    expected = wanted.averaged_model()
    for ours, theirs in zip([*found.theta, found.W], [*expected.theta, expected.W], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    result = result_of(tmp_path / "run")
    once = 0 if wanted.knowledge is None else wanted.knowledge.bytes_up
    census = Census.load(tmp_path / "run")
    assert census is not None
    told = 0 if census.knowledge is None else census.knowledge.bytes_up
    assert result["bytes_up"] - told == wanted.ledger.up - once


@pytest.mark.parametrize("kind", ["full", "int8"])
def test_the_ledger_is_what_travels(tmp_path: Path, parties: Nodes, kind: str) -> None:
    wide = LINEAR | {"encoder.dim": 1000, "server.optimizer": "sgd", "server.learning_rate": 1.0}
    grid = LocalGrid(parties)
    run(grid, tmp_path / "run", asked("fedavg-fixed", wide | rounded_all(kind)))
    result = result_of(tmp_path / "run")
    for ledger, wire in (("bytes_down", grid.bytes_down), ("bytes_up", grid.bytes_up)):
        assert result[ledger] <= sum(wire.values()) <= 1.1 * result[ledger] + 60_000


def test_a_party_need_not_say_which_features_it_has(tmp_path: Path, parties: Nodes) -> None:
    """It gets all rows, and the model is the same."""
    shy = {node: config | {"all-rows": True} for node, config in parties.items()}
    grids = LocalGrid(parties), LocalGrid(shy)
    models = [run(grid, tmp_path / str(i), asked("fedalc-exact", CG | OWN)).model for i, grid in enumerate(grids)]
    torch.testing.assert_close(models[0].theta[0], models[1].theta[0], rtol=1e-5, atol=1e-6)
    for name in ("bytes_up", "bytes_down"):
        assert result_of(tmp_path / "0")[name] < result_of(tmp_path / "1")[name]


def answers_with(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Message, Message], Message]:
    def tamper(asked: Message, reply: Message) -> Message:
        arrays = {key: array for key, array in unpack_parts(reply.content, "change", 1)[0].items()}
        change(arrays)
        reply.content["change"] = pack({f"0.{name}": array for name, array in arrays.items()})
        return reply

    return tamper


BAD: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    "other rows": (lambda a: a.update(rows=np.array([3], np.int32)), "should have"),
    "rows beyond": (lambda a: a.update(rows=np.array([99], np.int32)), "beyond"),
    "columns beyond": (lambda a: a.update(columns=np.array([99], np.int32)), "beyond"),
    "no rows": (lambda a: a.pop("rows"), "rows"),
    "no scales": (lambda a: a.pop("scales"), "not int8"),
    "other numbers": (lambda a: a.update(values=a["values"].astype(np.float32)), "not int8"),
    "not finite": (lambda a: a.update(scales=np.full(len(a["scales"]), np.inf, np.float32)), "not finite"),
    "an array of its own": (lambda a: a.update(more=np.zeros(1)), "should not have"),
    "a type of its own": (lambda a: a.update(values=np.zeros((1, 1), np.int64)), "int64"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("what", BAD)
def test_a_wrong_answer_is_left_out(tmp_path: Path, parties: Nodes, what: str) -> None:
    change, problem = BAD[what]
    grid = LocalGrid(parties)
    grid.tampering[55] = in_round(2, answers_with(change))
    settings = LINEAR | rounded_all("int8") | {"server.optimizer": "sgd", "server.learning_rate": 1.0}
    run(grid, tmp_path / "run", asked("fedavg-fixed", settings))
    ((at, party, why),) = notes(tmp_path / "run")
    assert (at, party) == (2, "party 55") and problem in why


class LeavesOut(LocalGrid):
    """A server that sends too few rows of θ."""

    def push_messages(self, messages: Any) -> Any:
        (message,) = messages
        content: RecordDict = message.content
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            (part,) = unpack_parts(content, "theta", 1)
            columns = len(part["values"][0])
            content["theta"] = pack(
                {
                    "0.rows": np.array([0], np.int32),
                    "0.columns": part["columns"],
                    "0.values": np.ones((1, columns), "f4"),
                }
            )
        return super().push_messages([message])


def test_a_party_refuses_theta_without_rows_that_it_needs(tmp_path: Path, parties: Nodes) -> None:
    """Its change would be right for another θ than the server's."""
    settings = LINEAR | OWN | {"server.optimizer": "sgd", "server.learning_rate": 1.0}
    with fails(TooFew):
        run(LeavesOut(parties), tmp_path / "run", asked("fedavg-fixed", settings))
    refused = [why for at, _, why in notes(tmp_path / "run") if at == 2]
    assert len(refused) == 4 and all("leaves out rows of θ that this party's features need" in why for why in refused)


def test_there_have_to_be_arrays() -> None:
    with pytest.raises(BadMessage, match="no change"):
        unpack_parts(RecordDict(), "change", 1)
    assert unpack_parts(RecordDict({"change": ArrayRecord()}), "change", 2) == [{}, {}]
