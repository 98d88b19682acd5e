"""Pairs of labels by private set intersection between real parties: the counts and the model of the join, and a server
that has no digest and cannot ask with records of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Context, Message, RecordDict

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower import intersections
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import TooFew
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower.wire import pack, unpack
from fedalc.deployment.twin import in_one_process
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection import psi
from fedalc.labels.collection.hashing import Hasher, canonical_features
from fedalc.labels.collection.keys import Key
from fedalc.labels.correlations import Correlations
from tests.deployment.flower.local_grid import LocalGrid, over_the_wire
from tests.deployment.flower.problem import NAMES, OWNED, RUN_ID, SETTINGS, Nodes, asked, notes, overrides, run
from tests.deployment.flower.test_bucket_sums import all_that_the_server_has

PSI = SETTINGS | {"collection.by": "psi", "dtype": "float64", "server.optimizer": "sgd"}
CONDITIONAL = {"regularizer.weighting": "conditional", "fixed.weighting": "conditional", "fixed.alpha": 0.0}
REQUESTS, ANSWERS, COUNTS = "query.psi_requests", "query.psi_answers", "query.psi_counts"


@pytest.fixture
def openmined() -> None:
    pytest.importorskip("private_set_intersection", reason="needs openmined-psi: pip install 'fedalc[psi]'")


def known(folder: Path) -> Correlations:
    census = Census.load(folder)
    assert census is not None and census.knowledge is not None and isinstance(census.knowledge.labels, Correlations)
    return census.knowledge.labels


def watched(parties: Nodes, folder: Path, method: str = "fedalc", **more: Any) -> LocalGrid:
    grid = LocalGrid(parties)
    grid.keeps = True
    config = {"num-server-rounds": 1, "num-parties": len(parties), **more}
    run(grid, folder, asked(method, PSI, **config))
    return grid


@pytest.mark.usefixtures("openmined")
@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fedalc", "fedalc-fixed"])
def test_training_is_that_of_the_join_and_of_the_simulation(
    method: str, parties: Nodes, train: Split, tmp_path: Path
) -> None:
    """n and c are those of the join. N is estimated, as in the simulation, bit by bit; where weights do not depend on
    it, so is the model that of the join."""
    settings, models = PSI | CONDITIONAL, {}
    for by in ("psi", "join"):
        grid = LocalGrid(parties)
        config = asked(method, settings | {"collection.by": by}, **{"num-server-rounds": 2})
        models[by] = run(grid, tmp_path / by, config).model
        kinds = [kind for _, kind, _ in grid.asked]
        assert ("query.label_sets" in kinds) == (by == "join")
        assert [kinds.count(kind) for kind in (REQUESTS, ANSWERS, COUNTS)] == [4 * (by == "psi")] * 3
    assert all(map(torch.equal, models["psi"].values, models["join"].values))
    ours, joined = known(tmp_path / "psi"), known(tmp_path / "join")
    np.testing.assert_array_equal(ours.counts, joined.counts)
    np.testing.assert_array_equal(ours.together.toarray(), joined.together.toarray())
    assert ours.together.nnz > 10 and ours.together.dtype == joined.together.dtype
    assert ours.instances == pytest.approx(joined.instances, rel=0.05)


@pytest.mark.usefixtures("openmined")
@pytest.mark.long
@pytest.mark.parametrize(("method", "secure"), [("fedalc", "off"), ("fedalc-fixed", "off"), ("fedalc-fixed", "on")])
def test_training_is_its_simulation(method: str, secure: str, parties: Nodes, train: Split, tmp_path: Path) -> None:
    """With weights that N enters; with held-out records, which no intersection is about, and with secure sums."""
    bits = {"secure_sums.bits": 44} if secure == "on" else {}
    found = run(LocalGrid(parties), tmp_path / "run", asked(method, PSI | bits, **{"secure-sums": secure}))
    chosen = experiment(
        {"method": method, "engine": "clients", "rounds": 3},
        overrides=overrides(PSI | {"collection.identity": "content"}),
    )
    simulated = in_one_process(chosen, train, NAMES, str(parties[7]["key"]), RUN_ID)
    for _ in range(3):
        simulated.run_round()
    twin, ours = simulated.knowledge, known(tmp_path / "run")
    assert twin is not None and isinstance(twin.labels, Correlations)
    assert ours.instances == twin.labels.instances
    np.testing.assert_array_equal(ours.together.toarray(), twin.labels.together.toarray())
    for one, other in zip(found.model.values, simulated.averaged_model().values, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("openmined")
def test_held_out_records_are_not_counted(parties: Nodes, tmp_path: Path) -> None:
    grid = watched(parties, tmp_path / "psi", "fedalc-fixed", **{"held-out-share": 0.3})
    assert "query.held_out" not in {kind for _, kind, _ in grid.asked}
    settings = PSI | {"collection.by": "join"}
    config = {"num-server-rounds": 1, "held-out-share": 0.3, "rank-held-out": "off"}
    run(LocalGrid(parties), tmp_path / "join", asked("fedalc-fixed", settings, **config))
    ours, joined = known(tmp_path / "psi"), known(tmp_path / "join")
    np.testing.assert_array_equal(ours.counts, joined.counts)
    np.testing.assert_array_equal(ours.together.toarray(), joined.together.toarray())


@pytest.mark.usefixtures("openmined")
def test_two_parties_are_enough(parties: Nodes, tmp_path: Path) -> None:
    two = {node: parties[node] for node in (101, 7)}
    watched(two, tmp_path / "run")
    assert known(tmp_path / "run").counts.shape == (5,)


# --- what the server has ---


@pytest.mark.usefixtures("openmined")
def test_the_server_has_no_digest_and_no_point_twice(parties: Nodes, train: Split, tmp_path: Path) -> None:
    grid = watched(parties, tmp_path / "run")
    has = all_that_the_server_has(grid, tmp_path / "run")
    hasher = Hasher("hmac-sha256", Key.read(parties[7]["key"]), run=RUN_ID)
    for digest in hasher.instances(canonical_features(train.features)):
        assert digest.tobytes()[:8] not in has and digest.tobytes()[:8].hex().encode() not in has
    points = [point.tobytes() for reply in grid.replies for array in points_of(reply) for point in array]
    assert len(points) > 500 and len(set(points)) == len(points)  # so no record can be followed over pairs of labels


def points_of(message: Message) -> list[np.ndarray]:
    records = message.content.array_records.values() if message.has_content() else ()
    arrays = [array for record in records for array in record.values() if isinstance(array, Array)]
    return [
        np.frombuffer(array.data, np.uint8).reshape(array.shape)
        for array in arrays
        if array.dtype == "uint8" and array.shape[1:] == (psi.POINT_BYTES,)
    ]


@pytest.mark.usefixtures("openmined")
def test_bitmaps_show_empty_buckets_of_all_parties_together(parties: Nodes, train: Split, tmp_path: Path) -> None:
    grid = watched(parties, tmp_path / "run")
    sent = [reply.content for reply in grid.replies if reply.metadata.message_type == ANSWERS]
    bitmaps = [unpack(content, "bitmap", {"numbers": ("uint64", (None,))})["numbers"] for content in sent]
    assert len(bitmaps) == 4
    nonzero = sum(bitmaps)[sum(bitmaps) != 0]
    assert 0.3 < (nonzero % 2).mean() < 0.7  # no parity of how many have a record in a bucket
    for some in (bitmaps[:1], bitmaps[:3], bitmaps[1:]):
        partial = np.sum(some, axis=0, dtype=np.uint64)
        assert (partial == 0).sum() == 0 and abs((partial >> np.uint64(63)).mean() - 0.5) < 0.05
    total = np.sum(bitmaps, axis=0, dtype=np.uint64)
    occupied = total[total > 0]
    assert len(train) * 0.9 < len(occupied) <= len(train)
    assert (occupied > 1 << 32).all()  # random numbers, and not how many parties or labels a record has


# --- a server that cheats ---


def asked_again(grid: LocalGrid, parties: Nodes, kind: str, change: Callable[[RecordDict], None]) -> Message:
    """Ask a party that was asked before again, with a changed question."""
    question = next(m for m in grid.pushed if m.metadata.message_type == kind and "pairs 0" in m.content)
    question, node = over_the_wire(question)[0], question.metadata.dst_node_id
    change(question.content)
    return grid.app(question, Context(1, node, parties[node], grid.states[node], {}))


def with_own_records(content: RecordDict) -> None:
    """A request with guessed records: valid points, of the right number, but no party has made them."""
    sizes = unpack(content, "points 0", {"sizes": ("int64", (None,)), "points": ("uint8", (None, psi.POINT_BYTES))})[
        "sizes"
    ]
    guesses = [psi.ask(bytes([7] * 32), [f"guess {i}" for i in range(size)]) for size in sizes]
    content["points 0"] = pack({"sizes": sizes, "points": np.concatenate(guesses)})


def other_tag(content: RecordDict) -> None:
    content["psi"] = ConfigRecord(dict(content["psi"]) | {"tags": [bytes(32)] * len(content["psi"]["tags"])})


def other_share(content: RecordDict) -> None:
    content["task"] = ConfigRecord(dict(content["task"]) | {"share": 0.5})


def other_name(content: RecordDict) -> None:
    content["psi"] = ConfigRecord(dict(content["psi"]) | {"parties": ["x", *content["psi"]["parties"][1:]]})


def other_keys(content: RecordDict) -> None:
    keys = [bytes([9] * 32), *content["psi"]["keys"][1:]]
    content["psi"] = ConfigRecord(dict(content["psi"]) | {"keys": keys})


def more_buckets(content: RecordDict) -> None:
    """A larger bitmap would show how many records there are to the last one."""
    content["psi"] = ConfigRecord(dict(content["psi"]) | {"pairs": [9000, *content["psi"]["pairs"][1:]]})


def fewer_parties(content: RecordDict) -> None:
    said = dict(content["psi"])
    content["psi"] = ConfigRecord(said | {name: said[name][1:] for name in ("names", "keys", "key-tags", "pairs")})


def other_label(content: RecordDict) -> None:
    """Another label of the other party."""
    pairs = unpack(content, "pairs 0", {name: ("uint8", (None, 16)) for name in ("asking", "answering")})
    theirs = "asking" if "points 0" in content else "answering"
    content["pairs 0"] = pack(pairs | {theirs: pairs[theirs] ^ np.uint8(1)})


def pair_of_its_own(content: RecordDict) -> None:
    pairs = unpack(content, "pairs 0", {name: ("uint8", (None, 16)) for name in ("asking", "answering")})
    content["pairs 0"] = pack({"asking": pairs["asking"], "answering": pairs["asking"]})


def no_pairs(content: RecordDict) -> None:
    del content["pairs 0"]


def wrong_sizes(content: RecordDict) -> None:
    wanted = {"sizes": ("int64", (None,)), "points": ("uint8", (None, psi.POINT_BYTES))}
    arrays = unpack(content, "points 0", wanted)
    content["points 0"] = pack({"sizes": -arrays["sizes"], "points": arrays["points"]})


@pytest.fixture(scope="module")
def after_a_run(parties: Nodes, tmp_path_factory: pytest.TempPathFactory) -> LocalGrid:
    pytest.importorskip("private_set_intersection", reason="needs openmined-psi: pip install 'fedalc[psi]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedalc.report.page.write_page", lambda *folder: None)
        return watched(parties, tmp_path_factory.mktemp("psi") / "run")


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        (ANSWERS, with_own_records, "has not made in this run"),
        (ANSWERS, other_tag, "has not made in this run"),
        (ANSWERS, other_name, "has not made in this run"),
        (ANSWERS, other_label, "has not made in this run"),
        (ANSWERS, other_keys, "has not sent in this run"),
        (ANSWERS, more_buckets, "has not sent in this run"),
        (ANSWERS, fewer_parties, "another key of this party|differs from an earlier message"),
        (ANSWERS, other_share, "used with other settings before"),
        (ANSWERS, wrong_sizes, "do not add up"),
        (ANSWERS, no_pairs, "there are no pairs 0"),
        (REQUESTS, other_label, "differs from an earlier message of this run .psi asked"),
        (REQUESTS, other_name, "differs from an earlier message of this run .psi asked"),
        (REQUESTS, pair_of_its_own, "not of this party's with another's"),
        (COUNTS, other_tag, "has not given to this party's request"),
        (COUNTS, other_name, "has not given to this party's request"),
    ],
)
def test_a_server_that_cheats_is_refused(
    kind: str, change: Callable[[RecordDict], None], problem: str, after_a_run: LocalGrid, parties: Nodes
) -> None:
    reply = asked_again(after_a_run, parties, kind, change)
    assert reply.has_error() and re.search(problem, reply.error.reason), reply


@pytest.mark.parametrize("kind", [REQUESTS, ANSWERS, COUNTS])
def test_the_same_question_gets_the_same_bytes(kind: str, after_a_run: LocalGrid, parties: Nodes) -> None:
    """So that a lost answer can be asked for again, and nothing new is learnt by it."""
    reply = asked_again(after_a_run, parties, kind, lambda content: None)
    node = reply.metadata.src_node_id
    before = next(r for r in after_a_run.replies if r.metadata.message_type == kind and r.metadata.src_node_id == node)
    assert len(reply.content.array_records) > 0
    for name, record in reply.content.array_records.items():
        assert {key: array.data for key, array in record.items()} == {
            key: array.data for key, array in before.content.array_records[name].items()
        }
    assert kind == COUNTS or reply.content["psi"] == before.content["psi"]


@pytest.mark.parametrize("kind", [REQUESTS, ANSWERS])
def test_a_party_that_restarted_answers_no_second_time(
    kind: str, after_a_run: LocalGrid, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its secrets are gone. With new ones the server would get the same records masked in another way."""
    states = {node: RecordDict(dict(state)) for node, state in after_a_run.states.items()}
    for state in states.values():
        del state["fedalc-psi-seed"]
    monkeypatch.setattr(after_a_run, "states", states)
    reply = asked_again(after_a_run, parties, kind, lambda content: None)
    assert reply.has_error() and re.search("restarted since|another key of this party", reply.error.reason)


def test_what_a_party_allows(after_a_run: LocalGrid, parties: Nodes) -> None:
    for name in ("intersections", "points"):
        few = {node: config | {"allow": f"{name}=1"} for node, config in parties.items()}
        reply = asked_again(after_a_run, few, REQUESTS, lambda content: None)
        assert reply.has_error() and f"{name} = " in reply.error.reason


def test_digests_are_not_sent_in_such_a_run(after_a_run: LocalGrid, parties: Nodes) -> None:
    hello = next(m for m in after_a_run.pushed if m.metadata.message_type == "query.hello")
    for kind in ("query.label_sets", "query.held_out"):
        question, node = over_the_wire(hello)[0], hello.metadata.dst_node_id
        question.metadata.__dict__["_message_type"] = kind
        reply = after_a_run.app(question, Context(1, node, parties[node], after_a_run.states[node], {}))
        assert reply.has_error() and "in a run that collects by psi" in reply.error.reason


def test_a_party_may_refuse_every_join(parties: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server says how it collects. A party that sends no digests takes part in no run that joins them."""
    firm = {node: config | {"no-digests": True} for node, config in parties.items()}
    with pytest.raises(FedalcError, match="no party's label sets could be used"):
        run(LocalGrid(firm), tmp_path / "run", asked("fedalc", PSI | {"collection.by": "join"}))
    assert "which this party does not send (--no-digests)" in capsys.readouterr().out


def test_points_that_are_none_and_points_twice(
    after_a_run: LocalGrid, parties: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a party with the key, which could write a tag."""
    monkeypatch.setattr("fedalc.deployment.flower.party_intersections.compare_digest", lambda *parts: True)
    monkeypatch.setattr("fedalc.deployment.flower.party_intersections.check_unchanged", lambda *parts: None)
    for value, problem in ((None, "of which two are the same"), (0, "no points")):

        def change(content: RecordDict, value: int | None = value) -> None:
            wanted = {"sizes": ("int64", (None,)), "points": ("uint8", (None, psi.POINT_BYTES))}
            arrays = unpack(content, "points 0", wanted)
            points = arrays["points"].copy()
            points[0] = points[1] if value is None else value
            content["points 0"] = pack({"sizes": arrays["sizes"], "points": points})

        reply = asked_again(after_a_run, parties, ANSWERS, change)
        assert reply.has_error() and problem in reply.error.reason


def test_some_labels_of_a_party_in_another_run_are_refused(after_a_run: LocalGrid, parties: Nodes) -> None:
    """The size of unions of labels that the server chooses, over several runs, would show how many records have three
    given labels."""
    hasher = Hasher("hmac-sha256", Key.read(parties[7]["key"]), run="another")
    question = next(m for m in after_a_run.pushed if m.metadata.message_type == REQUESTS)
    node = question.metadata.dst_node_id
    labels = [hasher.labels([NAMES[label]])[0].tobytes() for label in OWNED[node]]
    for asked_for in (labels, labels[:-1]):
        content = RecordDict({"psi": ConfigRecord({"parties": []})})
        about = {"run": "another", "labels": asked_for, "numbers": list(range(len(asked_for)))}
        content["task"] = ConfigRecord(dict(question.content["task"]) | about)
        message = over_the_wire(Message(content, node, REQUESTS))[0]
        message.metadata.__dict__["_run_id"] = 1
        reply = after_a_run.app(message, Context(1, node, parties[node], RecordDict(), {}))
        assert reply.has_error() == (asked_for != labels)
    assert "leaves out 1 of this party's labels" in reply.error.reason


@pytest.mark.usefixtures("openmined")
@pytest.mark.long
def test_a_bitmap_of_fewer_parties_in_another_run_is_refused(
    parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unions over chosen parties show what unions over chosen labels do."""
    monkeypatch.setattr(intersections, "ATTEMPTS", 1)
    nodes = {node: config | {"state": str(tmp_path / str(node))} for node, config in parties.items()}
    fewer = {node: nodes[node] for node in (7, 55, 101)}
    watched(nodes, tmp_path / "four")
    with pytest.raises(TooFew, match="bitmap_lists = 2 is outside 1 to 1"):
        watched(fewer, tmp_path / "three", **{"run-id": "three"})
    allowed = {node: config | {"allow": "bitmap_lists=2"} for node, config in fewer.items()}
    watched(allowed, tmp_path / "allowed", **{"run-id": "allowed"})


@pytest.mark.usefixtures("openmined")
def test_nothing_follows_from_the_order_of_points() -> None:
    """A record has another place among the points for every other label."""
    elements = [f"{number:02x}" for number in range(40)]
    for secret in (bytes([7] * 32), bytes([8] * 32)):
        points, backwards = psi.ask(secret, elements), psi.ask(secret, elements[::-1])
        assert [point.tobytes() for point in points] == sorted(point.tobytes() for point in backwards)
        for answered in psi.answer(bytes([9] * 32), points, elements):
            assert [point.tobytes() for point in answered] == sorted(point.tobytes() for point in answered)


# --- lost parties, and what does not go together ---


@pytest.mark.usefixtures("openmined")
@pytest.mark.long
def test_a_lost_answer_is_asked_for_again(parties: Nodes, tmp_path: Path) -> None:
    grid, lost = LocalGrid(parties), []

    def tamper(question: Message, reply: Message) -> Message | None:
        kind = question.metadata.message_type
        if kind.startswith("query.psi") and kind not in lost:
            lost.append(kind)
            return None
        return reply

    grid.tampering[7] = tamper
    run(grid, tmp_path / "run", asked("fedalc", PSI, **{"num-server-rounds": 1}))
    assert lost == [REQUESTS, ANSWERS, COUNTS]
    assert [party for _, party, _ in notes(tmp_path / "run", "has not intersected its labels")] == ["party 7"] * 3
    watched(parties, tmp_path / "whole")
    ours, whole = known(tmp_path / "run"), known(tmp_path / "whole")
    assert ours.instances == whole.instances and (ours.together != whole.together).nnz == 0


@pytest.mark.usefixtures("openmined")
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [REQUESTS, ANSWERS, COUNTS])
def test_a_party_that_sends_nonsense_ends_the_run_by_name(
    kind: str, parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tamper(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == kind and reply.has_content():
            name = next(iter(reply.content.array_records))
            reply.content[name] = pack({"counts": np.full(3, -1)})
        return reply

    monkeypatch.setattr(intersections, "ATTEMPTS", 1)
    grid = LocalGrid(parties)
    grid.tampering[55] = tamper
    with pytest.raises(TooFew, match="needs all parties, and party 55 did not take part"):
        run(grid, tmp_path / "run", asked("fedalc", PSI))


def test_without_the_package_a_party_says_what_to_install(
    parties: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection", None)
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    with pytest.raises(TooFew):
        run(LocalGrid(parties), tmp_path / "run", asked("fedalc", PSI, wait=1.0))
    assert "needs openmined-psi: pip install 'fedalc[psi]'" in capsys.readouterr().out


@pytest.mark.usefixtures("openmined")
def test_many_labels_are_refused(parties: Nodes, tmp_path: Path) -> None:
    grid = LocalGrid(parties)
    with pytest.raises(ConfigError, match="is for few labels: 7 need 21 pairs, and at most 6 labels are allowed"):
        run(grid, tmp_path / "run", asked("fedalc", PSI | {"collection.most_labels": 6}))
    assert not [kind for _, kind, _ in grid.asked if "psi" in kind]


@pytest.mark.usefixtures("openmined")
def test_parties_of_the_same_name_are_refused(parties: Nodes, tmp_path: Path) -> None:
    same = {node: config | {"client": "clinic"} for node, config in parties.items()}
    with pytest.raises(FedalcError, match="parties are named"):
        run(LocalGrid(same), tmp_path / "run", asked("fedalc", PSI))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"set": "clients=parties"}, "needs labels that one party has"),
        ({"set": "clients=parties", "num-parties": 3}, "needs labels that one party has"),
        ({"method": "fedalc-fixed", "rank-held-out": "on"}, "needs digests of held-out records"),
        ({"method": "fedalc-exact", "tune": True, "set": "client.set_size=expected"}, "ranks held-out records|psi"),
        ({"method": "fedalc-exact"}, "needs the size of each label set"),
        ({"set": "privacy.epsilon=1"}, "noise needs label sets"),
    ],
)
def test_what_it_does_not_go_with(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_run_config({"method": "fedalc", "num-parties": 2, "collection": "psi", **config}, 1)


def test_secure_sums_go_with_fixed_rows() -> None:
    _, settings = read_run_config({"method": "fedalc-fixed", "num-parties": 3, "collection": "psi"}, 1)
    assert settings.secure_sums.on and settings.collection.by == "psi"
    deployment, settings = read_run_config({"method": "fedalc", "num-parties": 2, "collection": "psi"}, 1)
    assert not settings.secure_sums.on and settings.collection.by == "psi" and not deployment.ranks
