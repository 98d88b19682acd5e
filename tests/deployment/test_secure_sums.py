"""Secure sums over real processes with TLS: the result is that of one process, bit for bit, also when parties die."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from fedalc.data.dataset import Dataset
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.deployment.flower.sum_messages import RECORD
from fedalc.deployment.local import LocalDeployment, run_to_its_end, split_by_labels
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel
from tests.deployment.flower.local_grid import LocalGrid, Tamper
from tests.deployment.flower.problem import run

pytestmark = pytest.mark.deployment

PATIENCE = 3600.0  # seconds for a run, on a machine that does other things too
DIES_AT = {"a": "keys", "b": "shares", "c": "masked", "d": "agree", "e": "unmask"}
IN_ROUND = {"a": 1, "b": 1, "c": 1, "d": 2, "e": 2}
"""Of eight parties five are left for the first sum, and all of these are in the second. It takes three to unmask it."""


@pytest.fixture(scope="module")
def data() -> Dataset:
    return make_demo(DemoSize(train=300, test=20, words=200))


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalDeployment]:
    """With one thread in every process: the last bits of a product depend on their number."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with LocalDeployment(tmp_path) as local:
        local.start_server()
        yield local
    torch.set_num_threads(threads)
    assert not local.processes


def start(local: LocalDeployment, data: Dataset, names: str, dying: Mapping[str, str]) -> None:
    """Start parties; those that are `dying` stop at that step of a sum, and wait there to be killed."""
    for name, (held, labels) in zip(names, split_by_labels(data.train, data.label_names, len(names)), strict=True):
        local.add_party(name, held, labels)
        environment = None
        if name in dying:
            path = os.pathsep.join([str(Path(__file__).parent / "poison"), os.environ.get("PYTHONPATH", "")])
            stop = f"{IN_ROUND[name]} {dying[name]} {local.folder / name}.stopped"
            environment = {"FEDALC_TEST_STOP": stop, "PYTHONPATH": path}
        local.start_party(name, environment=environment, wait=False)
    for name in names:
        local.wait_connected(name)


OPTIONS = ("--held-out-share", "0", "--run-id", "sums", "--set", "dtype=float64", "--secure-sums")


def dead_from(in_round: int, step: str) -> Tamper:
    """No answer at this step of a sum, nor ever after."""
    dead = []

    def tamper(question: Message, reply: Message) -> Message | None:
        asked = question.metadata
        steps = question.content[RECORD] if asked.message_type == "query.sum" else ()
        reached = asked.message_type == "train" if step == "masked" else step in steps
        if reached and asked.group_id == str(in_round):
            dead.append(step)
        return None if dead else reply

    return tamper


def in_one_process(
    local: LocalDeployment, names: str, folder: Path, dying: Mapping[str, str] | None = None, **config: object
) -> Model:
    """The same parties' data and key, with the real client app and server app in this process."""
    grid = LocalGrid(
        {
            number: {"data": str(local.folder / name), "key": str(local.key), "client": name}
            for number, name in enumerate(names, 1)
        }
    )
    for name, step in (dying or {}).items():
        grid.tampering[names.index(name) + 1] = dead_from(IN_ROUND[name], step)
    options = {"held-out-share": 0.0, "run-id": "sums", "set": "dtype=float64", "num-parties": len(names)}
    return run(grid, folder, options | {"secure-sums": "on"} | config).model


@pytest.mark.parametrize("by", ["join", "sums"])
def test_three_parties_give_the_same_bits_as_one_process(deployment: LocalDeployment, data: Dataset, by: str) -> None:
    """With set sizes from the join of digests, and from masked counts."""
    start(deployment, data, "abc", {})
    words = ["--method", "fedalc-oneshot", "--parties", "3", *OPTIONS, "--out", str(deployment.folder / "runs")]
    process = deployment.start_run(*words, "--collection", by, "--name", "sums")
    assert run_to_its_end(process, lambda line: None, PATIENCE) == 0, process.said()
    assert "secure sums: the server learns sums over at least 3 of 3 parties" in process.said()
    found = TrainedModel.load(deployment.folder / "runs" / "sums" / "model").model
    twin = in_one_process(deployment, "abc", deployment.folder / "twin", method="fedalc-oneshot", collection=by)
    assert all(map(torch.equal, found.theta, twin.theta))
    assert not (deployment.folder / "runs" / "sums" / "parties.jsonl").exists()


@pytest.mark.skipif("FEDALC_KILL_TEST" not in os.environ, reason="about twenty minutes: make kill-test")
def test_a_party_killed_at_each_step(deployment: LocalDeployment, data: Dataset) -> None:
    """Three of eight parties die in round 1, before their vectors have come, and two in round 2, after."""
    names = "abcdefgh"
    start(deployment, data, names, DIES_AT)
    words = ["--method", "fedavg-fixed", "--rounds", "2", "--parties", "8", "--min-parties", "3", *OPTIONS]
    words += ["--round-timeout", "120", "--out", str(deployment.folder / "runs"), "--name", "killed"]
    process, killed = deployment.start_run(*words), []

    def watch(line: str = "") -> None:
        for name in DIES_AT:
            if name not in killed and Path(f"{deployment.folder / name}.stopped").exists():
                deployment.parties[name].kill()
                killed.append(name)

    def all_killed() -> bool:
        watch()
        return len(killed) == len(DIES_AT) or not process.alive

    process.wait_for(all_killed, PATIENCE, "through with all of them")
    assert run_to_its_end(process, lambda line: None, PATIENCE) == 0, process.said()
    assert sorted(killed) == sorted(DIES_AT)
    lines = (deployment.folder / "runs" / "killed" / "parties.jsonl").read_text(encoding="utf-8").splitlines()
    left_out = [(note["round"], note["party"]) for note in map(json.loads, lines) if note["what"] == "left out"]
    assert {(IN_ROUND[name], name) for name in DIES_AT} <= set(left_out)
    assert not {"f", "g", "h"} & {party for _, party in left_out}
    found = TrainedModel.load(deployment.folder / "runs" / "killed" / "model").model
    rounds = {"method": "fedavg-fixed", "num-server-rounds": 2, "min-parties": 3, "round-timeout": 2.0}
    twin = in_one_process(deployment, names, deployment.folder / "twin", DIES_AT, **rounds)
    assert all(map(torch.equal, found.theta, twin.theta))
