"""The census of parties: parties that contradict each other, lie, or stop half-way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.admission import distinct_names
from fedalc.deployment.flower.census import Census, question
from fedalc.deployment.flower.connections import Parties, Patience, TooFew
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.local import write_party
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.keys import Key
from tests.deployment.flower.local_grid import LocalGrid, Tamper
from tests.deployment.flower.problem import NAMES, OWNED, RUN_ID, SETTINGS, Nodes, asked, in_round, notes, run

ONE = {"num-server-rounds": 1}
ODD = 7  # the node that lies


def roster_of(folder: Path) -> Roster:
    census = Census.load(folder)
    assert census is not None
    return census.roster


def take_part(
    tmp_path: Path, grid: LocalGrid, method: str = "fedalc", **config: Any
) -> tuple[list[tuple[str, str]], Roster]:
    """Run one round; return (who was left out of the census and why, who is in it)."""
    run(grid, tmp_path / "run", asked(method, SETTINGS, **ONE, **config))
    path = tmp_path / "run" / "parties.jsonl"
    out = [(party, why) for t, party, why in notes(tmp_path / "run") if t == 0] if path.exists() else []
    return out, roster_of(tmp_path / "run")


@pytest.mark.parametrize("method", ["fedaws", "fedalc"])
def test_a_label_that_two_claim_is_set_aside(
    tmp_path: Path, train: Split, parties: Nodes, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_party(tmp_path / "both", train, [5, 6], [NAMES[5], NAMES[6]])
    grid = LocalGrid({n: c for n, c in parties.items() if n != 9} | {9: {**parties[9], "data": str(data)}})
    _, roster = take_part(tmp_path, grid, method, **{"num-parties": 4, "min-parties": 2})
    assert len(roster.counts) == 6 and "party 55" not in roster.parties
    assert "1 label" in capsys.readouterr().out
    assert (1, "party 55", "is no party of this run: it was away, or refused, when labels were collected") in notes(
        tmp_path / "run"
    )


def test_too_few_after_the_census_is_said_at_once(tmp_path: Path, parties: Nodes) -> None:
    same = LocalGrid({1: parties[9], 2: {**parties[9], "client": "again"}, 3: parties[55]})
    config = {"num-parties": 3, "min-parties": 2, "wait": 500.0}
    with pytest.raises(TooFew, match=r"1 parties .*min-parties"):
        run(same, tmp_path / "run", asked("fedavg", SETTINGS, **config))


def test_nobody_is_left(tmp_path: Path, parties: Nodes) -> None:
    same = LocalGrid({1: parties[9], 2: {**parties[9], "client": "again"}})
    with pytest.raises(FedalcError, match="no label is left"):
        run(same, tmp_path / "run", asked("fedavg", SETTINGS, **{"num-parties": 2}))


def test_two_with_one_name_are_told_apart(tmp_path: Path, parties: Nodes) -> None:
    nodes = {node: {**config, "client": "the bank"} for node, config in parties.items()}
    nodes[9] |= {"client": "the bank (node 7)"}  # which is what node 7 will be called
    _, roster = take_part(tmp_path, LocalGrid(nodes))
    assert len(set(roster.parties)) == 4 and len(roster.counts) == 7


def test_names_are_told_apart_whatever_they_are() -> None:
    ids = [2**64 - 1, 2**64 - 2, 5]
    who = {node: Introduction("x" * 64, [b"0" * 16], [1], [0], 3, []) for node in ids}
    names = [one.client for one in distinct_names(who).values()]
    assert len(set(names)) == 3 and max(map(len, names)) <= 64


def test_another_number_of_features(tmp_path: Path, train: Split, parties: Nodes) -> None:
    wide = Split(csr_matrix((train.features.data, train.features.indices, train.features.indptr), (len(train), 25)),
                 train.labels)  # fmt: skip
    data = write_party(tmp_path / "wide", wide, OWNED[ODD], [NAMES[u] for u in OWNED[ODD]])
    nodes = parties | {ODD: {**parties[ODD], "data": str(data)}}
    out, roster = take_part(tmp_path, LocalGrid(nodes))
    assert out == [("party 7", "its data has 25 features, most have 20")] and roster.feature_count == 20
    two = LocalGrid({ODD: nodes[ODD], 9: nodes[9]})
    with pytest.raises(FedalcError, match=r"party 7 \(25\)"):
        run(two, tmp_path / "two", asked("fedavg", SETTINGS, **{"num-parties": 2}))


def test_a_sample_that_some_will_not_answer(tmp_path: Path, parties: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of party 7 and party 9 have 6 instances. The server says so once, before the first round."""
    half = asked("fedavg", SETTINGS | {"client.sample": 0.5}, **ONE)
    with pytest.raises(ConfigError, match=r"client.sample = 0.5 draws, .* of a label's 6 instances .*; use 1$"):
        run(LocalGrid(parties), tmp_path / "nobody", half)
    monkeypatch.setattr("fedalc.deployment.flower.admission.FEWEST", 5)
    run(LocalGrid(parties), tmp_path / "run", half)
    assert [(t, party) for t, party, why in notes(tmp_path / "run") if "; use 1" in why] == [
        (0, "party 7"),
        (0, "party 9"),
    ]
    assert set(roster_of(tmp_path / "run").parties) == {"party 101", "party 55"}


def test_samples_do_not_show_counts_that_noise_hides(tmp_path: Path, parties: Nodes) -> None:
    """Otherwise refused samples would reveal whether a label has more than 8 / sample instances, at no cost."""
    private = SETTINGS | {"client.sample": 0.9, "privacy.mechanism": "counts", "privacy.epsilon": 1.0}
    with pytest.raises(
        ConfigError, match=r"client\.sample: below 1, the list of participants shows how many instances a label has"
    ):
        run(LocalGrid(parties), tmp_path / "run", asked("fedalc", private, **ONE))


def test_another_key(tmp_path: Path, parties: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    Key(bytes(range(100, 140))).write(tmp_path / "other key")
    nodes = parties | {ODD: {**parties[ODD], "key": str(tmp_path / "other key")}}
    _, roster = take_part(tmp_path, LocalGrid(nodes))
    assert len(roster.counts) == 4 and "party 7" not in roster.parties
    assert "client party 7 used another key than most" in capsys.readouterr().out


def said(**changes: Any) -> Callable[[Message, Message], Message]:
    """Change an introduction."""

    def answer(message: Message, reply: Message) -> Message:
        old = reply.content["introduction"]
        new = {key: value(old[key]) if callable(value) else value for key, value in changes.items()}
        return Message(RecordDict({"introduction": ConfigRecord({**old, **new})}), reply_to=message)

    return answer


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"labels": [], "counts": [], "held-out": []}, "no labels"),
    "a label twice": ({"labels": lambda labels: [labels[0]] * 3}, "twice"),
    "short pseudonyms": ({"labels": [b"a", b"b", b"c"]}, "not a pseudonym"),
    "negative counts": ({"counts": [3, -1, 5]}, "plausible"),
    "counts of 10^12": ({"counts": [3, 10**12, 5]}, "plausible"),
    "more counts than labels": ({"counts": [1] * 1000}, "plausible"),
    "negative held out": ({"held-out": [0, 0, -1]}, "plausible"),
    "nothing to train on": ({"counts": [0, 0, 0]}, "no instance"),
    "no features": ({"features": 0}, "features"),
    "counts as numbers with a point": ({"counts": [1.0, 2.0, 3.0]}, "no counts"),
    "counts that are true": ({"counts": [True, True, True]}, "no counts"),
    "a huge list": ({"labels": [n.to_bytes(16, "big") for n in range(100_000)]}, "plausible"),
    "a name of many lines": ({"client": "a\nround 9: party 101 left out"}, "printable"),
    "names that steer the terminal": ({"names": ["\x1b[2J", "b", "c"]}, "names"),
    "too few names": ({"names": ["a"]}, "names"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("lie", LIES)
def test_an_introduction_that_cannot_be_true(tmp_path: Path, parties: Nodes, lie: str) -> None:
    changes, why = LIES[lie]
    grid = LocalGrid(parties)
    grid.tampering[ODD] = in_round(0, said(**changes), "query.hello")
    out, roster = take_part(tmp_path, grid, "fedavg", **{"num-parties": 3, "min-parties": 3})
    ((party, reason),) = out
    assert party == f"node {ODD}" and why in reason
    assert len(roster.parties) == 3


def test_more_features_than_there_is_memory_for(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    for node in parties:
        grid.tampering[node] = in_round(0, said(features=(1 << 31) - 1), "query.hello")
    big = SETTINGS | {"encoder.embedding": 4096}
    with pytest.raises(ConfigError, match="GB"):
        run(grid, tmp_path / "run", asked("fedavg", big))


def sent(change: Callable[[dict[str, Array], ConfigRecord], None]) -> Tamper:
    def answer(message: Message, reply: Message) -> Message:
        arrays, who = dict(reply.content["messages"]), ConfigRecord(dict(reply.content["sender"]))
        change(arrays, who)
        return Message(RecordDict({"messages": ArrayRecord(arrays), "sender": who}), reply_to=message)

    return in_round(0, answer, "query.label_sets")


def other_pseudonyms(arrays: dict[str, Array], who: ConfigRecord) -> None:
    old = arrays["pseudonyms"]
    arrays["pseudonyms"] = Array(old.dtype, old.shape, old.stype, old.data[:-1] + b"?")


def unknown_label(arrays: dict[str, Array], who: ConfigRecord) -> None:
    old = arrays["labels"]
    arrays["labels"] = Array(old.dtype, old.shape, old.stype, b"\xff" * len(old.data))


def protocol_of_lists(arrays: dict[str, Array], who: ConfigRecord) -> None:
    who["protocol"] = '{"algorithm": [], "identity": {}, "digest_bytes": 16, "key_check": ""}'


def protocol_without_end(arrays: dict[str, Array], who: ConfigRecord) -> None:
    who["protocol"] = "[" * 100_000


def protocol_of_many_digits(arrays: dict[str, Array], who: ConfigRecord) -> None:
    who["protocol"] = "9" * 5000


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_pseudonyms, "not those of its introduction"),
        (unknown_label, "of 3 labels"),
        (protocol_of_lists, "wrong type"),
        (protocol_without_end, "cannot be read"),
        (protocol_of_many_digits, "cannot be read"),
    ],
)
def test_label_sets_that_cannot_be_used(tmp_path: Path, parties: Nodes, change: Any, why: str) -> None:
    grid = LocalGrid(parties)
    grid.tampering[ODD] = sent(change)
    out, roster = take_part(tmp_path, grid)
    ((party, reason),) = out
    assert party == "party 7" and why in reason
    assert len(roster.parties) == 3 and len(roster.counts) == 4


def test_a_party_that_introduces_itself_and_then_is_silent(tmp_path: Path, parties: Nodes) -> None:
    grid = LocalGrid(parties)
    grid.tampering[ODD] = in_round(0, lambda message, reply: None, "query.label_sets")
    out, roster = take_part(tmp_path, grid)
    assert out[0][0] == "party 7" and "no answer within" in out[0][1]
    assert len(roster.parties) == 3


def test_a_flood_of_labels_on_one_instance_is_refused(
    tmp_path: Path, train: Split, parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A party may have many labels, but no instance has a thousand: their pairs would fill the memory."""
    features, labels = train.features[:2], csr_matrix(np.ones((2, 1001), dtype=np.float32))
    many = [f"flood {u}" for u in range(1001)]
    data = write_party(tmp_path / "flood", Split(features, labels), range(1001), many)
    grid = LocalGrid(parties | {66: {**parties[9], "data": str(data), "client": "flooder"}})
    _, roster = take_part(tmp_path, grid, **{"num-parties": 5})
    assert "flooder put more than 1000 labels on one instance" in capsys.readouterr().out
    assert len(roster.counts) == 7


def test_a_party_that_could_not_start_is_asked_again(tmp_path: Path, parties: Nodes) -> None:
    """Its operator fixes it while the server waits, under the same node id."""
    grid = LocalGrid(parties | {ODD: {**parties[ODD], "data": "/nowhere"}})
    grid.script = {20: parties}
    _, roster = take_part(tmp_path, grid, "fedavg", wait=500.0)
    assert len(roster.parties) == 4
    failed = [1 for t, party, _ in notes(tmp_path / "run") if party == f"node {ODD}"]
    assert len(failed) == 1, "said once, not at every look"


def test_too_few_to_start_with(tmp_path: Path, parties: Nodes) -> None:
    with pytest.raises(TooFew, match=r"4 parties are connected and 0 have introduced .* needs 5.*num-parties"):
        run(LocalGrid(parties), tmp_path / "run", asked("fedavg", SETTINGS, **{"num-parties": 5}, wait=1.0))
    assert not (tmp_path / "run").exists()


def test_the_one_that_comes_in_the_last_moment_counts(parties: Nodes) -> None:
    """The deadline passes while the server waits for a mute node; it then looks once more for new parties."""
    grid = LocalGrid({1: {}, 9: parties[9]})
    grid.tampering[1] = lambda message, reply: None
    grid.script = {1: dict(parties)}
    settings = experiment({"method": "fedavg", "engine": "flower"})
    patience = Patience(2, 2, for_parties=0.05, for_replies=0.1, pause=0.0)
    found = Parties(grid, patience, lambda: question(settings, 0.0, RUN_ID), say=lambda line: None).gather()
    assert set(found) == set(parties)
