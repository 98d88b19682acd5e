"""What a server says to parties with `--require-secure-sums` beside θ: it cannot turn one party's part apart with it.

An outside tester did each of these: two sums that differed by one party's part, or by one record's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedalc.deployment.flower.agreement import TEXT
from fedalc.deployment.flower.bucket_sums import QUESTION as COUNTS
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.masked_sums import MaskedSums
from fedalc.deployment.flower.sum_messages import EVERY_ROW, LABELS, TRAINING
from fedalc.deployment.flower.table_seals import SEALS
from fedalc.deployment.flower.wire import pack
from fedalc.errors import FedalcError
from fedalc.labels.collection.buckets import Tables
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, Nodes, all_different, asked, fails, run, write_parties
from tests.deployment.flower.test_secret_documents import HASHING, nodes
from tests.deployment.flower.test_secure_sums import CASES, ON

__all__ = ["nodes"]
OWNED = {101: [0, 4], 7: [1, 2, 3], 55: [5], 9: [6]}
VICTIM = 7
WEIGHED = LINEAR | {"client.label_power": 0.5}
Change = Callable[[Message], None]


@pytest.fixture
def strict(tmp_path: Path) -> Nodes:
    return insisting(write_parties(tmp_path, all_different(), OWNED), tmp_path)


def insisting(parties: Nodes, folder: Path) -> Nodes:
    more = {"require-secure-sums": True, "fewest": 1}
    return {node: config | more | {"state": str(folder / f"state {node}")} for node, config in parties.items()}


def train(parties: Nodes, folder: Path, case: tuple[str, Any], change: Change | None = None, **config: Any) -> Any:
    grid = LocalGrid(parties)
    grid.before_push = change or grid.before_push
    given = {"num-server-rounds": 1, "run-id": folder.name, "num-parties": len(parties)} | config
    return run(grid, folder, asked(*case, **ON, **given))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any, **config: Any) -> str:
    """What the log says."""
    capsys.readouterr()
    with fails(FedalcError):
        train(*arguments, **config)
    return str(capsys.readouterr().out)


def arrays(record: Any) -> dict[str, np.ndarray]:
    assert isinstance(record, ArrayRecord)
    return {name: np.frombuffer(array.data, array.dtype).reshape(array.shape).copy() for name, array in record.items()}


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, np.ndarray]]:
    """All that the server unmasks."""
    found: list[tuple[str, np.ndarray]] = []
    total = MaskedSums.total

    def noted(sums: MaskedSums, kind: str, *arguments: Any, **more: Any) -> Any:
        result = total(sums, kind, *arguments, **more)
        found.append((kind, result[0].copy()))
        return result

    monkeypatch.setattr(MaskedSums, "total", noted)
    return found


@pytest.mark.parametrize("method", ["fedavg-fixed", "fedalc-exact"])
def test_rows_do_not_change_during_a_run(
    method: str, strict: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the θ of round 1, with the victim's rows turned around, all others would send what they sent before."""
    before: dict[str, Any] = {}

    def turned(message: Message) -> None:
        if message.metadata.message_type != "train":
            return
        content = message.content
        if content["task"]["round"] == 1:
            before.setdefault("theta", content["theta"])
            if message.metadata.dst_node_id == VICTIM:
                before["numbers"] = content["task"]["numbers"]
            return
        content["theta"], every = before["theta"], arrays(content[EVERY_ROW])
        every[next(iter(every))][before["numbers"]] *= -1
        content[EVERY_ROW] = pack(every)
        if message.metadata.dst_node_id == VICTIM:
            content["rows"] = pack({name: -rows for name, rows in arrays(content["rows"]).items()})

    settings = CASES["mlp"][1] | {"encoder.dropout": 0.0} if method == "fedavg-fixed" else LINEAR
    case = method, settings | {"server.optimizer": "sgd", "embeddings.start": "orthogonal"}
    said = refusal(capsys, strict, tmp_path / "run", case, turned, **{"num-server-rounds": 2})
    assert f"party {VICTIM} left out: refused the server's message: sends other rows of W" in said


@pytest.mark.parametrize("clients", ["labels", "parties"])
def test_weights_are_what_the_party_knows(
    clients: str, strict: Nodes, tmp_path: Path, totals: list[tuple[str, np.ndarray]]
) -> None:
    """Weights that differ by less than a check would notice make no other sum."""

    def nudged(message: Message) -> None:
        if message.metadata.message_type == "train.sums" and message.metadata.dst_node_id == VICTIM:
            told = arrays(message.content["told"])
            told["weights"] *= 1 - 1e-9
            message.content["told"] = pack(told)

    case = "fedalc-oneshot", WEIGHED | {"clients": clients, "dtype": "float64"}
    train(strict, tmp_path / "plain", case)
    if clients == "parties":  # all parties get the same weights, and the party compares its own with these
        with fails(TooFew):
            train(strict, tmp_path / "nudged", case, nudged)
        return
    train(insisting(strict, tmp_path / "again"), tmp_path / "again" / "plain", case, nudged)
    plain, other = (total for kind, total in totals if kind == "train.sums")
    np.testing.assert_array_equal(plain, other)


@pytest.mark.parametrize("twice", [False, True])
def test_a_shared_label_has_one_number(
    twice: bool, strict: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another number at each of its parties, rows at right angles would take the sum apart by party."""

    def other(message: Message) -> None:
        if LABELS in message.content and (twice or message.metadata.dst_node_id == VICTIM):
            labels = arrays(message.content[LABELS])["labels"]
            labels = np.concatenate([labels[:-1], labels[:1]]) if twice else labels[::-1]
            message.content[LABELS] = pack({"labels": np.ascontiguousarray(labels)})

    said = refusal(capsys, strict, tmp_path / "run", ("fedalc-oneshot", LINEAR | {"clients": "parties"}), other)
    refused = [node for node in OWNED if f"party {node} left out: refused the server's message: gives this" in said]
    assert refused == (list(OWNED) if twice else [VICTIM])


def test_buckets_are_the_same_in_every_run(strict: Nodes, tmp_path: Path, totals: list[tuple[str, np.ndarray]]) -> None:
    """Otherwise two runs would differ by the records that share a bucket in one of them."""
    for name in ("one", "two"):
        train(strict, tmp_path / name, CASES["one round"])
    one, two = (total for kind, total in totals if kind == COUNTS)
    size = Tables.for_records(1, 0.005).size // 4  # four counts in a word
    np.testing.assert_array_equal(one[:size], two[:size])
    assert not (one[size : size + SEALS] == two[size : size + SEALS]).any()


def test_tables_of_another_size_are_refused(strict: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(strict, tmp_path / "first", CASES["one round"])
    case = CASES["one round"][0], CASES["one round"][1] | {"collection.records": 9000}
    allowed = {node: config | {"allow": "sum_settings=2"} for node, config in strict.items()}
    assert "start this party with --allow bucket_tables=2" in refusal(capsys, allowed, tmp_path / "second", case)
    allowed = {node: config | {"allow": "sum_settings=2; bucket_tables=2"} for node, config in strict.items()}
    train(allowed, tmp_path / "third", case)


# --- texts ---


@pytest.mark.parametrize("victims", [[1, 2, 3], [2]])
def test_false_numbers_of_documents_are_refused(
    victims: list[int], nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another number for one guessed word, two runs would differ by the documents that have it."""

    def other(message: Message) -> None:
        if TEXT in message.content and message.metadata.dst_node_id in victims:
            told = arrays(message.content[TEXT])
            told["numbers"][3], told["summed"][4] = 1, 1
            message.content[TEXT] = pack(told)

    said = refusal(capsys, insisting(nodes, tmp_path), tmp_path / "run", ("fedalc-oneshot", HASHING), other)
    assert said.count("sends other numbers of documents than those that the parties counted") == len(victims)


def test_settings_of_texts_count_before_the_training(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of documents with runs of two words, then of three, … spell the text around a rare word."""
    parties = insisting(nodes, tmp_path)
    train(parties, tmp_path / "first", ("fedalc-oneshot", HASHING))
    said = refusal(capsys, parties, tmp_path / "second", ("fedalc-oneshot", HASHING | {"text.words": [1, 2]}))
    assert "--allow sum_settings=2" in said and "asking 3 parties in how many" in said


def test_documents_and_sums_have_one_list(nodes: Nodes, tmp_path: Path) -> None:
    """Numbers of documents over three of four parties, beside sums over all of them, would show the fourth's."""
    state = insisting(nodes, tmp_path)
    train(state, tmp_path / "run", ("fedalc-oneshot", HASHING))
    known = (tmp_path / "state 1" / "runs" / "_sums.json").read_text()
    assert TRAINING in known and "document_counts" not in known
