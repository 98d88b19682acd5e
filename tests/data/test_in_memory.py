from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.data import load_dataset
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.in_memory import dataset_from, input_rows
from fedalc.errors import ConfigError, DataError
from tests.data.formats.test_tables import RECORDS, WORDS

LABELS = [record["topics"] for record in RECORDS]
TEXTS = [record["text"] for record in RECORDS]
INDICATOR = np.array([[word in labels for word in sorted(WORDS)] for labels in LABELS], dtype=int)
NUMBERS = np.random.default_rng(0).random((40, 3)).astype(np.float32)


def frame() -> Any:
    return pytest.importorskip("pandas").DataFrame(RECORDS)


def test_files_and_memory_give_the_same_bits(tmp_path: Path) -> None:
    """As CSV and JSON lines written by pandas, a data frame, an Arrow table, and texts with lists of labels."""
    data = frame()
    data.to_csv(tmp_path / "messages.csv", index=False)
    data.to_json(tmp_path / "messages.jsonl", orient="records", lines=True)
    pyarrow = pytest.importorskip("pyarrow")
    made = [
        load_dataset(tmp_path / "messages.csv"),
        load_dataset(tmp_path / "messages.jsonl"),
        dataset_from(data),
        dataset_from(pyarrow.Table.from_pylist(RECORDS)),
        dataset_from(TEXTS, LABELS),
        dataset_from(data["text"], data["topics"]),
        dataset_from(np.array(TEXTS), [set(labels) for labels in LABELS]),
        dataset_from(data[["text"]], [",".join(labels) for labels in LABELS], table=TableSettings(label_separator=",")),
        dataset_from(TEXTS, INDICATOR),
        dataset_from(TEXTS, csr_matrix(INDICATOR)),
        dataset_from(TEXTS, INDICATOR.tolist()),
        dataset_from(TEXTS, pytest.importorskip("pandas").DataFrame(INDICATOR, columns=sorted(WORDS))),
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    names = {dataset.label_names for dataset in made}
    assert names == {tuple(sorted(WORDS)), tuple(map(str, range(8)))}
    assert made[2].notes[0] == made[1].notes[0] and made[2].table == made[1].table


def test_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    names = sorted(WORDS)
    numbers = [{"text": r["text"], "labels": [names.index(each) for each in r["topics"]]} for r in RECORDS]
    plain = dataset_from(TEXTS, LABELS)
    classes = datasets.ClassLabel(names=names)
    for kind in (datasets.Sequence(classes), datasets.List(classes) if hasattr(datasets, "List") else [classes]):
        features = datasets.Features({"text": datasets.Value("string"), "labels": kind})
        made = dataset_from(datasets.Dataset.from_list(numbers, features=features))
        assert (made.fingerprint, made.label_names) == (plain.fingerprint, plain.label_names)
    single = datasets.Dataset.from_list(
        [{"text": r["text"], "label": names.index(r["topics"][0]) if r["topics"] else -1} for r in RECORDS],
        features=datasets.Features({"text": datasets.Value("string"), "label": classes}),
    )
    one = dataset_from(single)
    assert one.train.labels.nnz == len(one.train) == 29 and set(one.label_names) <= set(names)
    parts = datasets.DatasetDict(train=single.select(range(30)), test=single.select(range(30, 40)))
    both = dataset_from(parts)
    assert (len(both.train), len(both.test)) == (27, 9)
    with pytest.raises(DataError, match="'unsupervised' is not one of train, test and validation"):
        dataset_from(datasets.DatasetDict(train=single, unsupervised=single))


def test_a_streamed_dataset_is_refused() -> None:
    datasets = pytest.importorskip("datasets")
    streamed = datasets.Dataset.from_dict({"text": ["a b"] * 4, "labels": [["x"]] * 4}).to_iterable_dataset()
    with pytest.raises(DataError, match=r"streamed dataset .* load it whole"):
        dataset_from(streamed)


def test_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    labels = [WORDS[n % 8] for n in range(40)]
    made = [
        dataset_from(NUMBERS, labels),
        dataset_from(csr_matrix(NUMBERS), np.array(labels)),
        dataset_from(NUMBERS.tolist(), [[label] for label in labels]),
        dataset_from(pandas.DataFrame(NUMBERS, columns=["id", "label", "text"]), pandas.Series(labels)),
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    split = dataset_from(NUMBERS[:30], labels[:30], test=(NUMBERS[30:], labels[30:]), name="mine")
    assert (split.name, len(split.train), len(split.test)) == ("mine", 30, 10)
    assert dataset_from(NUMBERS, list(range(10)) * 4).label_names == tuple(map(str, range(10)))
    assert dataset_from(NUMBERS, [10, 9] * 20).label_names == ("9", "10")
    assert dataset_from(NUMBERS, [10, np.int64(9), [], [9, 10]] * 10).label_names == ("9", "10")


def test_what_to_predict_on() -> None:
    pandas = pytest.importorskip("pandas")
    assert input_rows(["a", None, "b"])[0] == ["a", "", "b"]
    assert input_rows(pandas.DataFrame({"text": ["a b", "c"], "n": [1, 2]}))[0] == ["a b", "c"]
    features = input_rows(pandas.DataFrame({"n": [1, 2], "m": [0, 1]}))[1]
    assert features is not None and features.toarray().tolist() == [[1, 0], [2, 1]]


WRONG: list[tuple[Any, Any, str]] = [
    (NUMBERS, None, "expected labels: ndarray has none"),
    (NUMBERS, ["a"] * 39, "X has 40 records, but Y has 39"),
    (NUMBERS, "a", "Y: expected the labels of every record, found 'a'"),
    (NUMBERS, 3, "Y: expected the labels of every record, found 3"),
    (NUMBERS, np.full((40, 2), 2), "labels should be 0 or 1"),
    (NUMBERS, [[]] * 40, "no train record has a label"),
    (NUMBERS, [None] * 40, r"Y: the label of record 0 is missing \(None\): leave the record out, or give \[\]"),
    (NUMBERS, ["a", float("nan")] * 20, r"Y: the label of record 1 is missing \(nan\)"),
    (NUMBERS, [["a"], ["b", None]] * 20, "Y: the label of record 1 is missing"),
    (NUMBERS, [1, "1"] * 20, r"Y: labels of several types: record 0 has 1 \(int\), and record 1 '1' \(text\)"),
    (NUMBERS, [[1], ["1", "2"]] * 20, "Y: labels of several types"),
    (NUMBERS, [1, 1.0] * 20, r"1 \(int\), and record 1 1.0 \(float\)"),
    (NUMBERS, [True, 1] * 20, r"True \(bool\), and record 1 1 \(int\)"),
    ("a text", ["a"], "expected a list of texts, found one text"),
    ([b"a text"], ["a"], "X: record 0 is not a text but b'a text'"),
    (["a", 3], ["a", "b"], "X: record 1 is not a text but 3"),
    (np.full((40, 2), np.nan), ["a"] * 40, "not a finite number"),
]


@pytest.mark.parametrize(("X", "Y", "message"), WRONG)
def test_what_is_refused(X: Any, Y: Any, message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        dataset_from(X, Y)
    with pytest.raises(ConfigError, match=r"test: expected a pair, \(X, Y\)"):
        dataset_from(NUMBERS, ["a"] * 40, test=NUMBERS)


def test_a_frame_is_read_as_its_csv_is(tmp_path: Path) -> None:
    """Missing values, numbers and flags."""
    pandas = pytest.importorskip("pandas")
    data = pandas.DataFrame(
        {
            "body": ["some words", None, "other words", "words"] * 5,
            "urgent": [True, False, True, True] * 5,
            "late": [1, 0, 0, 1] * 5,
        }
    )
    data.to_csv(tmp_path / "a.csv")
    written = load_dataset(tmp_path / "a.csv", table=TableSettings(test_share=0))
    held = dataset_from(data, table=TableSettings(test_share=0))
    assert written.fingerprint == held.fingerprint and held.label_names == ("urgent", "late")


@pytest.mark.parametrize("values", [[0.37, 1.0], np.array([0.25, 2], np.float32), [[0.5], ["a"]]])
def test_measurements_are_no_labels(values: Any) -> None:
    with pytest.raises(DataError, match=r"Y: record 0: 0\.\d+ is a measurement, not a label\. .*pandas\.cut"):
        dataset_from(["one text", "another"], values)
    assert dataset_from(TEXTS, [1.0, 2.0] * 20).label_names == ("1.0", "2.0")
    assert dataset_from(TEXTS, ["0.5", "1.5"] * 20).label_names == ("0.5", "1.5")  # text: names of classes


def test_measurements_in_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X=NUMBERS, Y=NUMBERS[:, 0])
    with pytest.raises(DataError, match=r"data\.npz: record 1: column 'Y': 0\.\d+ is a measurement"):
        load_dataset(tmp_path / "data.npz")
