"""Run ids: with one key, messages of two runs have nothing in common; within a run, parties' messages join."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.config.schema import Algorithm
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.hashing import Hasher, canonical_sparse
from fedalc.labels.collection.join import join, read_messages
from fedalc.labels.collection.keys import Key, check_run_id
from fedalc.labels.collection.messages import Messages, make_messages
from fedalc.labels.collection.results import Collected
from tests.cli.test_collect import NAMES, place, run, run_result  # noqa: F401
from tests.labels.collection.problems import KEY, rows_of, sent
from tests.problems import random_split

TRAIN = random_split(30, 12, 4, seed=3)
CONTENTS = list(canonical_sparse(TRAIN.features))


def of_run(run: str, algorithm: Algorithm = "hmac-sha256") -> tuple[set[bytes], set[bytes], str]:
    """Return digests, pseudonyms and key check."""
    hasher = Hasher(algorithm, KEY if algorithm.startswith("hmac") else None, run=run)
    digests, labels = hasher.instances(CONTENTS), hasher.labels(list("abcd"))
    return {d.tobytes() for d in digests}, {p.tobytes() for p in labels}, hasher.protocol("content").key_check


@pytest.mark.parametrize("algorithm", ["hmac-sha256", "hmac-sha512", "hmac-md5", "sha256"])
def test_two_runs_have_nothing_in_common(algorithm: Algorithm) -> None:
    runs = [of_run(run, algorithm) for run in ("march", "april", "")]
    assert of_run("march", algorithm) == runs[0], "and one run is the same wherever it is made"
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not runs[one][0] & runs[other][0] and not runs[one][1] & runs[other][1]
        assert algorithm == "sha256" or runs[one][2] != runs[other][2]


def test_without_a_run_id_all_is_as_before() -> None:
    """test_hashing has the example of docs/collection-format.md for files without a run id."""
    assert of_run("")[2] == KEY.check


def test_the_example_of_the_format() -> None:
    """The run `march` of docs/collection-format.md."""
    hasher = Hasher("hmac-sha256", Key(bytes(range(32))), run="march")
    canonical = bytes.fromhex("02000000 02000000 0000803f 02010000 000000bf 00000000")
    assert hasher.instances([canonical]).tobytes().hex() == "8a847e7f151f46daba8cfcde99f0a038"
    assert hasher.labels(["né7"]).tobytes().hex() == "5b799fb4da69c438ea50e41ba35e34c2"
    assert hasher.protocol("content").key_check == "b33cbbad20c70bc2"


def messages_of(run: str, client: str, label: int) -> Messages:
    rows = TRAIN.labels[:, label].nonzero()[0]
    held = csr_matrix(np.ones((len(rows), 1)))
    hasher = Hasher("hmac-sha256", KEY, run=run)
    return make_messages(hasher, "content", client, canonical_sparse(TRAIN.features[rows]), held, [f"label {label}"])


def test_within_a_run_parties_join_and_another_run_is_left_out() -> None:
    here = [messages_of("march", f"party {label}", label) for label in range(3)]
    joined = join(here)
    assert joined.protocol.run == "march" and (np.diff(joined.label_sets.indptr) > 1).any(), "same instances join"
    more = join([*here, messages_of("april", "late", 3)])
    assert more.notes == ("client late used another run id (april, not march)",)
    assert more.label_sets.shape == joined.label_sets.shape
    with pytest.raises(FedalcError, match=r"run april.*run march|run march.*run april"):
        join([here[0], messages_of("april", "late", 3)])


@pytest.mark.parametrize("wrong", ["", "a b", "-x", "ä", "x" * 65, "a/b", "a\n"])
def test_what_is_no_run_id(wrong: str) -> None:
    with pytest.raises(FedalcError, match="run id"):
        check_run_id(wrong)


def test_a_file_of_version_1_is_still_read(tmp_path: Path) -> None:
    """As fedalc 0.1 wrote them: with another first line, and no run in the protocol."""
    new = messages_of("", "a", 0)
    new.save(tmp_path / "new")
    magic, header, rest = (tmp_path / "new").read_bytes()[:-32].split(b"\n", 2)
    facts = json.loads(header)
    assert magic == b"fedalc-messages 2" and facts["facts"]["protocol"].pop("run") == ""
    body = b"fedalc-messages 1\n" + json.dumps(facts, sort_keys=True).encode() + b"\n" + rest
    import hashlib

    (tmp_path / "old").write_bytes(body + hashlib.sha256(body).digest())
    old = Messages.load(tmp_path / "old")
    assert old.protocol == new.protocol and np.array_equal(old.digests, new.digests)
    (tmp_path / "future").write_bytes(body.replace(b"messages 1", b"messages 3"))
    with pytest.raises(DataError, match="a newer fedalc"):
        Messages.load(tmp_path / "future")


@pytest.mark.long
def test_a_run_from_files_to_training(place: Path) -> None:  # noqa: F811
    """The run id is in the file: nobody has to give it again."""
    client = ("collect", "client", "data", "--key", "key")
    assert "run march" in run(*client, "--out", "a.msg", "--run", "march")
    assert "--run ID" in run(*client, "--out", "none.msg")
    run("collect", "server", "a.msg", "--out", "correlations")
    assert Collected.load("correlations").protocol.run == "march"
    assert run_result("with", "--correlations", "correlations", "--key", "key")["metrics"]
    (place / "names.txt").write_text("\n".join(NAMES) + "\n")
    assert run("key", "labels", "key", "names.txt") != run("key", "labels", "key", "names.txt", "--run", "march")
    assert "1 of 2" not in run("audit", "data", "a.msg", "--key", "key")
    with pytest.raises(FedalcError, match="run id"):
        run(*client, "--out", "b.msg", "--run", "two words")


def test_a_label_without_a_message_is_not_taken(tmp_path: Path) -> None:
    claims = sent("greedy", {"a": "xy", "b": "z"})
    more = Messages(claims.protocol, "greedy", rows_of("a", "b", "c", "d"), claims.digests, claims.labels)
    more.save(tmp_path / "more")
    (part,), notes = read_messages([tmp_path / "more"])
    assert "greedy claims 2 labels without a message" in notes[0]
    assert np.array_equal(part.pseudonyms, claims.pseudonyms) and np.array_equal(part.labels, claims.labels)


def test_a_party_with_too_many_labels_is_refused() -> None:
    honest, greedy = sent("honest", {"a": "xy", "b": "z"}), sent("greedy", {"c": "x", "d": "y"})
    further = sent("greedy", {"e": "z"})  # in a second part
    joined = join([honest, greedy, further], max_labels_per_client=2)
    assert joined.label_sets.shape[1] == 2
    assert joined.notes == (
        "client greedy claims 3 labels, more than the 2 that one party may have (--max-labels-per-party)",
    )
    assert join([honest, greedy], max_labels_per_client=2).label_sets.shape[1] == 4
