"""Parquet, saved datasets, numpy's files, svmlight text and folders of texts."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from fedalc.data import TableSettings, dataset_from, load_dataset
from fedalc.data.formats.arrays import read_array
from fedalc.data.load import format_of, load_file, load_held
from fedalc.errors import DataError
from tests.data.formats.test_tables import RECORDS, WORDS, as_csv

Write = Callable[..., Path]
X = np.round(np.random.default_rng(0).random((40, 4)), 2).astype(np.float32) * (np.arange(4) != 1)
Y = np.random.default_rng(1).random((40, 3)) < 0.5
Y[:, 0] |= ~Y.any(axis=1)
ALL = TableSettings(test_share=0)


@pytest.fixture
def plain(write: Write) -> Any:
    return load_dataset(write(as_csv(RECORDS), "plain.csv"))


def test_parquet(tmp_path: Path, plain: Any) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(RECORDS)
    frame.to_parquet(tmp_path / "a.parquet")
    assert load_dataset(tmp_path / "a.parquet").fingerprint == plain.fingerprint
    (tmp_path / "set").mkdir()
    frame[:30].to_parquet(tmp_path / "set" / "train.parquet", row_group_size=7)
    frame[30:].to_parquet(tmp_path / "set" / "test.parquet")
    both = load_dataset(tmp_path / "set")
    assert (len(both.train), len(both.test)) == (27, 9)
    numbers = pandas.DataFrame({"embedding": X.tolist(), "label": [WORDS[n % 3] for n in range(40)]})
    numbers.to_parquet(tmp_path / "b.parquet")
    assert load_dataset(tmp_path / "b.parquet").fingerprint == dataset_from(X, numbers["label"]).fingerprint
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:500])
    with pytest.raises(DataError, match=r"c\.parquet: cannot be read: "):
        load_dataset(tmp_path / "c.parquet")


def test_a_saved_dataset(tmp_path: Path, plain: Any) -> None:
    datasets = pytest.importorskip("datasets")
    names = sorted(WORDS)
    rows = [{"text": r["text"], "labels": [names.index(each) for each in r["topics"]]} for r in RECORDS]
    classes = datasets.Sequence(datasets.ClassLabel(names=names))
    features = datasets.Features({"text": datasets.Value("string"), "labels": classes})
    made = datasets.Dataset.from_list(rows, features=features)
    made.save_to_disk(str(tmp_path / "one"), num_shards=2)
    one = load_dataset(tmp_path / "one")
    assert (one.fingerprint, one.label_names) == (plain.fingerprint, plain.label_names)
    assert format_of(tmp_path / "one").title == "a saved Hugging Face dataset"
    datasets.DatasetDict(train=made.select(range(30)), test=made.select(range(30, 40))).save_to_disk(
        str(tmp_path / "two")
    )
    two = load_dataset(tmp_path / "two")
    assert (len(two.train), len(two.test)) == (27, 9)
    state = json.loads((tmp_path / "one" / "state.json").read_text())
    state["_data_files"][0]["filename"] = "../x.arrow"
    (tmp_path / "one" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"names a file '\.\./x\.arrow', which is not one of its own"):
        load_dataset(tmp_path / "one")


def test_npz(tmp_path: Path) -> None:
    whole = dataset_from(X, Y)
    np.savez(tmp_path / "a.npz", X=X, Y=Y.astype(np.int8))
    np.savez_compressed(tmp_path / "b.npz", features=X, labels=Y.astype(float))
    for name in ("a.npz", "b.npz"):
        assert load_dataset(tmp_path / name).fingerprint == whole.fingerprint
    np.savez(tmp_path / "c.npz", X_train=X[:30], Y_train=Y[:30] * 1, X_test=X[30:], Y_test=Y[30:] * 1)
    split = dataset_from(X[:30], Y[:30], test=(X[30:], Y[30:]))
    assert load_dataset(tmp_path / "c.npz").fingerprint == split.fingerprint
    parts = np.array(["train"] * 25 + ["test"] * 10 + ["stranger"] * 3 + ["other"] * 2)
    np.savez(tmp_path / "d.npz", embedding=X, speaker=np.arange(40, dtype=np.int16) % 4, split=parts)
    named = load_dataset(tmp_path / "d.npz")
    assert (len(named.train), len(named.test), named.label_names) == (25, 10, ("0", "1", "2", "3"))
    assert "2 records of split 'other' left out; 3 records of strangers, for verification only" in named.notes[0]
    assert named.strangers is not None
    np.testing.assert_allclose(named.strangers.features.toarray(), X[35:38])
    assert named.strangers.labels.shape == (3, 4) and not named.strangers.labels.nnz
    for scale in (2.0, -1.0):
        np.savez(tmp_path / "e.npz", X=X, Y=np.where(np.eye(3)[np.arange(40) % 3], scale, 0))
        with pytest.raises(DataError, match="record 1: column 'Y': numbers other than 0 and 1, one of them twice"):
            load_dataset(tmp_path / "e.npz")


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    split = dataset_from(X[:30], Y[:30], test=(X[30:], Y[30:]))
    for folder in ("dense", "sparse", "texts"):
        (tmp_path / folder).mkdir()
    for part, rows in (("train", slice(30)), ("test", slice(30, 40))):
        np.save(tmp_path / "dense" / f"X_{part}.npy", X[rows])
        np.save(tmp_path / "dense" / f"Y_{part}.npy", Y[rows])
        save_npz(tmp_path / "sparse" / f"X_{part}.npz", csr_matrix(X[rows]))
        save_npz(tmp_path / "sparse" / f"Y_{part}.npz", csr_matrix(Y[rows] * 1).tocoo())
    np.save(tmp_path / "texts" / "X.npy", np.array([r["text"] for r in RECORDS]))
    np.save(tmp_path / "texts" / "Y.npy", np.array([WORDS[n % 8] for n in range(40)]))
    assert load_dataset(tmp_path / "dense").fingerprint == split.fingerprint
    assert load_dataset(tmp_path / "sparse").fingerprint == split.fingerprint
    assert load_dataset(tmp_path / "texts").label_names == tuple(sorted(WORDS))
    (tmp_path / "dense" / "Y_test.npy").unlink()
    with pytest.raises(DataError, match=r"X_test\.npy: is here, but not the file of Y for test"):
        load_dataset(tmp_path / "dense")


def test_arrays_that_cannot_be_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="holds Python objects, which fedalc does not unpickle"):
        read_array(tmp_path / "a.npy")
    with pytest.raises(DataError, match="is a single array: give the folder"):
        load_dataset(tmp_path / "a.npy")
    content = bytearray((tmp_path / "a.npy").read_bytes()[:80])
    np.save(tmp_path / "b.npy", X)
    content = bytearray((tmp_path / "b.npy").read_bytes().replace(b"(40, 4)", b"(99999999999, 4)"))
    (tmp_path / "b.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"b\.npy: (is damaged|cannot be read)"):
        read_array(tmp_path / "b.npy")
    with zipfile.ZipFile(tmp_path / "c.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * (80 << 20))
    with pytest.raises(DataError, match="decompression bomb"):
        load_dataset(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", X=X, Y=Y[:5] * 1)
    with pytest.raises(DataError, match=r"a row for each record each: X \(40, 4\), Y \(5, 3\)"):
        load_dataset(tmp_path / "d.npz")
    save_npz(tmp_path / "e.npz", csr_matrix(X))
    with pytest.raises(DataError, match="is a sparse matrix without labels"):
        load_dataset(tmp_path / "e.npz")


@pytest.mark.parametrize("from_zero", [True, False])
def test_svmlight_without_a_header(tmp_path: Path, from_zero: bool) -> None:
    features = X[:, [0, 2, 3, 1]]  # the last one is always 0
    path = tmp_path / "a.svm"
    dump_svmlight_file(features, Y, str(path), zero_based=from_zero, multilabel=True, comment="made by sklearn")
    read = load_dataset(path, table=ALL)
    assert read.train.features.toarray() == pytest.approx(features[:, :3])
    assert (read.train.labels.toarray() == Y).all() and read.label_names == ("0", "1", "2")
    theirs = load_svmlight_file(str(path), multilabel=True, zero_based="auto")[0]
    assert (read.train.features != theirs.astype(np.float32)).nnz == 0
    assert read.table is not None and read.table.first_feature == (0 if from_zero else 1)
    new = tmp_path / "new.txt"
    new.write_text("2:0.5\n")
    rows = load_file(new, 3, table=read.table).features.toarray().tolist()
    assert rows == ([[0, 0, 0.5]] if from_zero else [[0, 0.5, 0]])
    with pytest.raises(DataError, match="does not say how many features there are"):
        load_held(path)


def test_svmlight_of_several_splits(write: Write, tmp_path: Path) -> None:
    write("+1 1:0.5 3:1 # yes\n-1 qid:3 2:1\n\n1,2 4:1\n", "set/train.txt")
    write(gzip.compress(b"-1 0:1 7:2\n"), "set/test.txt.gz")
    read = load_dataset(tmp_path / "set")
    assert (read.feature_count, read.label_names) == (8, ("-1", "1", "2"))
    assert read.train.labels.toarray().tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 1]]
    write("3 5 4\n0,2 0:1.5 3:2\n1 4:0.25\n 1:1e-3 2:-7\n", "headed.txt")
    assert format_of(tmp_path / "set").name == "svmlight-text"
    assert load_dataset(tmp_path / "headed.txt", table=ALL).feature_count == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 3:x", r"a\.svm:2: a feature's value should be a number, not 'x'"),
        ("1 3:1 3:2", r"a\.svm:2: feature 3 occurs twice"),
        ("a 3:1", r"a\.svm:2: a label should be a whole number, not 'a'"),
        ("1.5 3:1", r"a\.svm:2: a label should be a whole number, not '1\.5'"),
        ("1 2 3:1", r"a\.svm:2: expected feature:value, found '2'"),
    ],
)
def test_svmlight_that_cannot_be_read(write: Write, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(write(f"1 1:1\n{line}\n", "a.svm"))


def test_a_folder_per_label(write: Write, tmp_path: Path) -> None:
    rows = []
    for n in range(20):
        text = f"words of text {n}\nand more"
        write(text, f"set/{WORDS[n % 2]}/{n}.txt")
        rows.append({"text": text, "labels": [WORDS[n % 2]] + (["corn"] if n == 4 else [])})
    write("words of text 4\nand more", "set/corn/again.txt")
    dataset = load_dataset(tmp_path / "set")
    listed = dataset_from([row["text"] for row in rows], [row["labels"] for row in rows])
    assert sorted(dataset.label_names) == ["corn", "wheat"] == list(listed.label_names)
    assert (len(dataset.train), len(dataset.test)) == (len(listed.train), len(listed.test))
    assert dataset.train.labels.sum() + dataset.test.labels.sum() == 21
    assert "1 texts lie in several folders" in dataset.notes[0]
    for n in range(6):
        write(f"words of text {n}", f"parts/{'train' if n < 4 else 'test'}/{WORDS[n % 2]}/{n}")
    parts = load_dataset(tmp_path / "parts")
    assert (len(parts.train), len(parts.test)) == (4, 2)


def test_texts_and_a_label_file(write: Write, tmp_path: Path) -> None:
    for n in range(10):
        write(f"words of text {n}", f"set/{n}.txt")
    write("file,labels\n" + "".join(f"{n}.txt,{WORDS[n % 2]}|{WORDS[n % 3]}\n" for n in range(10)), "set/labels.csv")
    dataset = load_dataset(tmp_path / "set")
    assert (dataset.name, dataset.label_names) == ("set", ("corn", "oil", "wheat"))
    assert "separated by '|'" in dataset.notes[0]
