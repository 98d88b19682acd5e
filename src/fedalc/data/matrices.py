"""Convert users' features and labels to one form, and refuse values that must be a mistake."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from fedalc.errors import DataError

ONE_COLUMN = "Texts are a list, or one column of a table: frame['text'], not frame[['text']]"
_NUMERIC = "biuf"  # numpy's kinds of numbers: bool, signed, unsigned, floating


def feature_matrix(features: Any) -> csr_matrix:
    """Return instances × features as float32, from any sparse matrix, array, list of rows or data frame.

    Raises DataError with the row of a value that is not a finite number in float32.
    """
    with np.errstate(over="ignore"), warnings.catch_warnings():  # overflow is refused below
        warnings.simplefilter("ignore", RuntimeWarning)
        matrix = csr_matrix(_two_dimensional(features, "features"), dtype=np.float32)
    # The extremes of data with a NaN in it are NaN. (A mask of all values would take memory.)
    if matrix.nnz and not np.isfinite((matrix.data.min(), matrix.data.max())).all():
        at = int(np.flatnonzero(~np.isfinite(matrix.data))[0])
        raise DataError(
            f"features: the value in row {_row_of(matrix, at)}, column {matrix.indices[at]} is not a finite number "
            "(NaN, infinite, or too large for float32); fill in missing values, or leave these rows out"
        )
    return matrix


def label_matrix(labels: Any) -> csr_matrix:
    """Return instances × labels as float32 ones, from a sparse matrix, array, list or data frame of 0/1 or bool.

    Refuses other numbers: a -1 or a probability would count as "has this label".
    """
    given = _two_dimensional(labels, "labels")
    # Compare doubles as doubles: float32 would round values close to 1 to 1.
    matrix = csr_matrix(given, dtype=np.float64 if given.dtype == np.float64 else np.float32)
    if (matrix.data == 1).all() and matrix.has_canonical_format:
        return matrix.astype(np.float32, copy=False)
    matrix = matrix.copy() if issparse(given) else matrix  # do not change the caller's matrix
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    wrong = np.flatnonzero(matrix.data != 1)
    if len(wrong):
        at = int(wrong[0])
        raise DataError(
            f"labels should be 0 or 1 (or False, True): found {float(matrix.data[at]):.9g} in row "
            f"{_row_of(matrix, at)}, column {matrix.indices[at]}. {_how_to_convert(matrix)}"
        )
    return matrix.astype(np.float32, copy=False)


def _how_to_convert(matrix: csr_matrix) -> str:
    values = matrix.data
    if values.min() < 0:
        return "If -1 means 'does not have the label', give Y > 0"
    if values.max() <= 1:
        return "If these are probabilities, choose a threshold: Y > 0.5"
    return (
        "If these are counts, give Y > 0; lists of label numbers become a 0/1 matrix with "
        "sklearn.preprocessing.MultiLabelBinarizer"
    )


def _two_dimensional(given: Any, what: str) -> Any:
    """Return a sparse matrix unchanged, and anything else as an array. Both must be two-dimensional and numeric."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise DataError(f"{what}: a masked array with masked values; fill them in first: X.filled(0)")
    if given is None or isinstance(given, str | bytes):
        raise DataError(f"{what}: expected a matrix with a row per instance, found {given!r:.60}")
    array = _checked_sparse(given, what) if issparse(given) else _as_array(given, what)
    if array.ndim != 2:
        raise DataError(
            f"{what}: expected two dimensions, a row per instance, found {array.ndim} (shape {array.shape})"
            f"{_how_to_make_rows(array)}"
        )
    if array.dtype.kind not in _NUMERIC:
        array = _numbers_in_objects(array, what)
    return array


def _how_to_make_rows(array: np.ndarray) -> str:
    if array.ndim != 1:
        return ""
    if not len(array):
        return ": there is no instance"
    if array.dtype.kind not in _NUMERIC:
        first = array[0].item() if isinstance(array[0], np.generic) else array[0]
        return f" with {first!r:.40}, which is not a row of numbers"
    return "; a single instance is a matrix of one row: x.reshape(1, -1)"


def _checked_sparse(given: Any, what: str) -> Any:
    """Check the indices, which compiled code trusts: one out of range would read or write other memory."""
    if given.format in ("csr", "csc", "bsr"):
        try:
            given.check_format(full_check=True)
        except ValueError as error:
            raise DataError(f"{what}: the sparse matrix is damaged: {error}") from None
    return given


def _as_array(given: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:  # rows of different lengths, …
        hint = ""
        if what == "labels" and isinstance(given, list | tuple):
            hint = (
                ": the rows have different lengths. Convert lists of label numbers to a 0/1 matrix with "
                "sklearn.preprocessing.MultiLabelBinarizer"
            )
        raise DataError(f"{what}: cannot be read as a matrix{hint or f': {error}'}") from None


def _numbers_in_objects(array: Any, what: str) -> Any:
    """Convert an array of Python objects, such as a data frame with mixed columns. Refuse text, even digits."""
    wrong = DataError(f"{what}: expected numbers, found values of type {array.dtype}{_of_texts(array, what)}")
    if array.dtype.kind != "O" or issparse(array):
        raise wrong
    if any(isinstance(value, str | bytes | complex | np.complexfloating) for value in array.ravel()):
        raise wrong
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError):
        raise wrong from None


def _of_texts(array: Any, what: str) -> str:
    """Return what to do about texts in a matrix."""
    text = None if what != "features" or issparse(array) else next((x for x in array.flat if isinstance(x, str)), None)
    return "" if text is None else f", such as {str(text)!r:.40}. {ONE_COLUMN}"


def _row_of(matrix: csr_matrix, at: int) -> int:
    """Return the row of the entry stored at this position."""
    return int(np.searchsorted(matrix.indptr, at, side="right")) - 1
