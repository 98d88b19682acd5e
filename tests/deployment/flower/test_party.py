"""A party against a malicious server, and what the party reveals."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.census import Census, question
from fedalc.deployment.flower.client_app import PARTY_ERROR
from fedalc.deployment.flower.client_app import app as client_app
from fedalc.deployment.flower.connections import Parties, Patience
from fedalc.deployment.flower.engine import FlowerEngine
from fedalc.deployment.flower.limits import sample_problem
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.take_census import take_census
from fedalc.deployment.flower.wire import pack
from fedalc.errors import FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.keys import Key
from fedalc.models.encoders import Chance
from fedalc.training.federated import begin_training
from tests.deployment.flower.local_grid import LocalGrid, over_the_wire
from tests.deployment.flower.problem import (
    NAMES,
    OWNED,
    RUN_ID,
    SETTINGS,
    Nodes,
    asked,
    in_round,
    literal_twin,
    notes,
    overrides,
    places,
    run,
)

NODE = 7


def ask(config: dict[str, Any], kind: str, content: RecordDict) -> Message:
    LocalGrid({})  # stamps messages
    message = Message(content, NODE, kind)
    message.metadata.__dict__["_message_id"] = "1"
    reply = client_app(message, Context(1, NODE, config, RecordDict(), {}))
    return over_the_wire(reply)[0]


def train_message(parties: Nodes, method: str = "fedavg", settings: dict[str, Any] = SETTINGS) -> RecordDict:
    """Return an honest server's message for round 1."""
    captured: list[RecordDict] = []
    grid = LocalGrid(parties)

    def keep(message: Message, reply: Message) -> Message:
        captured.append(message.content)
        return reply

    kind = "train.sums" if method == "fedalc-oneshot" else "train"
    grid.tampering[NODE] = in_round(1, keep, kind)
    experiment_settings = experiment({"method": method, "engine": "clients"}, overrides=overrides(settings))
    talk = Parties(
        grid, Patience(4, 1, 1.0, 1.0), lambda: question(experiment_settings, 0.0, RUN_ID), say=lambda line: None
    )
    census = take_census(talk, experiment_settings, 0.0, RUN_ID)
    federated = begin_training(
        experiment_settings,
        census.roster,
        lambda m: FlowerEngine(talk, census, m, experiment_settings),
        census.knowledge,
    )
    federated.run_round()
    return captured[0]


@pytest.fixture(scope="module")
def honest(parties: Nodes) -> RecordDict:
    return train_message(parties)


def with_task(content: RecordDict, **values: Any) -> RecordDict:
    return RecordDict({**content, "task": ConfigRecord({**content["task"], **values})})


def with_settings(content: RecordDict, **values: Any) -> RecordDict:
    settings = json.loads(str(content["task"]["settings"]))
    for path, value in values.items():
        section, key = path.split("__")
        if section == "top":
            settings[key] = value
        else:
            settings.setdefault(section, {})[key] = value
    return with_task(content, settings=json.dumps(settings))


def assert_refused(reply: Message, why: str = "") -> None:
    assert reply.has_error() and reply.error.code == PARTY_ERROR
    assert why in str(reply.error.reason), reply.error.reason


def test_an_honest_message_is_answered(parties: Nodes, honest: RecordDict) -> None:
    assert ask(parties[NODE], "train", honest).has_content()


Change = Callable[[RecordDict], RecordDict]
HOSTILE: dict[str, tuple[Change, str]] = {
    "no task": (lambda c: RecordDict(), "no task"),
    "settings no JSON": (lambda c: with_task(c, settings="{"), "cannot be read"),
    "settings invalid": (lambda c: with_settings(c, encoder__dim=0), "encoder.dim"),
    "settings of an oracle": (lambda c: with_settings(c, top__method="sleec"), ""),
    "another version": (lambda c: with_task(c, version=6), "version 6"),
    "share 1": (lambda c: with_task(c, share=1.0), "share"),
    "share below 0": (lambda c: with_task(c, share=-0.1), "share"),
    "share no number": (lambda c: with_task(c, share=float("nan")), "share"),
    "a label of others": (
        lambda c: with_task(c, labels=[b"?" * 16], numbers=[1]),
        "not this party's",
    ),
    "no label": (lambda c: with_task(c, labels=[], numbers=[]), "no labels"),
    "a label twice": (lambda c: with_task(c, labels=[c["task"]["labels"][0]] * 2, numbers=[1, 2]), "twice"),
    "a number too few": (lambda c: with_task(c, numbers=[1]), "one number"),
    "rows for more labels": (lambda c: RecordDict({**c, "rows": pack({"rows": np.ones((4, 6), "f4")})}), "rows"),
    "a row of nan": (lambda c: RecordDict({**c, "rows": pack({"rows": np.full((3, 6), np.nan, "f4")})}), "finite"),
    "no theta": (lambda c: RecordDict({k: v for k, v in c.items() if k != "theta"}), "theta"),
    "theta of another shape": (lambda c: RecordDict({**c, "theta": pack({"0": np.ones((20, 5), "f4")})}), "theta"),
    "gigantic encoder": (lambda c: with_settings(c, encoder__hidden=[10**6, 10**6]), "encoder.hidden"),
    "gigantic embedding": (lambda c: with_settings(c, encoder__embedding=10**15), "encoder.embedding"),
    "a billion sub-models": (
        lambda c: with_settings(c, top__method="fedmlh", hashing__tables=10**9, hashing__buckets=9),
        "settings",
    ),
    "a million layers": (lambda c: with_settings(c, encoder__hidden=[1] * 10**6), "settings"),
    "a share that singles out an instance": (lambda c: with_task(c, share=0.10001), "share"),
    "a sample of single instances": (lambda c: with_settings(c, client__sample=0.1), "client.sample = 0.1 draws"),
    "all but single instances": (lambda c: with_settings(c, client__sample=0.99), "client.sample = 0.99 draws"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_message_is_refused_and_costs_nothing(parties: Nodes, honest: RecordDict, case: str) -> None:
    change, why = HOSTILE[case]
    content = change(honest)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_refused(ask(parties[NODE], "train", content), why)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@pytest.mark.parametrize(
    ("counts", "sample", "instead"),
    [([320, 0, 400], 0.025, None), ([16], 0.5, None), ([1], 1.0, None), ([0], 0.1, None),
     ([319, 400], 0.025, "319 instances on average, which is too few for a party to answer; use 0.026 to 0.974, or 1"),
     ([100], 0.93, "100 instances on average, which is too few for a party to answer; use 0.08 to 0.92, or 1"),
     ([15, 400], 0.5, "15 instances on average, which is too few for a party to answer; use 1")],
)  # fmt: skip
def test_how_small_a_sample_may_be(counts: list[int], sample: float, instead: str | None) -> None:
    problem = sample_problem(np.array(counts), sample)
    start = f"client.sample = {sample:g} draws, or leaves out, fewer than 8 of a label's "
    assert problem == ("" if instead is None else start + instead)


def test_how_small_a_sample_may_be_is_the_partys_own_choice(parties: Nodes, honest: RecordDict) -> None:
    """Its labels have at least 6 instances."""
    halves = with_settings(honest, client__sample=0.5)
    for fewest, taken in ((1, True), (3, True), (4, False), (8, False)):
        reply = ask(parties[NODE] | {"fewest": fewest}, "train", halves)
        assert reply.has_content() == taken
        if not taken:
            assert_refused(reply, f"client.sample = 0.5 draws, or leaves out, fewer than {fewest} of a label's")


def drawn(parties: Nodes, content: RecordDict, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the instances that the party draws to answer this message, by label."""
    masks: list[np.ndarray] = []
    chosen = Chance.chosen

    def kept(chance: Chance, keys: np.ndarray) -> np.ndarray:
        masks.append(chosen(chance, keys))
        return masks[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Chance, "chosen", kept)
        assert ask(parties[NODE], "train", content).has_content()
    return np.concatenate(masks)


@pytest.mark.long
def test_the_digests_do_not_tell_whom_a_sample_draws(
    parties: Nodes, honest: RecordDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that can predict the draws would try rounds until one draws its target almost alone."""
    party = Party.from_node_config(parties[NODE], run=RUN_ID)
    settings = experiment({"method": "fedavg", "client": {"sample": 0.5}}, overrides=[])
    digests = party.digests(SharedEncoder(settings.encoder, settings.seed))
    sent = np.frombuffer(ask(parties[NODE], "query.label_sets", honest).content["messages"]["digests"].data, np.uint8)
    assert {d.tobytes() for d in digests} == {d.tobytes() for d in sent.reshape(-1, 16)}, "these the server has"
    of_label = party.holding.split.labels.tocsc()
    known = digests[np.concatenate([np.sort(of_label[:, [u]].indices) for u in range(of_label.shape[1])])]
    halves = with_settings(honest, client__sample=0.5)
    right, rounds = np.zeros((2, len(known))), 30
    for t in range(1, rounds + 1):
        chance = Chance(settings, t, torch.empty(0))
        found = drawn(parties, with_task(halves, round=t), monkeypatch)
        for way, order in enumerate(("<i8", ">i8")):
            right[way] += chance.chosen(np.ascontiguousarray(known[:, :8]).view(order).ravel()) == found
    spread = np.sqrt(rounds / 4)  # of a coin's
    assert np.abs(right - rounds / 2).max() < 4.5 * spread
    assert np.abs(right.mean(axis=1) - rounds / 2).max() < 4 * spread / np.sqrt(len(digests))


def test_samples_of_almost_one_size_are_not_almost_the_same(
    parties: Nodes, honest: RecordDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise their answers would differ by one instance's gradient."""
    one, again, other = (
        drawn(parties, with_settings(honest, client__sample=sample), monkeypatch) for sample in (0.5, 0.5, 0.501)
    )
    assert (one == again).all() and (one != other).mean() > 0.25


def test_theta_that_is_not_finite(parties: Nodes, honest: RecordDict) -> None:
    old = honest["theta"]
    arrays = {name: np.full(array.shape, np.nan, "f4") for name, array in old.items()}
    assert_refused(ask(parties[NODE], "train", RecordDict({**honest, "theta": pack(arrays)})), "not finite")


def test_sums_are_only_for_the_method_that_has_them(parties: Nodes, honest: RecordDict) -> None:
    big = with_settings(honest, encoder__hidden=[5 * 10**4, 5 * 10**4])
    assert_refused(ask(parties[NODE], "train.sums", big), "which does not use any")


@pytest.mark.parametrize("kind", ["query.hello", "query.label_sets", "train", "evaluate"])
def test_an_encoder_for_hashing_by_embedding_has_to_fit(parties: Nodes, honest: RecordDict, kind: str) -> None:
    config = {**parties[NODE], "identity": "embedding", "allow": "encoder.embedding=1e13"}
    assert ask(config, "query.hello", honest).has_content()
    assert_refused(ask(config, kind, with_settings(honest, encoder__embedding=10**12)), "GB")


def test_a_matrix_of_features_by_features_has_to_fit(parties: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = {"encoder.name": "linear", "encoder.dim": 8, "encoder.start": "zero", "encoder.output": "raw"}
    content = train_message(parties, "fedalc-oneshot", linear | {"client.loss": "square"})
    wide = with_settings(content, encoder__dim=60_000)  # which nothing of the sums needs
    assert ask(parties[NODE], "train.sums", wide).has_content()
    assert ask(parties[NODE], "train.sums", content).has_content()
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=2500))
    assert_refused(ask(parties[NODE], "train.sums", content), "more than half of this machine")


@pytest.mark.parametrize("kind", ["query.hello", "train", "evaluate", "query.label_sets"])
def test_what_went_wrong_is_for_the_partys_own_log(
    parties: Nodes, honest: RecordDict, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**parties[NODE], "data": "/home/bank/secret customers"}
    with caplog.at_level(logging.ERROR):
        reply = ask(config, kind, honest)
    assert_refused(reply)
    assert "secret" not in str(reply.error.reason) and "/" not in str(reply.error.reason)
    assert "secret customers" in caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "no", "/home/bank/x"), MemoryError("/home"), RuntimeError("/")])
def test_an_error_nobody_thought_of(
    parties: Nodes, honest: RecordDict, error: Exception, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr("fedalc.deployment.flower.party.load_holding", fail)
    reply = ask(parties[NODE], "train", honest)
    assert_refused(reply, type(error).__name__)
    assert "/" not in str(reply.error.reason)
    assert str(error) in caplog.text


def test_a_bad_key_file_is_not_told_of(parties: Nodes, honest: RecordDict, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("fedalc-key 1\n00ff\n")
    (tmp_path / "key").chmod(0o600)
    reply = ask({**parties[NODE], "key": str(tmp_path / "key")}, "query.hello", honest)
    assert_refused(reply, "see its own log")
    assert "00ff" not in str(reply.error.reason)


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_server_cannot_have_a_plain_hash(parties: Nodes, honest: RecordDict, algorithm: str) -> None:
    key = Key.read(parties[NODE]["key"])
    names = [NAMES[u] for u in OWNED[NODE]]
    keyed = {p.tobytes() for p in Hasher("hmac-sha256", key, run=RUN_ID).labels(names)}
    asking = with_settings(honest, collection__algorithm=algorithm, collection__digest_bytes=16)
    said = ask(parties[NODE], "query.hello", asking).content["introduction"]
    assert set(said["labels"]) == keyed
    sets = ask(parties[NODE], "query.label_sets", asking).content
    assert json.loads(str(sets["sender"]["protocol"]))["algorithm"] == "hmac-sha256"


@pytest.mark.parametrize(
    ("config", "why"),
    [({"key": None}, "key file"), ({"algorithm": "sha256"}, "no key"), ({"identity": "record"}, "records"),
     ({"digest-bytes": 3}, "digest-bytes")],
)  # fmt: skip
def test_a_party_that_is_set_up_wrongly_says_so_in_its_log(parties: Nodes, config: dict[str, Any], why: str) -> None:
    with pytest.raises(FedalcError, match=why):
        Party.from_node_config({k: v for k, v in (parties[NODE] | config).items() if v is not None})


def every_byte(grid: LocalGrid, folder: Path) -> bytes:
    messages = [*grid.pushed, *grid.replies]
    sent = [part.deflate() for message in messages for part in get_all_nested_objects(message).values()]
    return b"".join([*sent, *(path.read_bytes() for path in folder.rglob("*") if path.is_file())])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, parties: Nodes) -> tuple[LocalGrid, Path]:
    """Run everything once: label sets, rounds, evaluation at parties, and one party that is left out."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    grid = LocalGrid(parties | {66: {**parties[9], "data": "/home/bank/secret customers"}})
    grid.keeps = True
    grid.tampering[NODE] = in_round(2, lambda message, reply: Message(RecordDict(), reply_to=message))
    run(grid, folder, asked("fedalc", SETTINGS, **{"held-out-share": 0.2}))
    return grid, folder


def test_the_key_and_the_parties_files_are_nowhere(
    whole: tuple[LocalGrid, Path], parties: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = Path(parties[NODE]["key"]).read_text().split()[-1]
    grid, folder = whole
    found = every_byte(grid, folder)
    assert len(found) > 50_000
    for hidden in (secret.encode(), bytes.fromhex(secret), secret[:16].encode(), secret.upper().encode()):
        assert hidden not in found
    for hidden in ("secret customers", parties[NODE]["data"], parties[NODE]["key"], *NAMES):
        assert hidden.encode() not in found, "names of labels are not told either, unless share-names"
    assert notes(folder)


def test_the_key_is_not_in_what_is_printed(
    tmp_path: Path, parties: Nodes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = Path(parties[NODE]["key"]).read_text().split()[-1]
    with caplog.at_level(logging.DEBUG):
        run(LocalGrid(parties), tmp_path / "run", asked("fedalc", SETTINGS))
    printed = capfd.readouterr()
    assert printed.out and secret[:16] not in printed.out + printed.err + caplog.text


def test_each_party_is_sent_its_own_rows_and_pseudonyms_only(whole: tuple[LocalGrid, Path], parties: Nodes) -> None:
    grid, folder = whole
    census = Census.load(folder)
    assert census is not None
    roster = census.roster
    place = {int(name.split()[1]): party for party, name in enumerate(roster.parties)}
    seen = 0
    for message in grid.pushed:
        node = message.metadata.dst_node_id
        written = b"".join(part.deflate() for part in get_all_nested_objects(message).values())
        others = [p.tobytes() for u, p in enumerate(roster.pseudonyms) if roster.owner[u] != place.get(node)]
        assert not any(pseudonym in written or pseudonym.hex().encode() in written for pseudonym in others)
        if "rows" in message.content:
            seen += 1
            assert (
                message.content["rows"]["rows"].shape[0] == len(message.content["task"]["labels"]) <= len(OWNED[node])
            )
        assert set(message.content) <= {"task", "theta", "rows"}
    assert seen >= 12


def test_the_rows_that_are_sent_are_those_labels_rows(tmp_path: Path, train: Split, parties: Nodes) -> None:
    """Compare with the server's initial W."""
    sent: dict[int, np.ndarray] = {}
    grid = LocalGrid(parties)
    grid.keeps = True
    settings = experiment({"method": "fedavg", "engine": "clients"}, overrides=overrides(SETTINGS))
    W = literal_twin(settings, train, parties[NODE]["key"]).model.W
    run(grid, tmp_path / "run", asked("fedavg", SETTINGS, **{"num-server-rounds": 1}))
    for message in grid.pushed:
        if message.metadata.message_type == "train":
            rows = message.content["rows"]["rows"]
            sent[message.metadata.dst_node_id] = np.frombuffer(rows.data, "f4").reshape(rows.shape)
    for node, labels in OWNED.items():
        np.testing.assert_array_equal(sent[node], W[torch.from_numpy(places(parties[node]["key"], labels))].numpy())
