"""Features and labels in any form that users give: converted to one form, or refused with the position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedalc import DataError, Dataset, Split
from fedalc.models.encoders import scale_rows

X = np.array([[1.0, 0, 2], [0, 3, 0]])
Y = np.array([[1, 0], [1, 1]])


class Frame:
    """The part of a data frame's interface that numpy uses."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values.astype(object if dtype is None else dtype)


@pytest.mark.parametrize(
    "form",
    [np.asarray, np.ndarray.tolist, sp.csr_matrix, sp.csc_array, sp.coo_array, sp.dok_matrix, torch.tensor, Frame]
)  # fmt: skip
def test_every_usual_form_gives_the_same(form: Callable[[np.ndarray], Any]) -> None:
    split = Split(form(X), form(Y))
    assert split.features.toarray().tolist() == X.tolist() and split.labels.toarray().tolist() == Y.tolist()
    assert split.features.dtype == split.labels.dtype == np.float32
    assert Split(X, form(Y.astype(bool))).labels.toarray().tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (2 * Y - 1, r"found -1 in row 0, column 1.*Y > 0"),
        (sp.csr_matrix(2 * Y - 1), r"found -1 in row 0, column 1.*Y > 0"),
        (0.5 * Y, r"found 0.5 in row 0, column 0.*Y > 0.5"),
        (3 * Y, r"found 3 .*counts"),
        (np.where(Y, np.nan, 0), "found nan"),
        (sp.csr_matrix((np.ones(2), np.array([0, 0]), np.array([0, 2, 2])), shape=(2, 2)), "found 2 in row 0"),
        ([[0], [0, 1]], "different lengths.*MultiLabelBinarizer"),
        ([[0, 5], [1, 4]], "MultiLabelBinarizer"),
        (Y[:, 0], r"two dimensions, a row per instance, found 1 \(shape \(2,\)\)"),
        (np.array([["a", "b"], ["c", "d"]]), "expected numbers"),
        (Y[:1], "2 rows of features but 1 rows of labels"),
        (None, "expected a matrix"),
        ("ab", "expected a matrix"),
    ],
)
def test_labels_that_are_no_zeros_and_ones_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Split(X, labels)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.where(X == 3, np.nan, X), "row 1, column 1 is not a finite number"),
        (np.where(X == 2, -np.inf, X), "row 0, column 2 is not a finite number"),
        (np.where(X == 2, 1e300, X), "too large for float32"),
        (X[0], r"x.reshape\(1, -1\)"),
        ([], "there is no instance"),
        ([None, None], "with None, which is not a row of numbers"),
        ([["a text"], ["another"]], r"such as 'a text'.*frame\['text'\]"),
        (X[None], "found 3"),
        (X + 1j, "expected numbers, found values of type complex"),
        (X.astype(str), "expected numbers"),
        (X.astype(str).astype(object), "expected numbers, found values of type object"),
        ([[1], [1, 2]], "cannot be read as a matrix"),
        ({"a": 1}, "found 0"),
    ],
)
def test_features_that_are_no_finite_numbers_are_refused(features: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Split(features, Y)


def test_the_callers_matrix_stays_as_it_was() -> None:
    labels = sp.csr_matrix((np.array([1.0, 0, 1]), np.array([1, 0, 0]), np.array([0, 2, 3])), shape=(2, 2))
    assert Split(X, labels).labels.toarray().tolist() == [[0, 1], [1, 0]]
    assert labels.data.tolist() == [1, 0, 1] and labels.indices.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label_names": ("a", "a")}, "labels 0 and 1 have the same name, 'a'"),
        ({"label_names": ("\u00e9", "e\u0301")}, "labels 0 and 1 have the same name"),
        ({"label_names": ("a\nb", "c")}, "label 0 is empty, or has a line break"),
        ({"label_names": ("a",)}, "1 label names for 2 labels"),
        ({"label_names": "ab"}, "a list of texts"),
        ({"test": (X, Y)}, r"test should be a fedalc.Split\(features, labels\)"),
        ({"test": Split(X[:, :2], Y)}, "train has 3 features, test has 2"),
        ({"test": Split(X, Y[:, :1])}, "train has 2 labels, test has 1"),
        ({"train": Split(X[:, :0], Y)}, "there are no features"),
        ({"train": Split(X, Y[:, :0])}, "there are no labels"),
        ({"train": None}, "train should be a fedalc.Split"),
        ({"name": 5}, "name is a text"),
    ],
)
def test_parts_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset(**{"name": "mine", "train": Split(X, Y), **keys})


def test_without_test_data_and_names() -> None:
    data = Dataset("mine", Split(X, Y, users=["a", "b"]), test=None)
    assert (len(data.test), data.test.users, data.label_names) == (0, (), ("0", "1"))
    assert Dataset("mine", data.train, label_names=np.array(["x", "y"])).label_names == ("x", "y")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_rows_whose_squares_do_not_fit_are_scaled_too(size: float) -> None:
    scaled = scale_rows(sp.csr_matrix((X * size).astype(np.float32)), "unit").toarray()
    np.testing.assert_allclose(scaled, X / np.linalg.norm(X, axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("place", [99, -1, 100_000_000])
def test_a_sparse_matrix_with_indices_out_of_range_is_refused(place: int) -> None:
    """Compiled code would read out of bounds."""
    for good in (X, Y):
        bad = sp.csr_matrix(good, dtype=np.float32)
        bad.indices[0] = place
        with pytest.raises(DataError, match="damaged"):
            Split(bad, Y) if good is X else Split(X, bad)


def test_masked_values_are_refused() -> None:
    with pytest.raises(DataError, match="masked"):
        Split(np.ma.masked_array(X, mask=X > 1), Y)
    assert Split(np.ma.masked_array(X), Y).features.toarray().tolist() == X.tolist()


def test_almost_one_is_not_one() -> None:
    with pytest.raises(DataError, match="should be 0 or 1"):
        Split(X, np.array([[0.99999999, 0], [1, 1]]))


@pytest.mark.parametrize("name", ["a\x00", "\u2028", "a\nb", "\ud800", " "])
def test_label_names_that_cannot_be_written_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="name of label 1"):
        Dataset("mine", Split(X, Y), None, ["good", name])
