"""What scikit-learn calls y: classes of any type, or an indicator matrix, as a 0/1 matrix of labels and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from fedalc.data.matrices import label_matrix
from fedalc.data.tables.label_cells import CLASSIFY, check_kinds
from fedalc.errors import DataError


@dataclass(frozen=True)
class Target:
    """The labels of a fit. `multilabel`: records have any number of labels; otherwise, each has one of `classes`."""

    classes: np.ndarray
    names: tuple[str, ...]
    multilabel: bool
    sparse: bool = False

    @property
    def binary(self) -> bool:
        return not self.multilabel and len(self.classes) == 2

    def decode(self, chosen: np.ndarray) -> Any:
        """Return predictions as the caller gave y: classes for positions, or an indicator matrix for a mask."""
        if not self.multilabel:
            return self.classes[chosen]
        return csr_matrix(chosen, dtype=np.int64) if self.sparse else chosen.astype(np.int64)


def read_target(y: Any) -> tuple[Target, csr_matrix]:
    """Return the labels and records × labels. Refuses continuous values, several outputs, and lists of labels."""
    if y is None:
        raise DataError("requires y to be passed, but the target y is None")  # the words that scikit-learn looks for
    if isinstance(y, list | tuple) and any(isinstance(row, list | tuple | set) for row in y):
        try:
            y = np.array(y)
            lists = y.ndim != 2 or y.dtype.kind not in "biuf"
        except ValueError:
            lists = True
        if lists:
            raise DataError(
                "y: lists of labels are for fedalc.train; here, convert them to a 0/1 matrix with "
                "sklearn.preprocessing.MultiLabelBinarizer"
            )
    if not (issparse(y) or hasattr(y, "columns")):
        plain = isinstance(y, list | tuple) or (getattr(y, "ndim", 0) == 1 and y.dtype.kind == "O")
        if plain and any(label is None or isinstance(label, str) for label in y):  # numpy makes texts of all
            check_kinds(enumerate(y), "y")
        y = np.asarray(y)
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise DataError(f"y: {str(error).split('. Maybe')[0]}. {CLASSIFY}") from None
    if _is_indicator(y):
        columns = getattr(y, "columns", None)
        matrix = label_matrix(y)
        count = matrix.shape[1]
        names = tuple(map(str, range(count) if columns is None else columns))
        classes = np.arange(count) if columns is None else np.array(columns)
        return Target(classes, names, multilabel=True, sparse=issparse(y)), matrix
    classes, positions = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    shape = (len(positions), len(classes))
    ones = np.ones(len(positions), dtype=np.float32)
    matrix = csr_matrix((ones, positions, np.arange(len(positions) + 1)), shape=shape)
    return Target(classes, tuple(map(str, classes)), multilabel=False), matrix


def _is_indicator(y: Any) -> bool:
    """Whether y is a 0/1 matrix. (scikit-learn calls one with a single column, or of zeros alone, something else.)"""
    return issparse(y) or type_of_target(y).startswith("multilabel") or (np.ndim(y) == 2 and np.shape(y)[1] > 1)
