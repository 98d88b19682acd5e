"""The label collection through files on the command line: keys, clients, server, training, audit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import fedalc
from fedalc.cli.app import app
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import FedalcError
from fedalc.labels.collection.attack import dictionary_attack, frequency_attack
from fedalc.labels.collection.hashing import Hasher, canonical_sparse
from fedalc.labels.collection.join import join
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import make_messages
from fedalc.labels.collection.results import Collected
from fedalc.labels.correlations import Correlations
from tests.problems import small_dataset

NAMES = [f"label {i}" for i in range(7)]


def write_xmlc(path: Path, split: Split) -> None:
    lines = [f"{len(split)} {split.features.shape[1]} {split.labels.shape[1]}"]
    for x, y in zip(split.features, split.labels, strict=True):
        features = " ".join(f"{i}:{v!r}" for i, v in zip(x.indices.tolist(), x.data.tolist(), strict=True))
        lines.append(f"{','.join(map(str, y.indices.tolist()))} {features}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a dataset of distinct instances and a key."""
    monkeypatch.chdir(tmp_path)
    data = small_dataset(instances=40)
    (tmp_path / "data").mkdir()
    write_xmlc(tmp_path / "data" / "train.txt", data.train)
    write_xmlc(tmp_path / "data" / "test.txt", data.test)
    (tmp_path / "data" / "labels.txt").write_text("\n".join(NAMES) + "\n")
    run("key", "new", "key")
    return tmp_path


@pytest.fixture
def large_place(place: Path) -> Path:
    """Return such a folder with enough instances of every label for noised files to contain it."""
    write_xmlc(place / "data" / "train.txt", small_dataset(instances=1000).train)
    return place


def run(*arguments: str) -> str:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_parties_with_files_arrive_at_the_exact_correlations(place: Path) -> None:
    """Each party has only the instances of its own labels; together they give the same counts as Y."""
    whole = fedalc.load_dataset(str(place / "data"))
    for number, own in enumerate(([0, 3], [1], [2, 4, 5, 6])):
        labels = ",".join(NAMES[label] for label in own)
        held = whole.train.labels[:, own].getnnz(axis=1) > 0
        folder = place / f"party{number}"
        folder.mkdir()
        write_xmlc(folder / "train.txt", whole.train.rows(held.nonzero()[0]))
        (folder / "labels.txt").write_text("\n".join(NAMES) + "\n")
        options = ("--key", "key", "--labels", labels, "--out", f"{number}.msg")
        assert f"{len(own)} labels" in run("collect", "client", f"party{number}", *options)
    run("collect", "server", "2.msg", "0.msg", "1.msg", "--out", "correlations")
    ours = run_result("with", "--correlations", "correlations", "--key", "key")
    collected_here = run_result("without")
    assert ours["metrics"] == collected_here["metrics"] and ours["collapse"] == collected_here["collapse"]
    assert ours["collection"]["file"].endswith("correlations")


def run_result(name: str, *more: str) -> dict[str, object]:
    content = ["--set", "collection.identity=content", "--set", "selection.validation=0"]
    run("train", "--dataset", "data", "--method", "fedalc", "--rounds", "3", "--name", name, "-q", *content, *more)
    return dict(json.loads(Path("runs", name, "result.json").read_text()))


def test_the_server_says_what_it_refuses_and_joins_the_rest(place: Path) -> None:
    run("collect", "client", "data", "--key", "key", "--out", "good.msg", "--client", "good")
    whole = Path("good.msg").read_bytes()
    Path("torn.msg").write_bytes(whole[: len(whole) // 2])
    out = run("collect", "server", "good.msg", "torn.msg", "good.msg", "nothing.msg", "--out", "correlations")
    for said in ("torn.msg", "the same file", "nothing.msg", "7 labels"):
        assert said in out
    with pytest.raises(FedalcError, match="--strict"):
        run("collect", "server", "good.msg", "torn.msg", "--out", "strict", "--strict")
    assert not Path("strict").exists()
    with pytest.raises(FedalcError, match="none of the files"):
        run("collect", "server", "torn.msg", "--out", "none")


def test_another_key_is_seen_when_training(place: Path) -> None:
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    run("collect", "server", "a.msg", "--out", "correlations")
    run("key", "new", "other")
    with pytest.raises(FedalcError, match="another key"):
        run_result("wrong", "--correlations", "correlations", "--key", "other")
    assert not Path("runs", "wrong").exists()


def test_no_key_needs_to_be_said(place: Path) -> None:
    with pytest.raises(FedalcError, match="fedalc key new"):
        run("collect", "client", "data", "--out", "a.msg")
    assert "NO KEY" in run("collect", "client", "data", "--algorithm", "sha256", "--out", "a.msg")
    with pytest.raises(FedalcError, match="hmac-sha256"):
        run("collect", "client", "data", "--algorithm", "sha256", "--key", "key", "--out", "a.msg")


def test_nothing_is_written_over(place: Path) -> None:
    """Neither the key, the data nor another kind of file; an earlier output only with the option to overwrite."""
    client = ("collect", "client", "data", "--key", "key")
    run(*client, "--out", "a.msg")
    run("collect", "server", "a.msg", "--out", "c")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for arguments in (
        (*client, "--out", "key"), (*client, "--out", "data/train.txt"), (*client, "--out", "a.msg"),
        (*client, "--out", "c", "--overwrite"), ("collect", "server", "a.msg", "--out", "a.msg", "--overwrite"),
        ("collect", "server", "a.msg", "--out", "key"), ("collect", "server", "a.msg", "--out", "c"),
    ):  # fmt: skip
        with pytest.raises(FedalcError, match="already exists"):
            run(*arguments)
    assert before == {path: path.read_bytes() for path in before}
    run(*client, "--out", "a.msg", "--overwrite")


def test_a_key_others_can_read_is_refused(place: Path) -> None:
    Path("key").chmod(0o644)
    with pytest.raises(FedalcError, match="chmod 600"):
        run("collect", "client", "data", "--key", "key", "--out", "a.msg")


@pytest.mark.long
def test_noised_counts_from_the_server(large_place: Path) -> None:
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    said = run("collect", "server", "a.msg", "--out", "noised", "--epsilon", "1")
    facts = Collected.load("noised").facts["privacy"]
    assert "7 labels" in said and "ε = 1" in said and f"at least {facts['label_threshold']}" in said
    assert facts["epsilon"] == 1 and facts["noise_multiplier"] > 3
    assert facts["delta_noise"] == facts["delta_selection"] == facts["delta"] / 2
    assert run_result("noised", "--correlations", "noised", "--key", "key")["collection"]["privacy"]["epsilon"] == 1  # type: ignore[index]


def test_a_noised_file_without_labels_says_so(place: Path) -> None:
    """No label has enough instances. The ε is spent all the same, and training explains the problem."""
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    assert ", 0 labels, 0 pairs" in run("collect", "server", "a.msg", "--out", "noised", "--epsilon", "1")
    assert len(Collected.load("noised").pseudonyms) == 0
    with pytest.raises(FedalcError, match="has no labels: none has enough instances"):
        run_result("empty", "--correlations", "noised", "--key", "key")


def test_a_file_with_the_noise_of_earlier_versions_promises_nothing(large_place: Path) -> None:
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    run("collect", "server", "a.msg", "--out", "noised", "--epsilon", "1")
    made = Collected.load("noised")
    known = made.correlations
    floats = Correlations(known.instances, known.counts.astype(np.float64), known.together.astype(np.float64))
    facts = {name: value for name, value in made.facts["privacy"].items() if name != "distribution"}
    Collected(floats, made.pseudonyms, made.protocol, {"privacy": facts}).save("old")
    with pytest.warns(UserWarning, match="treat the counts as disclosed"):
        spent = run_result("old", "--correlations", "old", "--key", "key")["privacy"]
    assert spent["epsilon"] is None and "earlier version" in spent["why"]  # type: ignore[index]


def test_records_tell_equal_rows_apart(place: Path) -> None:
    train = fedalc.load_dataset(str(place / "data")).train
    twice = Split(csr_matrix(train.features[[0, 0, 1]]), csr_matrix([[1, 0], [0, 1], [1, 1]]))
    write_xmlc(place / "twice_train.txt", twice)
    (place / "records.txt").write_text("a\nb\nc\n")
    run("collect", "client", "twice_train.txt", "--key", "key", "--out", "content.msg")
    records = ("--identity", "record", "--records", "records.txt")
    run("collect", "client", "twice_train.txt", "--key", "key", "--out", "record.msg", *records)
    assert "2 instances" in run("collect", "server", "content.msg", "--out", "c")
    assert "3 instances" in run("collect", "server", "record.msg", "--out", "r")
    (place / "records.txt").write_text("a\nb\na\n")
    with pytest.raises(FedalcError, match=r"records.txt:3.*line 1"):
        run("collect", "client", "twice_train.txt", "--key", "key", "--out", "again.msg", *records)


@pytest.mark.long
def test_a_run_does_not_go_on_with_other_correlations(large_place: Path) -> None:
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    run("collect", "server", "a.msg", "--out", "c")
    run_result("first", "--correlations", "c", "--key", "key")
    Path("runs", "first", "result.json").unlink()
    run("collect", "server", "a.msg", "--out", "c", "--epsilon", "1", "--overwrite")
    with pytest.raises(FedalcError, match="the correlations have changed since this run began"):
        run("train", "--resume", "runs/first")


def test_labels_of_the_same_name_are_refused(place: Path) -> None:
    (place / "data" / "labels.txt").write_text("\n".join(["same", "same", *NAMES[2:]]) + "\n")
    with pytest.raises(FedalcError, match="same name"):
        run("collect", "client", "data", "--key", "key", "--out", "a.msg")


# --- the curious server ---


def distinct(data: Dataset) -> Split:
    """Return a split of distinct instances."""
    seen = {bytes(row): place for place, row in enumerate(canonical_sparse(data.train.features)) if len(row) > 8}
    return data.train.rows(sorted(seen.values()))  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["md5", "sha256", "sha512"])
def test_plain_hashes_fall_to_a_dictionary_and_keyed_ones_do_not(algorithm: str) -> None:
    split, key = distinct(small_dataset()), Key.fresh()
    guesses = list(canonical_sparse(split.features))
    held = int((split.labels.getnnz(axis=1) > 0).sum())
    plain = Hasher(algorithm, None)  # type: ignore[arg-type]
    keyed = Hasher(f"hmac-{algorithm}", key)  # type: ignore[arg-type]
    sent = [make_messages(hasher, "content", "c", guesses, split.labels, NAMES) for hasher in (plain, keyed)]
    found = dictionary_attack([sent[0]], guesses, NAMES)
    assert (found.instances, found.of_instances, found.labels) == (held, held, 7)
    found = dictionary_attack([sent[1]], guesses, NAMES)
    assert (found.instances, found.of_instances, found.labels) == (0, held, 0)
    found = dictionary_attack([sent[1]], guesses, NAMES, stolen=key)  # a client that passes its key on undoes it
    assert (found.instances, found.labels) == (held, 7)


def test_unique_counts_name_labels_whatever_the_key() -> None:
    Y = csr_matrix([[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 0]])  # counts 3, 2, 1, 1
    X = csr_matrix([[1.0, 0], [0, 1.0], [1.0, 1.0]])
    sent = make_messages(Hasher("hmac-sha256", Key.fresh()), "content", "c", canonical_sparse(X), Y, list("abcd"))
    assert frequency_attack(join([sent]), Y) == 2


@pytest.mark.long
def test_audit_prints_what_it_found(place: Path) -> None:
    out = run("audit", "data", "--what", "collection")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("sha256", "hmac-sha512"))}
    assert rows["sha256"][-3] != "0" and rows["hmac-sha512"][-3] == "0"
    assert "label frequencies" in out and "labels per instance" in out
    assert "Found with --collection sums" in out and "sums of pairs" in out
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    of_files = run("audit", "data", "a.msg")
    assert "hmac-sha256" in of_files and "--collection sums" not in of_files
    run("collect", "client", "data", "--key", "key", "--algorithm", "hmac-sha512", "--out", "b.msg", "--client", "b")
    run("collect", "client", "data", "--key", "key", "--out", "c.msg", "--client", "c")
    assert "hmac-sha256" in run("audit", "data", "a.msg", "b.msg", "c.msg")  # those made as most are
    run("key", "new", "other")
    with pytest.raises(FedalcError, match="none of these messages"):
        run("audit", "data", "a.msg", "--key", "other")


def test_correlations_that_lack_labels_are_refused(place: Path) -> None:
    run("collect", "client", "data", "--key", "key", "--labels", ",".join(NAMES[:4]), "--out", "a.msg")
    run("collect", "server", "a.msg", "--out", "correlations")
    options = ("--correlations", "correlations", "--key", "key")
    message = r"no counts of 3 of the 7 labels with training instances \('label 4', 'label 5', 'label 6'\)"
    with pytest.raises(FedalcError, match=f"{message}.*missing_labels=allow"):
        run_result("lacking", *options)
    with pytest.warns(UserWarning, match=message):
        result = run_result("allowed", *options, "--set", "collection.missing_labels=allow")
    assert result["collection"]["missing_labels"] == 3  # type: ignore[index]


def test_labels_that_nobody_holds_need_no_counts(place: Path) -> None:
    """A label without a training instance has no client that could send it."""
    data = fedalc.load_dataset(str(place / "data"))
    keep = csr_matrix(data.train.labels.toarray() * (data.train.labels.toarray()[:, [6]] == 0))
    write_xmlc(place / "data" / "train.txt", Split(data.train.features, keep))
    run("collect", "client", "data", "--key", "key", "--out", "a.msg")
    run("collect", "server", "a.msg", "--out", "correlations")
    assert "missing_labels" not in run_result("with", "--correlations", "correlations", "--key", "key")["collection"]  # type: ignore[operator]


def test_collection_by_sums_for_train_and_compare(place: Path) -> None:
    common = ("--dataset", "data", "-q", "--set", "encoder.dim=8", "--collection")
    for by in ("join", "sums"):
        run("train", "--method", "fedalc-oneshot", "--name", by, *common, by)
    join_, sums = (json.loads((place / "runs" / by / "result.json").read_text()) for by in ("join", "sums"))
    assert sums["metrics"] == join_["metrics"] and sums["collection"]["by"] == "sums"
    assert 'by = "sums"' in (place / "runs" / "sums" / "config.toml").read_text()
    with pytest.raises(FedalcError, match="fedalc-fixed learns from how often labels occur together"):
        run("compare", "--methods", "fedalc-fixed,fedalc-oneshot", *common, "sums")
    run("compare", "--methods", "fedalc-oneshot", "--name", "one", *common, "sums")
    compared = json.loads((place / "runs" / "one" / "fedalc-oneshot-s0" / "result.json").read_text())
    assert compared["metrics"] == sums["metrics"]
