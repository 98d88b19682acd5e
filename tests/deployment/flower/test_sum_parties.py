"""What parties are told of earlier sums is of the same parties; and what a server may ask with and without a label.

An outside tester did each of these with parties that insist on secure sums: a party's Gram matrix, a record that two
parties have (cosine 1.0), one record's hits, and numbers of one party by themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.deployment.flower.bucket_census import BucketCensus
from fedalc.deployment.flower.bucket_sums import RECORDS, Counting, SealedTables
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.masked_sums import MaskedSums
from fedalc.deployment.flower.party import hashed
from fedalc.deployment.flower.party_settings import check_same_settings, check_same_tables, check_strictly
from fedalc.deployment.flower.party_texts import check_masked
from fedalc.deployment.flower.questions import party_of
from fedalc.deployment.flower.sum_parties import check_counted, check_texts, note_counted, note_texts
from fedalc.deployment.flower.table_seals import SumOf
from fedalc.deployment.flower.wire import SEARCH, BadMessage
from fedalc.labels.collection.buckets import FEWEST_BUCKETS, Tables
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from tests.deployment.flower.problem import LINEAR, NAMES, Nodes, all_different, kept_out, write_parties
from tests.deployment.flower.test_secure_sums import CASES
from tests.deployment.flower.test_server_choices import insisting, refusal, train

SEVEN = {node: [node] for node in range(7)}
ALL, FOUR = [f"party {node}" for node in SEVEN], [f"party {node}" for node in range(4)]
RUN, OTHER = "one", "tells what other parties counted than those of this sum"


@pytest.fixture
def strict(tmp_path: Path) -> Nodes:
    return insisting(write_parties(tmp_path, all_different(), SEVEN), tmp_path)


def a_party(folder: Path, insists: bool = True) -> Context:
    config = {"state": str(folder)} | ({"require-secure-sums": True} if insists else {})
    return Context(1, 1, config, RecordDict(), {})


def test_what_is_told_is_of_the_parties_at_hand(tmp_path: Path) -> None:
    context, counted, unknown = a_party(tmp_path), SumOf(bytes(32), 7), SumOf(bytes([1]) * 32, 7)
    note_counted(context, RUN, counted, ALL)
    check_counted(context, RUN, counted, ALL)
    for of, names in ((counted, FOUR), (unknown, ALL)):
        with pytest.raises(BadMessage, match=OTHER):
            check_counted(context, RUN, of, names)
    check_counted(a_party(tmp_path / "other", insists=False), RUN, unknown, FOUR)


def test_a_ranking_by_some_has_one_count_over_all_runs(tmp_path: Path) -> None:
    """Parties with few held-out records do not rank. With the set sizes of seven and then of four, rankings by the same
    four would differ by single records' hits."""
    context, of_all, of_four = a_party(tmp_path), SumOf(bytes(32), 7), SumOf(bytes([1]) * 32, 4)
    note_counted(context, RUN, of_all, ALL)
    check_counted(context, RUN, of_all, FOUR, ranks=True)
    note_counted(context, "two", of_four, FOUR)
    with pytest.raises(BadMessage, match=OTHER):
        check_counted(context, "two", of_four, FOUR, ranks=True)


def test_features_of_texts_are_those_of_the_parties_at_hand(tmp_path: Path) -> None:
    """A party that is told alone what four others counted would have other features than in another run, and nobody
    else would."""
    context, counted, unknown = a_party(tmp_path), SumOf(bytes(32), 7), SumOf(bytes([1]) * 32, 4)
    check_texts(context, RUN, ALL)  # nothing was agreed on
    note_counted(context, RUN, counted, ALL)
    note_texts(context, RUN, counted)
    check_texts(context, RUN, ALL)
    with pytest.raises(BadMessage, match=OTHER):
        check_texts(context, RUN, FOUR)
    with pytest.raises(BadMessage, match="of other parties than before"):
        note_texts(context, RUN, unknown)
    note_texts(context, "two", unknown)
    with pytest.raises(BadMessage, match=OTHER):
        check_texts(context, "two", FOUR)


def test_set_sizes_counted_by_some_are_refused_by_all(
    strict: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    total = MaskedSums.total

    def by_four(sums: MaskedSums, kind: str, round_number: int, asked: Any, *more: Any, **named: Any) -> Any:
        counts = kind == "query.bucket_counts"
        return total(sums, kind, round_number, [0, 1, 2, 3] if counts else asked, *more, **named)

    monkeypatch.setattr(MaskedSums, "total", by_four)
    read = Counting.read

    def stated(counting: Counting, numbers: np.ndarray, labels: int, of: SumOf) -> tuple[SealedTables, SealedTables]:
        tables, n = read(counting, numbers, labels, of)
        n.amounts[:] = np.maximum(n.amounts, 1)  # the server goes on with numbers of its own
        return tables, n

    monkeypatch.setattr(Counting, "read", stated)
    assert refusal(capsys, strict, tmp_path / "run", CASES["one round"]).count(OTHER) >= len(SEVEN)


def test_another_list_of_labels_is_refused_in_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a number of its own for a shared label at each party, n would be each party's."""
    owned = {1: [0, 1, 2], 2: [0, 1, 3], 3: [0, 1, 2]}
    strict = insisting(write_parties(tmp_path, all_different(), owned), tmp_path)
    total = BucketCensus._total

    def apart(census: BucketCensus, counting: Counting, holders: SealedTables | None = None) -> Any:
        def lie(message: Message) -> None:
            task = message.content.get("task")
            if task is not None and "label-count" in task and counting.what == RECORDS:
                first = 3 * message.metadata.dst_node_id
                task["label-count"], task["numbers"] = 12, list(range(first, first + 3))  # type: ignore[index]

        census.parties.grid.before_push = lie  # type: ignore[attr-defined]
        return total(census, counting, holders)

    monkeypatch.setattr(BucketCensus, "_total", apart)
    said = refusal(capsys, strict, tmp_path / "run", ("fedalc-oneshot", LINEAR | {"clients": "parties"}))
    assert "refused the server's message" in said and "label" in said


def test_a_label_that_is_all_held_out_is_asked_about_always_or_never(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the difference of two rankings would be its one record's hits, whatever `fewest` says."""
    share, key = 0.3, tmp_path / "same key"
    Key(bytes(range(7, 47))).write(key)
    rows = np.random.default_rng(3).random((120, 12)).astype(np.float32)
    labels = np.zeros((120, 7), np.float32)
    labels[np.arange(120), np.arange(120) % 4] = 1
    labels[np.flatnonzero(kept_out(key, csr_matrix(rows), share))[5]] = np.eye(7)[6]
    data = Split(csr_matrix(rows), csr_matrix(labels))
    strict = insisting(write_parties(tmp_path, data, {1: [0], 2: [1], 3: [2, 6], 4: [3]}), tmp_path)
    rare = {name: Hasher("hmac-sha256", Key.read(key), run=name).labels([NAMES[6]])[0].tobytes() for name in "ab"}

    def with_it(message: Message) -> None:
        task = message.content.get("task")
        if message.metadata.message_type == "evaluate.rank" and message.metadata.dst_node_id == 3:
            task["labels"] = [*task["labels"], rare["b"]]  # type: ignore[index]
            task["numbers"] = [*task["numbers"], 4]  # type: ignore[index]
        if message.metadata.message_type == "evaluate.rank":
            task["label-count"] = 5  # type: ignore[index]

    case = "fedalc-exact", LINEAR | {"server.optimizer": "cg", "client.set_size": "expected"}
    config = {"held-out-share": share, "num-server-rounds": 2}
    train(strict, tmp_path / "a", case, **config)
    capsys.readouterr()
    train(strict, tmp_path / "b", case, with_it, **config)
    assert "start this party with --allow held_out_labels=2" in capsys.readouterr().out


def test_sizes_of_tables_follow_from_settings_and_parties(tmp_path: Path) -> None:
    """A party that is lost before anything was unmasked leaves the others with other numbers of records."""
    context = a_party(tmp_path)

    def count(buckets: int, names: list[str], ridge: float = 1.0) -> None:
        question = {"settings": json.dumps({"server": {"ridge": ridge}}), "share": 0.0}
        check_same_tables(context, question, Counting(RECORDS, False, Tables(8, buckets)), names, Limits())

    count(5517, ALL)
    count(5000, FOUR)
    count(5517, ALL)
    count(6000, ALL, 2.0)  # other settings, which need permission of their own
    with pytest.raises(BadMessage, match="start this party with --allow bucket_tables=2"):
        count(5000, ALL)
    with pytest.raises(BadMessage, match="at least 4096 are usual"):
        count(FEWEST_BUCKETS - 1, [*FOUR, "another"])


def test_the_powers_that_count_are_those_of_answers(tmp_path: Path) -> None:
    """A search says 0.2 at first, the default, trains with 0, and then with the power that it chooses."""
    context, began = a_party(tmp_path), json.dumps({"client": {"label_power": 0.2}})

    def ask(power: float) -> None:
        trial = json.dumps({"client": {"label_power": power}})
        check_same_settings(context, {"settings": trial, SEARCH: began, "share": 0.1}, Limits(), power)

    ask(0.0)
    ask(0.6)
    with pytest.raises(BadMessage, match="label powers over all runs = 3"):
        ask(0.2)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"method": "fedalc-exact", "collection": {"by": "psi"}, "client": {"set_size": "expected"}},
            "--collection psi",
        ),
        ({"method": "fedalc-exact", "text": {"kind": "vocabulary"}}, "this party's terms by keyed digest"),
    ],
)
def test_what_the_server_alone_would_say_is_refused(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Mean set sizes of its own, or a vocabulary of its own, for each party."""
    asked = experiment(settings | {"secure_sums": {"on": True}, "engine": "flower", "encoder": {"name": "linear"}})

    def check(context: Context) -> None:
        check_strictly(context, asked, Limits())
        check_masked(asked, context)

    with pytest.raises(BadMessage, match=problem):
        check(a_party(tmp_path))
    check(a_party(tmp_path, insists=False))


def test_a_search_with_secret_rows_is_refused(strict: Nodes) -> None:
    """From sums with two label powers the rows follow."""
    given = {"secure_sums": {"on": True}, "engine": "flower", "encoder": {"name": "linear"}}
    asked = experiment(given | {"method": "fedalc-exact", "embeddings": {"secret": True}})
    context = Context(1, 1, strict[0], RecordDict(), {})
    party_of(context, asked, {SEARCH: "", "run": RUN}, hashed)
    with pytest.raises(BadMessage, match="is a search for settings, with secret rows"):
        party_of(context, asked, {SEARCH: "{}", "run": RUN}, hashed)


def test_label_power_zero_is_a_weighting_too(strict: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {node: config | {"allow": "sum_settings=3"} for node, config in strict.items()}
    for power in (0.0, 0.3):
        train(nodes, tmp_path / str(power), ("fedalc-oneshot", LINEAR | {"client.label_power": power}))
    said = refusal(capsys, nodes, tmp_path / "third", ("fedalc-oneshot", LINEAR | {"client.label_power": 0.9}))
    assert "label powers over all runs = 3 is outside 1 to 2" in said
