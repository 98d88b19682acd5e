"""Parties with texts: they agree on features by numbers of documents, and the deployment is its simulation."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message

import fedalc
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Dataset
from fedalc.data.load import load_dataset
from fedalc.data.text.features import HashedText, VocabularyText
from fedalc.data.text.keyed import KeyedVocabularyText, key_check, term_digest, term_digests
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower import party_texts
from fedalc.deployment.flower.agreement import FACTS, TEXT
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.party import Party
from fedalc.deployment.flower.wire import pack, unpack
from fedalc.deployment.twin import in_one_process
from fedalc.errors import ConfigError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import byte_order
from fedalc.labels.collection.pseudonyms import terms_key
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.labels.privacy.ledger import Ledger
from fedalc.models.trained import TrainedModel
from fedalc.runs.result import read_result
from tests.commands import run as command
from tests.data.test_party_texts import ALL, WORDS, write_texts
from tests.deployment.flower.local_grid import LocalGrid, Tamper
from tests.deployment.flower.problem import LINEAR, RUN_ID, SETTINGS, Nodes, asked, notes, overrides, run

SHARED: dict[str, Any] = {"clients": "parties", "dtype": "float64"}
TEXTS: dict[str, dict[str, Any]] = {
    "vocabulary": {},
    "vocabulary, fewer terms": {"text.most_terms": 9, "text.largest_share": 0.8, "text.words": [1, 2]},
    "vocabulary, no idf": {"text.idf": False, "text.least_parties": 1, "text.least_documents": 5},
    "hashing": {"text.kind": "hashing", "text.buckets": 256},
    "hashing, no idf": {"text.kind": "hashing", "text.buckets": 256, "text.idf": False},
}
ONESHOT = ("fedalc-oneshot", LINEAR)
MLP = ("fedalc", SETTINGS)  # its first θ depends on the order of features


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "clinics")


@pytest.fixture
def nodes(tmp_path: Path, clinics: Path) -> Nodes:
    key = tmp_path / "key"
    Key(bytes(range(7, 47))).write(key)
    common = {"key": str(key), "fewest": 1}
    return {
        node: {"data": str(clinics / party), "client": party, "state": str(tmp_path / party), **common}
        for node, party in {11: "north", 2: "south"}.items()
    }


def for_two(method: str, settings: dict[str, Any], **config: Any) -> dict[str, Any]:
    return asked(method, SHARED | settings, **{"num-parties": 2, **config})


def key_of(nodes: Nodes) -> bytes:
    return terms_key(Hasher("hmac-sha256", Key.read(nodes[2]["key"]), run=RUN_ID))


def in_order_of_digests(data: Dataset, key: bytes) -> Dataset:
    """Return the simulation's data with its columns as a deployment has them."""
    if not isinstance(data.text, VocabularyText):
        return data
    order = byte_order(term_digests(key, data.text.terms))
    train = fedalc.Split(data.train.features[:, order], data.train.labels, parties=data.train.parties)
    return Dataset(data.name, train, label_names=data.label_names)


def as_text_files(clinics: Path) -> None:
    """Write each party's texts as files in a folder for each label."""
    for party in ("north", "south"):
        table = clinics / party / "train.csv"
        for number, line in enumerate(table.read_text().splitlines()[1:]):
            text, _, label = line.rpartition(",")
            (clinics / party / label).mkdir(exist_ok=True)
            (clinics / party / label / f"{number}.txt").write_text(text)
        table.unlink()


def test_folders_of_text_files(tmp_path: Path, clinics: Path, nodes: Nodes) -> None:
    of_table = load_dataset(clinics, table=ALL)
    as_text_files(clinics)
    data = load_dataset(clinics, table=ALL)
    assert isinstance(data.text, VocabularyText) and isinstance(of_table.text, VocabularyText)
    assert data.text.terms == of_table.text.terms and len(data.train) == len(of_table.train)
    found = run(LocalGrid(nodes), tmp_path / "run", for_two(*ONESHOT))
    assert isinstance(found.text, KeyedVocabularyText) and found.feature_count == len(data.text.terms)
    census = Census.load(tmp_path / "run")
    assert census is not None and int(census.roster.counts.sum()) == len(data.train)


def test_what_a_record_is_does_not_depend_on_its_features(clinics: Path, nodes: Nodes) -> None:
    """Otherwise a server could have other texts held out, by other settings of texts, in each run."""

    def party(buckets: int, run_id: str) -> Party:
        text = TextSettings(kind="hashing", buckets=buckets, idf=False)
        return Party.from_node_config(nodes[2], run=run_id, text=lambda _: text)

    few, many = party(64, "one"), party(256, "two")
    assert few.holding.split.features.shape != many.holding.split.features.shape
    assert few.lasting_digests.tolist() == many.lasting_digests.tolist() and few.fingerprint == many.fingerprint
    assert 0 < few.held_out(0.5).sum() < len(few.holding.split)
    assert few.held_out(0.5).tolist() == many.held_out(0.5).tolist()
    table = clinics / "south" / "train.csv"
    table.write_text(table.read_text() + "another text,fever\n")
    other = party(64, "one")
    assert set(map(bytes, few.lasting_digests)) < set(map(bytes, other.lasting_digests))
    assert other.fingerprint != few.fingerprint


def test_the_key_of_terms_is_that_of_the_specification() -> None:
    """docs/collection-format.md, literally."""
    of_run = hmac.digest(bytes(range(7, 47)), b"fedalc/2/run\0" + RUN_ID.encode(), "sha512")
    hasher = Hasher("hmac-sha256", Key(bytes(range(7, 47))), run=RUN_ID)
    assert terms_key(hasher) == hmac.digest(of_run, b"fedalc/1/terms", "sha512")


@pytest.mark.few(2)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("method", [ONESHOT, MLP], ids=["oneshot", "fedalc"])
def test_the_deployment_of_texts_is_their_simulation(
    tmp_path: Path, clinics: Path, nodes: Nodes, text: str, method: tuple[str, dict[str, Any]]
) -> None:
    """Equal in float64; a vocabulary's columns are in the order of digests instead of words."""
    settings = SHARED | method[1] | TEXTS[text]
    found = run(LocalGrid(nodes), tmp_path / "run", for_two(method[0], settings))
    chosen = experiment({"method": method[0], "engine": "clients", "rounds": 3}, overrides=overrides(settings))
    data = load_dataset(clinics, table=ALL, text=chosen.text)
    assert data.text is not None and data.feature_count == found.feature_count
    key, texts = key_of(nodes), ["the throat is dry", "red skin, red skin"]
    if isinstance(data.text, VocabularyText):
        assert isinstance(found.text, KeyedVocabularyText)
        theirs = found.text.unlocked(key)
        assert {digest.tobytes() for digest in theirs.digests} == {term_digest(key, term) for term in data.text.terms}
        order = byte_order(term_digests(key, data.text.terms))
        assert (theirs.transform(texts) != data.text.transform(texts)[:, order]).nnz == 0
    else:
        assert isinstance(found.text, HashedText)
        assert (found.text.transform(texts) != data.text.transform(texts)).nnz == 0
    data = in_order_of_digests(data, key)
    literal = in_one_process(chosen, data.train, data.label_names, nodes[2]["key"], RUN_ID)
    for _ in range(1 if literal.method.one_round else 3):
        literal.run_round()
    expected = literal.averaged_model()
    assert max(parameter.abs().max().item() for parameter in expected.theta) > 1e-3
    for ours, theirs_ in zip([*found.model.theta, found.model.W], [*expected.theta, expected.W], strict=True):
        torch.testing.assert_close(ours, theirs_, rtol=1e-10, atol=1e-12)


def test_a_named_model_reads_texts(tmp_path: Path, nodes: Nodes) -> None:
    """No words are written down: the server's model cannot read texts, a named one has the key of its terms."""
    run(LocalGrid(nodes), tmp_path / "run", for_two(*ONESHOT))
    with pytest.raises(fedalc.FedalcError, match="fedalc key name-model"):
        TrainedModel.load(tmp_path / "run" / "model").predict(["the throat is dry"])
    (tmp_path / "names.txt").write_text("\n".join(WORDS) + "\n")
    command("key", "name-model", "run", "key", "names.txt", "--out", "named", cwd=tmp_path)
    for folder in (tmp_path / "run" / "model", tmp_path / "named"):
        content = b"".join(path.read_bytes() for path in folder.iterdir())
        assert b"throat" not in content and b"patient" not in content
    said = command("predict", "named", "the throat is dry", cwd=tmp_path).stdout
    assert "cough" in said
    Key(bytes(range(60, 100))).write(tmp_path / "other")
    wrong = command("key", "name-model", "run", "other", "names.txt", "--out", "no", cwd=tmp_path, code=2)
    assert "not the key under which parties agreed" in wrong.stderr + wrong.stdout


def test_names_that_parties_share(tmp_path: Path, nodes: Nodes) -> None:
    for node in nodes.values():
        node["share-names"] = True
    run(LocalGrid(nodes), tmp_path / "run", for_two(*ONESHOT))
    (tmp_path / "names.txt").write_text("fever\n")
    command("key", "name-model", "run", "key", "names.txt", "--out", "named", cwd=tmp_path)
    model = TrainedModel.load(tmp_path / "named")
    best = np.asarray(model.predict(["the throat is dry"])[0])[:, 0]
    assert [model.label_names[label] for label in best] == ["cough"]


def test_what_it_costs_and_who_asks_what(tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """The agreement is sent once, with the second hello. Its bytes are in the ledger."""
    grid = LocalGrid(nodes)
    grid.keeps = True
    run(grid, tmp_path / "run", for_two("fedavg", SETTINGS))
    kinds = [kind for _, kind, _ in grid.asked]
    assert kinds[:6] == ["query.hello"] * 2 + ["query.document_counts"] * 2 + ["query.hello"] * 2
    assert kinds[6:] == ["train"] * 6
    told = [message.metadata.message_type for message in grid.pushed if TEXT in message.content]
    assert told == ["query.hello"] * 2
    assert "2 parties with 56 texts agreed on 13 terms as features" in capsys.readouterr().out
    census = Census.load(tmp_path / "run")
    assert census is not None and census.text is not None
    sent = [reply.content[TEXT] for reply in grid.replies if TEXT in reply.content]
    lengths = [len(record["numbers"].data) // 8 for record in sent]  # type: ignore[union-attr]
    assert (census.text.bytes_up, census.text.bytes_down) == (24 * sum(lengths), 2 * 24 * 13)
    without = read_result(tmp_path / "run")
    theta = sum(parameter.numel() for parameter in TrainedModel.load(tmp_path / "run" / "model").model.theta)
    rows = 4 * SETTINGS["encoder.dim"]  # of both parties' labels
    assert without["bytes_up"] == census.text.bytes_up + 3 * 8 * (2 * theta + rows)
    assert without["bytes_down"] == census.text.bytes_down + 3 * 8 * (2 * theta + rows)


def test_the_server_sees_no_words(tmp_path: Path, nodes: Nodes) -> None:
    grid = LocalGrid(nodes)
    grid.keeps = True
    run(grid, tmp_path / "run", for_two(*ONESHOT))
    for message in [*grid.pushed, *grid.replies]:
        for record in message.content.values():
            seen = str(dict(record)).encode() if isinstance(record, ConfigRecord) else b"".join(
                array.data for array in record.values() if hasattr(array, "data")
            )  # fmt: skip
            assert not any(word.encode() in seen for word in ("throat", "patient", "brow", "day3"))


@pytest.mark.long
def test_a_run_is_resumed(tmp_path: Path, nodes: Nodes) -> None:
    """Also by parties that lost their state: the server tells them again."""
    asking = for_two("fedalc-exact", LINEAR | {"server.optimizer": "cg"})
    whole = run(LocalGrid(nodes), tmp_path / "whole", asking)
    grid = LocalGrid(nodes)

    def stop(message: Message) -> None:
        if message.metadata.group_id == "3":
            raise KeyboardInterrupt

    grid.before_push = stop
    with pytest.raises(KeyboardInterrupt):
        run(grid, tmp_path / "run", asking)
    again = LocalGrid({node: {**config, "state": f"{config['state']}-new"} for node, config in nodes.items()})
    found = run(again, tmp_path / "run", asking | {"resume": True})
    assert "query.document_counts" not in {kind for _, kind, _ in again.asked}
    torch.testing.assert_close(found.model.theta, whole.model.theta, rtol=1e-10, atol=1e-12)


def test_without_a_state_folder(tmp_path: Path, nodes: Nodes) -> None:
    """The agreement is then in Flower's context of the run."""
    with_state = run(LocalGrid(nodes), tmp_path / "with", for_two(*ONESHOT))
    for node in nodes.values():
        del node["state"]
    found = run(LocalGrid(nodes), tmp_path / "run", for_two(*ONESHOT))
    torch.testing.assert_close(found.model.theta, with_state.model.theta, rtol=0, atol=0)


@pytest.mark.long
def test_features_are_kept_between_messages(tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    turned: list[int] = []
    transform = KeyedVocabularyText.transform

    def count(self: KeyedVocabularyText, texts: Any, workers: int | None = None) -> Any:
        turned.append(len(texts))
        return transform(self, texts, workers)

    monkeypatch.setattr(KeyedVocabularyText, "transform", count)
    expected = run(LocalGrid(nodes), tmp_path / "each", for_two("fedavg", SETTINGS))
    assert len(turned) == 2 * (1 + 3)  # hello and three rounds, at each party
    turned.clear()
    monkeypatch.setattr("fedalc.deployment.flower.party_texts.WORTH_KEEPING", 5)
    found = run(LocalGrid(nodes), tmp_path / "kept", for_two("fedavg", SETTINGS))
    assert len(turned) == 2
    torch.testing.assert_close(found.model.theta, expected.model.theta, rtol=0, atol=0)
    (tmp_path / "north" / "text-features.npz").write_bytes(b"damaged")
    run(LocalGrid(nodes), tmp_path / "again", for_two("fedavg", SETTINGS))
    assert len(turned) == 3


def test_the_servers_own_texts(tmp_path: Path, clinics: Path, nodes: Nodes) -> None:
    """It can turn them into features if terms are hashed without a key."""
    test = tmp_path / "test.csv"
    test.write_text("text,labels\nthe throat is dry,cough\nred red skin,rash\nhot brow,fever\n")
    for node in nodes.values():
        node["share-names"] = True
    asking = for_two(ONESHOT[0], LINEAR | TEXTS["hashing"], **{"held-out": str(test)})
    run(LocalGrid(nodes), tmp_path / "run", asking)
    assert read_result(tmp_path / "run")["metrics"]["P@1"] == 100
    with pytest.raises(fedalc.FedalcError, match="held-out: the server cannot turn texts into features"):
        run(LocalGrid(nodes), tmp_path / "other", for_two(*ONESHOT, **{"held-out": str(test)}))


# --- a server that lies ---


def lie(change: Callable[[dict[str, np.ndarray], dict[str, Any]], None]) -> Callable[[Message], None]:
    """Change the agreement that south is told."""

    def before_push(message: Message) -> None:
        content = message.content
        if TEXT in content and message.metadata.dst_node_id == 2:
            names = content[TEXT]
            wanted = {name: (array.dtype, (None,) * len(array.shape)) for name, array in names.items()}
            arrays = {name: array.copy() for name, array in unpack(content, TEXT, wanted).items()}  # type: ignore[arg-type]
            facts = dict(content[FACTS])
            change(arrays, facts)
            content[TEXT], content[FACTS] = pack(arrays), ConfigRecord(facts)

    return before_push


def fewer(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    arrays["numbers"][:] = 1


def more(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    arrays["numbers"][0] = 57


def none(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    arrays["numbers"][0] = 0


def twice(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    arrays["terms"][1] = arrays["terms"][0]


def many(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    arrays["terms"] = np.arange(20 * 16, dtype=np.uint32).astype(">u4").view(np.uint8).reshape(-1, 16)[:20].copy()
    arrays["numbers"] = np.full(20, 3)


def endless(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    facts["documents"] = 1 << 60


def other_key(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    facts["check"] = key_check(b"other")


def empty(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    arrays["terms"], arrays["numbers"] = arrays["terms"][:0], arrays["numbers"][:0]


LIES = {
    fewer: "numbers of documents that are smaller than this party's own",
    more: "numbers of documents that are not 1 to 56",
    none: "numbers of documents that are not 1 to 56",
    twice: "terms that are not ascending",
    many: "20 terms, and text.most_terms is 15",
    endless: "1152921504606846976 documents, which cannot be",
    other_key: "not the key under which parties agreed",
    empty: "numbers of documents that are not",
}


@pytest.mark.parametrize("change", LIES, ids=lambda change: change.__name__)
def test_a_party_refuses_what_no_honest_sum_is(
    tmp_path: Path, nodes: Nodes, change: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = LocalGrid(nodes)
    grid.before_push = lie(change)
    asking = for_two(ONESHOT[0], LINEAR | {"text.most_terms": 15}, **{"wait": 0.0})
    with pytest.raises(fedalc.FedalcError, match="1 have introduced themselves"):
        run(grid, tmp_path / "run", asking)
    assert LIES[change] in capsys.readouterr().out


def test_a_server_may_not_change_the_features(tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """Other features of the same records would be another answer."""
    run(LocalGrid(nodes), tmp_path / "run", for_two(*ONESHOT))
    grid = LocalGrid(nodes)

    def one_more(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
        arrays["numbers"][0] += 1

    grid.before_push = lie(one_more)
    with pytest.raises(fedalc.FedalcError):
        run(grid, tmp_path / "again", for_two(*ONESHOT, **{"wait": 0.0}))
    assert "sends other features of texts than before in this run" in capsys.readouterr().out


def test_bounds(tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("text.most_terms", "text.buckets"):
        with pytest.raises(fedalc.FedalcError, match="0 have introduced themselves"):
            run(LocalGrid(nodes), tmp_path / "run", for_two(ONESHOT[0], LINEAR | {name: 20_000_000}, **{"wait": 0.0}))
        assert f"{name} = 2e+07 is outside 1 to 1e+07" in capsys.readouterr().out


# --- parties that lie ---


def answering(change: Callable[[dict[str, np.ndarray], dict[str, Any]], None]) -> Tamper:
    def tamper(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "query.document_counts":
            content = reply.content
            wanted = {"numbers": ("int64", (None,)), "terms": ("uint8", (None, 16))}
            arrays = {name: array.copy() for name, array in unpack(content, TEXT, wanted).items()}  # type: ignore[arg-type]
            facts = dict(content[FACTS])
            change(arrays, facts)
            content[TEXT], content[FACTS] = pack(arrays), ConfigRecord(facts)
        return reply

    return tamper


def claims(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    facts["documents"] = 10


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (more, "numbers of documents that are not 1 to 28"),
        (none, "numbers of documents that are not 1 to 28"),
        (twice, "terms that are not ascending"),
        (claims, "numbers of documents that are not 1 to 10"),
        (empty, "numbers of documents that are not"),
    ],
)
def test_a_partys_numbers_that_cannot_be(tmp_path: Path, nodes: Nodes, change: Any, why: str) -> None:
    """They are left out by name, and the other party's are used."""
    grid = LocalGrid(nodes)
    grid.tampering[2] = answering(change)
    run(grid, tmp_path / "run", for_two(*ONESHOT))
    left = [(party, reason) for _, party, reason in notes(tmp_path / "run")]
    assert any(party == "south" and why in reason for party, reason in left), left
    census = Census.load(tmp_path / "run")
    assert census is not None and census.text is not None and census.text.documents == 28


def test_another_key(tmp_path: Path, clinics: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    write_texts(tmp_path / "more")
    Key(bytes(range(60, 100))).write(tmp_path / "other")
    nodes[33] = {**nodes[2], "data": str(tmp_path / "more" / "south"), "client": "west", "key": str(tmp_path / "other")}
    nodes[33]["state"] = str(tmp_path / "west")
    run(LocalGrid(nodes), tmp_path / "run", for_two("fedavg", SETTINGS, **{"num-parties": 2}))
    said = capsys.readouterr().out
    assert "west left out: its terms are hashed with another key than those of most parties" in said


def test_a_party_without_texts(tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not asked for documents, and refuses if it is."""
    grid = LocalGrid(nodes)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "train.txt").write_text("2 3 1\n0 0:1.0 1:2.0\n0 2:1.0\n")
    nodes[5] = {**nodes[2], "data": str(tmp_path / "plain"), "client": "plain", "state": str(tmp_path / "state")}
    grid = LocalGrid(nodes)
    run(grid, tmp_path / "run", for_two("fedavg", SETTINGS, **{"num-parties": 3}))
    assert (5, "query.document_counts", "0") not in grid.asked
    assert "plain left out: its data has 3 features, most have 13" in capsys.readouterr().out


# --- noise ---

NOISED = TEXTS["hashing"] | {"text.epsilon": 4.0, "text.terms_per_document": 4}


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties draw the simulation's noise; south is asked first."""
    numbers = iter((1, 0))
    monkeypatch.setattr(party_texts, "noise_source", lambda *of: SecureGenerator.seeded(next(numbers)))


@pytest.mark.long
def test_noised_numbers_are_those_of_the_simulation(
    tmp_path: Path, clinics: Path, nodes: Nodes, same_noise: None
) -> None:
    found = run(LocalGrid(nodes), tmp_path / "run", for_two(ONESHOT[0], LINEAR | NOISED))
    chosen = experiment({"method": ONESHOT[0]}, overrides=overrides(LINEAR | NOISED))
    data = load_dataset(clinics, table=ALL, text=chosen.text)
    exact = load_dataset(clinics, table=ALL, text=chosen.text.model_copy(update={"epsilon": None}))
    assert isinstance(found.text, HashedText) and isinstance(data.text, HashedText) and found.text.idf is not None
    np.testing.assert_array_equal(found.text.idf, data.text.idf)
    assert isinstance(exact.text, HashedText) and (exact.text.idf != data.text.idf).mean() > 0.2


def test_noise_is_drawn_once_and_charged_once(tmp_path: Path, nodes: Nodes) -> None:
    """A server that asks again under the same run id gets the same numbers."""
    told = []
    for folder in ("one", "two"):
        grid = LocalGrid(nodes)
        grid.keeps = True
        run(grid, tmp_path / folder, for_two(ONESHOT[0], LINEAR | NOISED))
        sent = [reply.content[TEXT] for reply in grid.replies if TEXT in reply.content]
        told.append([record["numbers"].data for record in sent])  # type: ignore[union-attr]
    assert told[0] == told[1] and len(told[0]) == 2
    (charge,) = Ledger(tmp_path / "privacy-ledger.jsonl").charges()
    assert charge.what == "numbers of documents" and charge.epsilon is not None and 3.9 < charge.epsilon <= 4
    assert charge.release is not None and charge.release.times == 5
    with pytest.raises(fedalc.FedalcError, match="above the budget of 5"):
        other = {"epsilon-budget": 5.0, "run-id": "other"}
        run(LocalGrid(nodes), tmp_path / "three", for_two(ONESHOT[0], LINEAR | NOISED, **other))


def test_a_vocabulary_has_no_noise() -> None:
    with pytest.raises(ConfigError, match="epsilon needs kind"):
        experiment({"text": {"epsilon": 1.0}})


def test_privacy_does_not_cover_numbers_of_documents(tmp_path: Path, nodes: Nodes) -> None:
    with pytest.raises(fedalc.FedalcError, match="ε does not cover the numbers of documents"):
        run(LocalGrid(nodes), tmp_path / "run", for_two("fedalc", SETTINGS | {"privacy.epsilon": 1.0}))
