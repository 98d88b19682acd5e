"""Counts in keyed buckets with lost parties, servers that cheat, and settings that do not go with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.bucket_sums import BucketSums, Counting, SealedTables, of_labels
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.sum_messages import BUCKET_SUMS, COUNTING
from fedalc.deployment.flower.table_seals import SEALED, SEALS, Sealing, SumOf
from fedalc.deployment.flower.wire import pack, unpack
from fedalc.errors import ConfigError
from fedalc.labels.collection.buckets import Tables
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from tests.deployment.flower.local_grid import LocalGrid, Tamper
from tests.deployment.flower.problem import Nodes, asked, fails, notes, run
from tests.deployment.flower.test_bucket_sums import CASES, ON, assert_equal, twin
from tests.deployment.flower.test_resume import Crash, crash_in, renamed

COUNTS = "query.bucket_counts"
OTHERS = "sends other sums of bucket counts than those that the parties counted"
ONE_ROUND = CASES["one round"]
OF_THREE = SumOf(bytes(range(32)), 3)


def test_a_vector_and_its_sum() -> None:
    """Two tables of three buckets, packed or in units of 1/6 for three parties, then n of three labels."""
    tables, n = Tables(2, 3), np.array([1, 0, 2], dtype=np.uint64)
    amounts = np.array([1, 0, 2, 0, 3, 0], dtype=np.uint64)
    whole, parts = Counting("records", False, tables), Counting("records", False, tables, parties=3)
    assert (whole.length(3), parts.length(3), parts.unit) == (2 + SEALS + 3 + SEALS, 6 + SEALS + 3 + SEALS, 6)
    hasher = Hasher("hmac-sha256", Key(bytes(range(64))))
    for counting, each in ((whole, 1), (parts, 6)):
        vector = counting.vector(hasher, OF_THREE, n * np.uint64(each), amounts * np.uint64(each))
        assert len(vector) == counting.length(3)
        summed, labels = counting.read(vector + vector + vector, 3, OF_THREE)
        assert labels.whole(counting is parts).tolist() == [3, 0, 6]
        assert summed.counts.tolist() == [[3, 0, 6], [0, 9, 0]] and summed.parties == labels.parties == 3
        sealing = Sealing(OF_THREE, "records", False, (2, 3))
        assert summed.seals.tolist() == sealing.of_sum(hasher, summed.amounts).tolist()
        assert labels.seals.tolist() == of_labels(OF_THREE, False, 3).of_sum(hasher, labels.amounts).tolist()
    assert Counting("pairs", False, tables).length(3) == 2 + SEALS
    nothing = Counting("records", False, Tables(0, 1))
    vector = nothing.vector(hasher, OF_THREE, n, amounts[:0])
    assert len(vector) == nothing.length(3) == 3 + 2 * SEALS
    assert nothing.read(vector, 3, OF_THREE)[0].counts.shape == (0, 1)


# --- lost parties ---


def not_answering(times: int) -> Tamper:
    left = [times]

    def tamper(question: Message, reply: Message) -> Message | None:
        if question.metadata.message_type == COUNTS and left[0]:
            left[0] -= 1
            return None
        return reply

    return tamper


def without(train: Split, labels: list[int]) -> Split:
    kept = train.labels.toarray()
    kept[:, labels] = 0
    return Split(train.features, type(train.labels)(kept))


def test_a_party_that_does_not_count_is_left_out(parties: Nodes, train: Split, tmp_path: Path) -> None:
    """Nothing was unmasked with it, so the others count among themselves: set sizes are without its label."""
    grid = LocalGrid(parties)
    grid.tampering[55] = not_answering(9)
    found = run(grid, tmp_path / "run", asked(*ONE_ROUND, **ON, **{"min-parties": 3}))
    (_, lost, why), (_, later, because) = notes(tmp_path / "run")
    assert lost == later == "party 55" and "no answer" in why and "is no party of this run" in because
    assert_equal(found.model, twin(*ONE_ROUND, without(train, [5]), str(parties[7]["key"])).averaged_model())


def test_after_a_sum_was_unmasked_its_parties_stay(parties: Nodes, tmp_path: Path) -> None:
    """A party that misses the held-out records alone is asked again, with all others: never the others without it."""
    grid = LocalGrid(parties)
    count = [0]

    def tamper(question: Message, reply: Message) -> Message | None:
        count[0] += question.metadata.message_type == COUNTS
        return None if question.metadata.message_type == COUNTS and count[0] == 2 else reply

    grid.tampering[55] = tamper
    run(grid, tmp_path / "run", asked(*ONE_ROUND, **ON, **{"held-out-share": 0.3}))
    assert [party for _, party, _ in notes(tmp_path / "run")] == ["party 55"]
    census = Census.load(tmp_path / "run")
    assert census is not None and len(census.roster.parties) == 4 and census.ranking is not None
    asked_of = [node for node, kind, _ in grid.asked if kind == COUNTS]
    assert {node: asked_of.count(node) for node in parties} == dict.fromkeys(parties, 4)


def test_a_server_that_counts_again_without_a_party_is_refused(
    parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables of twice the size would show the same records: under one run id, one list of parties."""
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}
    run(LocalGrid(kept), tmp_path / "first", asked(*ONE_ROUND, **ON))

    fewer, larger = {node: kept[node] for node in (101, 7, 9)}, {"collection.records": 500}
    with fails(TooFew):
        config = asked(ONE_ROUND[0], ONE_ROUND[1] | larger, **ON, **{"num-parties": 3})
        run(LocalGrid(fewer), tmp_path / "second", config)
    assert "asks to unmask a sum over other parties than before" in capsys.readouterr().out


@pytest.mark.long
def test_a_stopped_run_goes_on_with_the_same_sums(parties: Nodes, tmp_path: Path) -> None:
    """A party that has lost its state is told again, with the next question."""
    asking = asked(*CASES["cg"], **ON, **{"num-server-rounds": 2})
    whole = run(LocalGrid(parties), tmp_path / "whole", asking)
    grid = LocalGrid(parties)
    crash_in(grid, "train", 2)
    with pytest.raises(Crash):
        run(grid, tmp_path / "run", asking)
    again = LocalGrid(renamed(parties))
    found = run(again, tmp_path / "run", {"resume": True, "wait": 5.0, "round-timeout": 5.0, "num-parties": 4})
    assert COUNTS not in {kind for _, kind, _ in again.asked}
    assert all(map(torch.equal, found.model.values, whole.model.values))


# --- a server that cheats ---


def refusals(parties: Nodes, folder: Path, change: Callable[[Message], None], capsys: Any, **config: Any) -> str:
    grid = LocalGrid(parties)
    grid.before_push = change
    with fails(TooFew):
        run(grid, folder, asked(*ONE_ROUND, **(ON | config)))
    return str(capsys.readouterr().out)


def counting(**values: Any) -> Callable[[Message], None]:
    """Change what parties are asked to count."""

    def change(message: Message) -> None:
        if message.metadata.message_type == COUNTS:
            message.content[COUNTING] = ConfigRecord({**dict(message.content[COUNTING]), **values})  # type: ignore[arg-type]

    return change


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"buckets": 1 << 40}, "collection.buckets = "),
        ({"tables": 9}, "asks for counts in 9 tables"),
        ({"tables": -1}, "asks for counts in -1 tables"),
        ({"buckets": 0}, "or not of pairs or records"),
        ({"what": "features"}, "or not of pairs or records"),
        ({"what": "pairs"}, "asks for counts of pairs"),
        ({"parties": 2}, "asks for parts of pairs"),
        ({"parties": 1 << 40}, "holders = "),
    ],
)
def test_counts_that_no_honest_server_asks_for(
    values: dict[str, Any], problem: str, parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refusals(parties, tmp_path / "run", counting(**values), capsys)


def test_fewer_labels_than_before(parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sums of all labels and of all but one would show one label's records."""
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}
    run(LocalGrid(kept), tmp_path / "first", asked(*ONE_ROUND, **ON))
    capsys.readouterr()

    def fewer(message: Message) -> None:
        if message.metadata.message_type == COUNTS and message.metadata.dst_node_id == 7:
            task = message.content["task"]
            task["labels"], task["numbers"] = task["labels"][:-1], task["numbers"][:-1]  # type: ignore[index]

    said = refusals(kept, tmp_path / "second", fewer, capsys, **{"num-parties": 4, "min-parties": 4})
    assert "party 7 left out: refused the server's message: asks about other labels than before" in said


def test_digests_are_refused(parties: Nodes, tmp_path: Path) -> None:
    grid = LocalGrid(parties)
    grid.keeps = True
    run(grid, tmp_path / "run", asked(*ONE_ROUND, **ON))
    question = next(message for message in grid.pushed if message.metadata.message_type == COUNTS)
    for kind in ("query.label_sets", "query.held_out"):
        question.metadata.message_type = kind
        grid.sent["again"] = question
        (reply,) = grid.pull_messages(["again"])
        assert "asks for digests of instances, in a run that collects by sums" in str(reply.error.reason)


def telling(change: Callable[[np.ndarray], np.ndarray], node: int = 7) -> Callable[[Message], None]:
    def before_push(message: Message) -> None:
        if BUCKET_SUMS in message.content and message.metadata.dst_node_id == node:
            wanted = {"sizes": ("uint16", (None, None)), "sizes seals": ("uint64", (SEALED,))}
            arrays = unpack(message.content, BUCKET_SUMS, wanted)
            message.content[BUCKET_SUMS] = pack(arrays | {"sizes": change(arrays["sizes"].copy())})

    return before_push


def flat(sizes: np.ndarray) -> np.ndarray:
    return sizes[:0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flat, "sums of 0 tables"),
        (lambda sizes: np.full_like(sizes, 2000), OTHERS),
    ],
)
def test_sums_that_cannot_be(
    change: Any, problem: str, parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refusals(parties, tmp_path / "run", telling(change), capsys)


def one_too_large(sizes: np.ndarray) -> np.ndarray:
    """In an occupied bucket of every table: a party with a record there would refuse so large a set size."""
    for table in sizes:
        table[np.flatnonzero(table)[0]] = 2000
    return sizes


def all_but_one(sizes: np.ndarray) -> np.ndarray:
    """Beside sums of zeros in another run: only the records of one bucket would count differently."""
    others = np.ones_like(sizes, dtype=bool)
    others[:, np.flatnonzero(sizes[0])[0]] = False
    return np.where(others, 0, sizes)


@pytest.mark.parametrize("change", [np.zeros_like, one_too_large, all_but_one])
def test_false_sums_are_refused_by_all_parties_alike(
    change: Callable[[np.ndarray], np.ndarray], parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If only those with a record in a bucket refused, the server would know who they are."""

    def tell(message: Message) -> None:
        for node in parties:
            telling(change, node)(message)

    said = refusals(parties, tmp_path / "run", tell, capsys)
    assert all(f"party {node} left out: refused the server's message: {OTHERS}" in said for node in parties)


def test_other_sums_for_one_party_are_refused(
    parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusals(parties, tmp_path / "run", telling(lambda sizes: (sizes + 1).astype(np.uint16)), capsys)
    assert f"party 7 left out: refused the server's message: {OTHERS}" in said


def test_sums_may_not_change_during_a_run(parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}
    run(LocalGrid(kept), tmp_path / "first", asked(*ONE_ROUND, **ON))
    capsys.readouterr()
    said = refusals(kept, tmp_path / "second", telling(lambda sizes: (sizes + 1).astype(np.uint16)), capsys)
    assert "party 7 left out: refused the server's message: sends other sums of bucket counts" in said


def test_parties_that_hash_otherwise_are_left_out(
    parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {node: config | ({"digest-bytes": 20} if node == 9 else {}) for node, config in parties.items()}
    run(LocalGrid(other), tmp_path / "run", asked(*ONE_ROUND, **ON))
    assert "party 9 left out: hashes its instances in another way" in capsys.readouterr().out


# --- saved, and settings ---


def test_what_is_kept_for_a_resumed_run() -> None:
    tables = np.arange(6, dtype=np.uint16).reshape(2, 3)
    seals = np.array([0, 1, 1 << 63, (1 << 64) - 1], dtype=np.uint64)
    sizes = SealedTables(tables.astype(np.uint64) * np.uint64(1 << 40), seals, SumOf(bytes(range(200, 232)), 5))
    told = BucketSums(sizes, SealedTables(tables + np.uint16(65_000), seals, SumOf(bytes(32), 5)))
    again = BucketSums.restored(told.tensors("x."), "x.")
    assert again is not None and again.holders is not None and told.holders is not None
    for one, other in zip(told.arrays.values(), again.arrays.values(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert other.dtype == one.dtype
    assert again.sizes.parties == 5
    assert BucketSums.restored({}, "x.") is None


SUMS = "collection.by=sums"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"num-parties": 2}, "need secure sums"),
        ({"secure-sums": "off"}, "need secure sums"),
        ({"method": "fedalc"}, "trains class embeddings|learns from how often labels occur together"),
        ({"method": "fedalc-fixed"}, "learns from how often labels occur together"),
        ({"set": f"{SUMS};privacy.epsilon=1"}, "noise needs label sets"),
        (
            {"set": f"{SUMS};clients=parties;client.set_size=expected", "rank-held-out": "on"},
            "a hit at several parties would count for each",
        ),
    ],
)
def test_what_they_do_not_go_with(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_run_config({"method": "fedalc-exact", "num-parties": 3, "set": SUMS, **config}, 1)


def test_they_turn_secure_sums_on() -> None:
    _, settings = read_run_config({"method": "fedalc-oneshot", "num-parties": 3, "set": SUMS}, 1)
    assert settings.secure_sums.on and settings.collection.by == "sums"
    _, same = read_run_config({"method": "fedalc-oneshot", "num-parties": 3, "collection": "sums"}, 1)
    assert same == settings
    assert experiment({"method": "fedalc-oneshot"}, overrides=[SUMS]).collection.by == "sums"  # a simulation needs none
