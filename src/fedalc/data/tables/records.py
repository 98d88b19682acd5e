"""Records in memory: texts or features, and labels. Read from a source, split by split."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedalc.data.formats.sparse_builder import RowsBuilder
from fedalc.data.formats.table_settings import AUTO, TableSettings
from fedalc.data.formats.text_stream import read_text
from fedalc.data.limits import MOST_LABELS
from fedalc.data.places import Places
from fedalc.data.storage import safe_name
from fedalc.data.tables.cells import as_flag, as_text, in_words, is_list, is_missing, is_nested, kind_of
from fedalc.data.tables.columns import SPLIT_OF, STRANGERS, Columns
from fedalc.data.tables.label_cells import AS_LIST, found_separator, labels_in, several_kinds, with_kind
from fedalc.data.tables.source import Block, Source
from fedalc.errors import DataError, either, either_setting

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Records:
    """Records with texts or with features. `labels` is records × `label_names`, with ones.

    `in_order`: the order of the names means something, so that it is kept.
    """

    labels: csr_matrix
    label_names: tuple[str, ...]
    texts: Sequence[str] | None = None
    features: csr_matrix | None = None
    feature_names: tuple[str, ...] = ()
    in_order: bool = False
    places: Places | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def placed(self) -> Records:
        """The same records with their places, before some of them are left out."""
        return self if self.places is not None else replace(self, places=Places.counted(len(self)))

    def rows(self, index: np.ndarray) -> Records:
        """Return the records at these positions, in this order."""
        texts = None if self.texts is None else [self.texts[at] for at in index.tolist()]
        features = None if self.features is None else self.features[index]
        places = None if self.places is None else self.places.rows(index)
        return Records(self.labels[index], self.label_names, texts, features, self.feature_names, self.in_order, places)


@dataclass(frozen=True)
class Read:
    """What was read from a source: the records of each split, what its columns are, and what separates labels."""

    splits: Mapping[str, Records]
    columns: Columns
    separator: str | None
    left_out: Mapping[str, int]
    """Records whose split is not one of ours, by the name of their split."""


def read_records(source: Source, columns: Columns, table: TableSettings, separator: str | None = AUTO) -> Read:
    """Read all records. `separator`: of labels; AUTO finds it."""
    reader = _Reader(source, columns)
    for block in source.blocks(columns.used):
        reader.add(block)
    if not reader.count:
        raise DataError("has no records", source.place)
    if separator == AUTO:
        separator = table.label_separator
    if separator == AUTO:
        separator = reader.separator()
    every = Records(
        *reader.labels(separator),
        texts=reader.texts if columns.text or columns.files else None,
        features=reader.features() if columns.features else None,
        feature_names=columns.features,
        in_order=reader.in_order,
        places=reader.places(),
    )
    if len(columns.labels) == 1 and columns.labels[0] in every.label_names:
        warnings.warn(
            f"{source.place}: the column {columns.labels[0]!r} has a label of the same name. If the first line is "
            "a record and not the names of columns: " + either_setting("table.header", False),
            stacklevel=2,
        )
    if columns.split is None:
        return Read({"train": every}, columns, separator, {})
    splits, left_out = _by_split(every, reader.splits)
    return Read(splits, columns, separator, left_out)


def _by_split(every: Records, names: Sequence[str]) -> tuple[dict[str, Records], dict[str, int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    known = SPLIT_OF | dict.fromkeys(STRANGERS, "strangers")
    left_out = {name or "none": len(found) for name, found in rows.items() if name not in known}
    merged: dict[str, list[int]] = {}
    for name, found in rows.items():
        if name in known:
            merged.setdefault(known[name], []).extend(found)
    return {split: every.rows(np.array(sorted(found))) for split, found in merged.items()}, left_out


class _Reader:
    """Collects the used columns of a source, block by block."""

    def __init__(self, source: Source, columns: Columns) -> None:
        self.source, self.columns = source, columns
        self.count = 0
        self.texts: list[str] = []
        self.splits: list[str] = []
        self._features: list[csr_matrix] = []
        self._cells: list[Any] = []  # of the label column, until the separator is known
        self._blocks: list[tuple[int, Block]] = []  # to name the line of a cell: without cells
        self._flags = RowsBuilder()
        self._width: int | None = None  # of vectors
        self._lines: list[Sequence[int]] = []

    @property
    def in_order(self) -> bool:
        return self.columns.indicators or self._vectors

    @property
    def _vectors(self) -> bool:
        """Whether each cell of the label column is a row of 0 and 1. (A list of labels has none twice.)"""
        cells = self._cells[:1000]
        return bool(cells) and self._width_of(cells) is not None

    @staticmethod
    def _width_of(cells: Sequence[Any]) -> int | None:
        if kind_of(cells) != "vectors" or len(cells[0]) < 2:
            return None
        rows = np.asarray([list(cell) for cell in cells], dtype=np.float64)
        repeats = rows.shape[1] > 2 or bool((rows[:, 0] == rows[:, 1]).any())
        return rows.shape[1] if repeats and np.isin(rows, (0, 1)).all() else None

    def add(self, block: Block) -> None:
        columns = self.columns
        if columns.text:
            parts = [self._texts(name, block) for name in columns.text]
            self.texts += parts[0] if len(parts) == 1 else ["\n".join(texts) for texts in zip(*parts, strict=True)]
        if columns.files is not None:
            self.texts += [self._file(name, block, row) for row, name in enumerate(block.cells[columns.files])]
        if columns.features:
            self._features.append(self._numbers(block))
        if columns.indicators:
            self._add_flags(block)
        elif columns.labels:
            self._cells.extend(block.cells[columns.labels[0]])
            self._blocks.append((self.count, Block({}, block.size, block.first, block.lines)))
        if columns.split is not None:
            self.splits += [as_text(cell).strip().lower() for cell in block.cells[columns.split]]
        if block.lines is not None:
            self._lines.append(block.lines)
        self.count += block.size

    def places(self) -> Places:
        return Places(np.concatenate(self._lines), "line") if self._lines else Places.counted(self.count)

    def _texts(self, name: str, block: Block) -> list[str]:
        for row, cell in enumerate(block.cells[name]):
            if not isinstance(cell, str) and is_nested(cell):
                raise self.source.error(
                    f"column {name!r}: expected a text, found {in_words(cell)}. Write what is inside as columns of "
                    "their own, or choose another column: "
                    + either("--text-column NAME", "table={'text_columns': 'NAME'}"),
                    block,
                    row,
                )
        return [as_text(cell) for cell in block.cells[name]]

    def _file(self, name: Any, block: Block, row: int) -> str:
        folder = Path(self.source.place).parent
        try:
            return read_text(folder / safe_name(as_text(name).strip(), folder))
        except (DataError, OSError, ValueError) as error:
            raise self.source.error(f"column {self.columns.files!r}: {error}"[:300], block, row) from None

    def _numbers(self, block: Block) -> csr_matrix:
        parts = [self._number_column(name, block) for name in self.columns.features]
        dense = np.concatenate(parts, axis=1)
        wrong = np.argwhere(~(np.abs(dense) <= _LARGEST))  # also finds NaN
        if len(wrong):
            row, column = wrong[0]
            raise self.source.error(
                f"{self._name_of(parts, int(column))}: {dense[row, column]:g} is not a finite 32-bit number; "
                "fill in missing values, or leave these records out",
                block,
                int(row),
            )
        if self._width not in (None, dense.shape[1]):
            raise self.source.error(f"has {dense.shape[1]} features, but records before it {self._width}", block, 0)
        self._width = dense.shape[1]
        return csr_matrix(dense.astype(np.float32))

    def _name_of(self, parts: Sequence[np.ndarray], column: int) -> str:
        for name, part in zip(self.columns.features, parts, strict=True):
            if column < part.shape[1]:
                return f"column {name!r}"
            column -= part.shape[1]
        raise AssertionError

    def _number_column(self, name: str, block: Block) -> np.ndarray:
        cells = block.cells[name]
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            return cells.astype(np.float64).reshape(len(cells), -1)
        values = np.empty((len(cells), len(cells[0]) if is_list(cells[0]) else 1))
        for row, cell in enumerate(cells):
            try:
                values[row] = list(map(float, cell)) if is_list(cell) else float(cell)
            except (ValueError, TypeError, OverflowError):
                found = f"{as_text(cell)[:40]!r} is not a number"
                if is_missing(cell):
                    found = "is empty; fill in missing values, or leave these records out"
                if is_list(cell):
                    found = f"is a list of {len(cell)}, not of {values.shape[1]} numbers"
                hint = "; write 1.5, not 1,5" if isinstance(cell, str) and "," in cell else ""
                raise self.source.error(f"column {name!r}: {found}{hint}", block, row) from None
        return values

    def _add_flags(self, block: Block) -> None:
        rows = np.zeros((block.size, len(self.columns.labels)), dtype=bool)
        for at, name in enumerate(self.columns.labels):
            for row, cell in enumerate(block.cells[name]):
                flag = as_flag(cell)
                if flag is None:
                    found = "is empty" if is_missing(cell) else f"{as_text(cell)[:40]!r}"
                    raise self.source.error(f"column {name!r}: {found}, where 0 or 1 is expected", block, row)
                rows[row, at] = flag
        self._flags.append(np.nonzero(rows)[1], np.ones(int(rows.sum()), dtype=np.float32), rows.sum(1))

    def features(self) -> csr_matrix:
        return vstack(self._features, format="csr")

    def separator(self) -> str | None:
        if self.columns.indicators or not self.columns.labels:
            return None
        return found_separator(self.columns.labels[0], self._cells)

    def labels(self, separator: str | None) -> tuple[csr_matrix, tuple[str, ...]]:
        """Return records × labels, and the labels' names in the order in which they first occur."""
        if self.columns.indicators:
            return self._flags.matrix(len(self.columns.labels)), self.columns.labels
        if not self.columns.labels:
            return csr_matrix((self.count, 0), dtype=np.float32), ()
        if self._vectors:
            return self._from_vectors()
        number: dict[str, int] = {}
        builder = RowsBuilder()
        for first, block in self._blocks:
            rows = [self._numbers_of(first + row, block, row, separator, number) for row in range(block.size)]
            flat = np.array([label for row in rows for label in row], dtype=np.int64)
            builder.append(flat, np.ones(len(flat), dtype=np.float32), np.array([len(row) for row in rows]))
        self._check_kinds()
        return builder.matrix(len(number)), tuple(number)

    def _check_kinds(self) -> None:
        """Refuse labels of several types, as for data in memory. (All cells of a CSV file are text.)"""
        single = ((at, item) for at, cell in enumerate(self._cells) for item in (cell if is_list(cell) else (cell,)))
        if (found := several_kinds((at, item) for at, item in single if not is_missing(item))) is None:
            return
        (_, one), (at, other) = found
        first, block = next(each for each in reversed(self._blocks) if each[0] <= at)
        raise self.source.error(
            f"column {self.columns.labels[0]!r}: labels of several types: {with_kind(other)}, and before it "
            f"{with_kind(one)}. Write them all as text",
            block,
            at - first,
        )

    def _numbers_of(self, at: int, block: Block, row: int, separator: str | None, number: dict[str, int]) -> list[int]:
        cell = self._cells[at]
        try:
            names = labels_in(cell, separator)
            if isinstance(cell, np.ndarray) and len(set(cell.tolist())) < len(cell):
                raise ValueError("numbers other than 0 and 1, one of them twice: a list of labels has each once")
        except ValueError as error:
            raise self.source.error(f"column {self.columns.labels[0]!r}: {error}", block, row) from None
        for name in names:
            if name not in number and len(number) >= MOST_LABELS:
                raise self.source.error(f"more than {MOST_LABELS:,} different labels, the limit", block, row)
        return [number.setdefault(name, len(number)) for name in names]

    def _from_vectors(self) -> tuple[csr_matrix, tuple[str, ...]]:
        width = len(self._cells[0])
        for first, block in self._blocks:
            for row in range(block.size):
                cell = self._cells[first + row]
                if not is_list(cell) or len(cell) != width or not np.isin(list(cell), (0, 1)).all():
                    raise self.source.error(
                        f"column {self.columns.labels[0]!r}: expected {width} values of 0 or 1", block, row
                    )
        rows = np.asarray([list(cell) for cell in self._cells], dtype=np.float32)
        return csr_matrix(rows), tuple(map(str, range(width)))


def separator_in_words(separator: str | None) -> str:
    """Return how to say what separates labels; empty if a cell is one label."""
    return {None: "", AS_LIST: ", as lists"}.get(separator, f", separated by {separator!r}")
