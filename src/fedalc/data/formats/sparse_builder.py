"""Build sparse matrices block by block, with little more memory than the result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

_GROWTH = 1 << 22


class GrowingArray:
    """An array that is appended to. Growing asks the allocator to extend it in place, so nothing is held twice.

    It grows by half, and by no more than 4 million entries: numpy fills what it adds with zeros, so room to spare
    takes memory as well.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._array: NDArray[Any] = np.empty(1024, dtype=dtype)
        self._length = 0

    def append(self, values: NDArray[Any]) -> None:
        needed = self._length + len(values)
        if needed > len(self._array):
            # refcheck: no view of the array ever leaves this class before `take`.
            room = len(self._array) + min(len(self._array) // 2, _GROWTH)
            self._array.resize(max(needed, room), refcheck=False)
        self._array[self._length : needed] = values
        self._length = needed

    def take(self) -> NDArray[Any]:
        """Return the array itself, cut to its length. Append nothing afterwards."""
        self._array.resize(self._length, refcheck=False)
        return self._array


class RowsBuilder:
    """Collects rows of (column, value) into one float32 matrix."""

    def __init__(self) -> None:
        self._columns = GrowingArray(np.int32)
        self._values = GrowingArray(np.float32)
        self._lengths = GrowingArray(np.int32)

    def append(self, columns: NDArray[Any], values: NDArray[Any], lengths: NDArray[Any]) -> None:
        """Add rows. `lengths`: the number of columns of each row."""
        self._columns.append(columns)
        self._values.append(values)
        self._lengths.append(lengths)

    def matrix(self, column_count: int) -> csr_matrix:
        """Columns of a row in ascending order, zeros not stored. A label that came twice: see `as_indicator`."""
        lengths = self._lengths.take()
        pointers = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=pointers[1:])
        columns = self._columns.take()
        if pointers[-1] <= np.iinfo(np.int32).max:
            pointers = pointers.astype(np.int32)
        matrix = csr_matrix((self._values.take(), columns, pointers), shape=(len(lengths), column_count), copy=False)
        if not matrix.has_canonical_format:
            matrix.sum_duplicates()
        if matrix.nnz and not matrix.data.all():
            matrix.eliminate_zeros()
        return matrix


def twice_in_a_row(columns: NDArray[Any], lengths: NDArray[Any]) -> bool:
    """Return whether a row has a column twice. `lengths`: the number of columns of each row."""
    if len(columns) < 2:
        return False
    descends = columns[1:] <= columns[:-1]
    starts = np.cumsum(lengths)[:-1]
    descends[starts[(starts > 0) & (starts < len(columns))] - 1] = False  # from one row to the next
    if not descends.any():
        return False  # all in ascending order, as most files have them
    place = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths) * (int(columns.max()) + 1) + columns
    return len(np.unique(place)) < len(place)


def first_twice(columns: list[int]) -> int | None:
    """Return the first column that a row has a second time."""
    seen: set[int] = set()
    for column in columns:
        if column in seen:
            return column
        seen.add(column)
    return None


def as_indicator(matrix: csr_matrix) -> csr_matrix:
    """Return the matrix with all values one: a label named twice counts once."""
    matrix.data.fill(1.0)
    return matrix
