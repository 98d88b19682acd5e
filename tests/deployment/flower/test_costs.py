"""The ledger's bytes equal those on the wire, and memory does not grow with the number of parties."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from fedalc.data.dataset import Split
from fedalc.deployment.flower.answers import RECORD
from fedalc.deployment.local import write_party
from fedalc.labels.collection.keys import Key
from tests.deployment.flower.local_grid import LocalGrid, over_the_wire
from tests.deployment.flower.problem import LINEAR, NAMES, OWNED, SETTINGS, Nodes, asked, in_round, run

OVERHEAD = 0.05  # of the ledger's figure, where θ has 200 kB: names, shapes, hashes and settings of each message
LARGE = SETTINGS | {"encoder.embedding": 100, "encoder.hidden": [400], "encoder.dim": 20, "encoder.dropout": 0.0}


@pytest.mark.few(2)
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_ledger_is_what_travels(tmp_path: Path, parties: Nodes, attempts: int, share: float) -> None:
    """Including evaluation at the parties and a round that is repeated."""
    grid, failed = LocalGrid(parties), set()

    def fail_once(message: Message, reply: Message) -> Message | None:
        node = message.metadata.dst_node_id
        first = attempts == 2 and node not in failed
        failed.add(node)
        return None if first else reply

    for node in (101, 7, 55):
        grid.tampering[node] = in_round(2, fail_once)
    run(grid, tmp_path / "run", asked("fedaws", LARGE, **{"held-out-share": share}))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    theta = 4 * (20 * 100 + 100 * 400 + 400 + 400 * 20 + 20)
    assert theta > 200_000
    rounds = 3 + (attempts - 1) + (share > 0)
    assert result["bytes_down"] == rounds * (4 * theta + 7 * 20 * 4), "θ once to a party, whatever its labels"
    for ledger, wire in (("bytes_down", grid.bytes_down), ("bytes_up", grid.bytes_up)):
        on_wire = sum(wire.values())
        assert result[ledger] <= on_wire <= (1 + OVERHEAD) * result[ledger]


@pytest.mark.few(2)
@pytest.mark.parametrize("dim", [400, 4])
@pytest.mark.parametrize("optimizer", ["adam", "newton"])
def test_the_ledger_counts_the_rows_of_all_labels(tmp_path: Path, parties: Nodes, optimizer: str, dim: int) -> None:
    """Rows that are axes as one number per label; the direction of a Newton step like θ."""
    grid = LocalGrid(parties)
    settings = LINEAR | {"client.loss": "logistic", "client.set_size": "ignored", "server.optimizer": optimizer}
    settings |= {"encoder.dim": dim, "embeddings.start": "by-frequency"}
    run(grid, tmp_path / "run", asked("fedalc-exact", settings))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    theta, own, compared, weights = 4 * 20 * dim, 7 * dim * 4, 7 * (4 if dim >= 7 else dim * 4), 7 * 8
    directions = 2 * 4 * theta if optimizer == "newton" else 0
    assert result["bytes_down"] == 3 * (4 * theta + own + 4 * compared + weights) + directions
    assert result["bytes_down"] < sum(grid.bytes_down.values())
    if dim == 400:
        assert sum(grid.bytes_down.values()) < 1.3 * result["bytes_down"]


def test_a_party_with_three_labels_sends_theta_once(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    run(grid, tmp_path / "run", asked("fedaws", LARGE))
    assert len(OWNED[7]) == 3 and len(OWNED[55]) == 1
    assert grid.bytes_down[7] < 1.02 * grid.bytes_down[55]
    assert grid.bytes_up[7] < 1.02 * grid.bytes_up[55]


class Counting(LocalGrid):
    """Counts how many messages are sent, and replies received, at once."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        self.most_pushed = self.most_pulled = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        several = list(messages)
        self.most_pushed = max(self.most_pushed, len(several))
        return super().push_messages(several)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        several = list(message_ids)
        self.most_pulled = max(self.most_pulled, len(several))
        return super().pull_messages(several)


def test_messages_go_one_by_one_and_few_replies_come_at_a_time(tmp_path: Path, parties: Nodes) -> None:
    grid = Counting(parties)
    run(grid, tmp_path / "run", asked("fedalc", SETTINGS))
    assert grid.most_pushed == 1 and grid.most_pulled == 1


class Forgetful(LocalGrid):
    """Keeps only the addressees of messages, like a server whose SuperLink is another process.

    Every node gives the same answers, made once, so that only the server's memory is measured.
    """

    def __init__(self, nodes: Nodes, answers: dict[str, Message]) -> None:
        super().__init__(nodes)
        self.answers = answers
        self.waiting: dict[str, dict[str, Any]] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        (message,) = messages
        over_the_wire(message)
        number = f"message {next(self._numbers)}"
        said = message.metadata
        about: dict[str, Any] = {"node": said.dst_node_id, "kind": said.message_type, "round": said.group_id}
        self.waiting[number] = about | {"labels": message.content["task"].get("labels")}
        return [number]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for number in message_ids:
            about = self.waiting.pop(number)
            reply = self.answers[about["kind"]]
            copy, _ = over_the_wire(reply)
            if "introduction" in copy.content:
                copy.content["introduction"]["labels"] = [int(about["node"]).to_bytes(16, "big")]
                copy.content["introduction"]["client"] = f"party {about['node']}"
            if "outcome" in copy.content:
                copy.content["outcome"]["labels"] = about["labels"]
                copy.content["outcome"]["loss"] += int(number.split()[1]) * 1e-6  # or it would be an answer sent before
            copy.content[RECORD] = ConfigRecord({"kind": about["kind"], "round": about["round"], "question": number})
            copy.metadata.__dict__["_reply_to_message_id"] = number
            replies.append(copy)
        return replies


def peak_of_a_round(tmp_path: Path, answers: dict[str, Message], count: int) -> int:
    grid = Forgetful({node: {} for node in range(1, count + 1)}, answers)
    gc.collect()
    tracemalloc.start()
    run(grid, tmp_path / f"run {count}", asked("fedaws", BIG, **{"num-parties": count, "num-server-rounds": 2}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


BIG = LARGE | {"encoder.hidden": [1000]}
THETA = 4 * (20 * 100 + 100 * 1000 + 1000 + 1000 * 20 + 20)


@pytest.mark.long
def test_memory_does_not_grow_with_the_parties(tmp_path: Path, train: Split) -> None:
    key = tmp_path / "key"
    Key(bytes(range(40))).write(key)
    data = write_party(tmp_path / "party", train, [0], NAMES[:1])
    one = LocalGrid({1: {"data": str(data), "key": str(key)}})
    one.keeps = True
    run(one, tmp_path / "one", asked("fedaws", BIG, **{"num-parties": 1, "min-parties": 1, "num-server-rounds": 1}))
    answers = {reply.metadata.message_type: reply for reply in one.replies}
    peak_of_a_round(tmp_path, answers, 3)  # what is made only once in a process
    few, many = peak_of_a_round(tmp_path, answers, 4), peak_of_a_round(tmp_path, answers, 40)
    assert few > 2 * THETA
    assert many - few < THETA, "36 parties more, and not one θ more"
