"""What `fedalc data check` finds in a dataset, each on a case made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.data import load_dataset
from fedalc.data.dataset import Dataset, Split
from fedalc.data.findings import findings
from fedalc.data.formats.table_settings import TableSettings
from tests.problems import small_pictures

X = np.array([[1, 2], [3, 0], [0, 0], [1, 2], [1, 2], [5, 5], [6, 1]])
Y = np.array([
    [1, 1, 0, 0, 0],
    [1, 0, 0, 0, 0],
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [1, 0, 1, 0, 0],
    [0, 0, 0, 0, 0],
    [1, 0, 0, 0, 0],
])  # fmt: skip
NAMES = ("all", "two", "one", "test only", "none")


def found(dataset: Dataset) -> dict[str, str]:
    return {finding.as_text(): finding.do for finding in findings(dataset)}


def test_every_kind_of_finding() -> None:
    test = Split(np.array([[3, 0], [9, 9], [0, 0]]), np.array([[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]]))
    said = found(Dataset("mine", Split(X, Y), test, NAMES))
    assert list(said) == [
        "train: 1 record without features (all features are 0): record 3",
        "train: 1 record without a label: record 6",
        "test: 1 record without features (all features are 0): record 3",
        "train: 2 records equal to an earlier one, 1 of them with other labels: record 4 = record 1, "
        "record 5 = record 1",
        "test: 1 record also in train: record 1",
        "1 label only in test or validation: test only",
        "1 label without any record: none",
        "1 label with a single training record: one",
        "1 label on at least 90% of the training records: all",
    ]
    assert all(said.values())


def test_records_are_called_by_their_place_in_the_file(tmp_path: Path) -> None:
    """After records without a label were left out, and others held out for testing."""
    rows = [f"{n},{n * n},fruit\n" for n in range(1, 11)]
    lines = ["a,b,labels\n", "5,5,\n", *rows, "\n", rows[0], '7,8,"sky"\n', "\n", "0,0,sky\n"]
    (tmp_path / "a.csv").write_text("".join(lines))
    said = "\n".join(found(load_dataset(tmp_path / "a.csv", table=TableSettings())))
    assert "1 record equal to an earlier one: line 14 = line 3" in said
    assert "1 record without features (all features are 0): line 17" in said
    for party in ("north", "south"):
        (tmp_path / "clinics" / party).mkdir(parents=True)
        rows = [f"{party} apples {n},{party}\n" for n in range(9)]
        (tmp_path / "clinics" / party / "train.csv").write_text(
            "".join(["text,labels\n", *rows, "x,\n", f"!!,{party}\n"])
        )
    said = "\n".join(found(load_dataset(tmp_path / "clinics")))
    assert "without features (texts without a known word): north/train.csv line 12" in said
    (tmp_path / "b.svm").write_text("".join(f"{n % 2} {n}:1\n" for n in range(1, 10)) + "1 9:1\n")
    said = "\n".join(found(load_dataset(tmp_path / "b.svm")))
    assert "1 record equal to an earlier one: record 10 = record 9" in said


def test_good_data_have_no_findings() -> None:
    labels = np.array([[1, 0], [0, 1], [1, 0], [0, 1]])
    train = Split(np.arange(1, 9).reshape(4, 2), labels)
    assert found(Dataset("good", train, Split(np.arange(11, 19).reshape(4, 2), labels))) == {}
    assert found(Dataset("without test", train)) == {}


def test_stored_zeros_and_order_do_not_matter() -> None:
    """Two rows with the same features, one with a stored zero."""
    data, indices, starts = np.array([1.0, 2.0, 0.0, 1.0, 2.0]), np.array([0, 1, 2, 0, 1]), np.array([0, 3, 5])
    train = Split(csr_matrix((data, indices, starts), shape=(2, 3)), np.array([[1, 0], [0, 1]]))
    said = found(Dataset("zeros", train))
    assert "train: 1 record equal to an earlier one, 1 of them with other labels: record 2 = record 1" in said


@pytest.mark.parametrize("copies", [0, 3])
def test_pictures_are_compared_by_their_pixels(copies: int) -> None:
    dataset = small_pictures()
    test = dataset.train.rows(np.arange(copies)) if copies else dataset.test
    said = found(Dataset("pictures", dataset.train, test, dataset.label_names))
    assert any(line.startswith(f"test: {copies} records also in train") for line in said) == bool(copies)


def test_many_are_counted_and_few_are_shown() -> None:
    train = Split(np.ones((50, 1)), np.tile([1, 0], (50, 1)))
    said = found(Dataset("same", train))
    assert (
        "train: 49 records equal to an earlier one: record 2 = record 1, record 3 = record 1, record 4 = record 1, …"
        in said
    )


def test_a_label_named_like_a_missing_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "text,labels\n" + "".join(f"word{i} more,{'NaN' if i % 2 else 'b'}\n" for i in range(20))
    )
    (found,) = [each for each in findings(load_dataset(tmp_path / "a.csv")) if "missing" in each.what]
    assert (found.as_text(), found.do) == (
        "1 label named like a missing value: NaN",
        "if it means no label, leave the cell empty",
    )
