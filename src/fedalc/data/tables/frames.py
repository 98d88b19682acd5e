"""Data frames, Arrow tables and Hugging Face datasets as tables of records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedalc.data.tables.cells import is_list, is_missing
from fedalc.data.tables.source import BLOCK, Block, Source, checked_columns
from fedalc.errors import DataError


def is_frame(given: Any) -> bool:
    """Return whether this is a pandas data frame, an Arrow table or a Hugging Face dataset."""
    return _is_pandas(given) or _is_arrow(given) or _is_hugging_face(given)


def frame_source(given: Any, name: str) -> Source:
    if _is_pandas(given):
        return PandasSource(given, name)
    if _is_arrow(given):
        return ArrowSource(given, name)
    if _is_hugging_face(given):
        return HuggingFaceSource(given, name)
    raise DataError(f"expected a data frame, found {type(given).__name__}", name)


def _is_pandas(given: Any) -> bool:
    return hasattr(given, "iloc") and hasattr(given, "columns") and hasattr(given, "dtypes")


def _is_arrow(given: Any) -> bool:
    return hasattr(given, "column_names") and hasattr(given, "to_batches")


def _is_hugging_face(given: Any) -> bool:
    return hasattr(given, "column_names") and hasattr(given, "features") and hasattr(given, "__getitem__")


class PandasSource(Source):
    def __init__(self, frame: Any, name: str) -> None:
        super().__init__(name)
        self._frame = frame
        self._columns = checked_columns([str(column) for column in frame.columns], name)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        at = {name: self._columns.index(name) for name in columns}
        for first in range(0, len(self._frame), BLOCK):
            part = self._frame.iloc[first : first + BLOCK]
            cells = {name: part.iloc[:, number].tolist() for name, number in at.items()}
            yield Block(cells, len(part), first + 1)


class ArrowSource(Source):
    """An Arrow table. `classes`: columns of numbers that stand for names."""

    def __init__(self, table: Any, name: str, classes: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(name)
        self._table, self._classes = table, classes or {}
        self._columns = checked_columns(list(table.column_names), name)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        done = 0
        wanted = self._table.select([self._columns.index(name) for name in columns])
        for batch in wanted.to_batches(max_chunksize=BLOCK):
            yield arrow_block(batch, columns, done, self._classes, self.place)
            done += batch.num_rows


def arrow_block(
    batch: Any, columns: Collection[str], done: int, classes: Mapping[str, Sequence[str]], place: Any
) -> Block:
    """Return a batch of Arrow records as a block; `done` records came before."""
    cells: dict[str, Sequence[Any]] = {}
    for name, column in zip(columns, batch.columns, strict=True):
        values = column.to_pylist()
        cells[name] = [named(value, classes[name], place) for value in values] if name in classes else values
    return Block(cells, batch.num_rows, done + 1)


def named(value: Any, names: Sequence[str], place: Any) -> Any:
    """Return the name for which a number stands, or the names for a list of numbers; -1 and None stand for nothing."""
    if is_list(value):
        return [name for each in value if (name := named(each, names, place)) is not None]
    if is_missing(value) or value == -1:
        return None
    if not isinstance(value, int | np.integer) or not 0 <= value < len(names):
        raise DataError(f"{value!r:.40} is not the number of one of the {len(names)} classes", place)
    return names[int(value)]


class HuggingFaceSource(Source):
    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(name)
        if not hasattr(dataset, "__len__"):
            raise DataError(
                "a streamed dataset (IterableDataset) has no end that is known; load it whole, without streaming=True, "
                "or make one with datasets.Dataset.from_generator",
                name,
            )
        self._dataset = dataset
        self._columns = checked_columns(list(dataset.column_names), name)
        self._classes = {
            column: names for column, feature in dataset.features.items() if (names := class_names(feature)) is not None
        }

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        wanted = self._dataset.select_columns(
            [self._dataset.column_names[self._columns.index(name)] for name in columns]
        )
        for first in range(0, len(wanted), BLOCK):
            part = wanted[first : first + BLOCK]
            cells: dict[str, Sequence[Any]] = {}
            for name, values in zip(columns, part.values(), strict=True):
                names = self._classes.get(name)
                cells[name] = list(values) if names is None else [named(each, names, self.place) for each in values]
            yield Block(cells, min(BLOCK, len(wanted) - first), first + 1)


def class_names(feature: Any) -> Sequence[str] | None:
    """Return the names of a ClassLabel column, or of a list of them."""
    if isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    inner = getattr(feature, "feature", feature)
    return getattr(inner, "names", None)
