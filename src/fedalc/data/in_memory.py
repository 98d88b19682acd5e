"""Data in memory to a `Dataset`: arrays, sparse matrices, lists, data frames and Hugging Face datasets.

None of these packages has to be installed: their objects are recognised by what they can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from fedalc.data.dataset import Dataset
from fedalc.data.formats.table import dataset_of_tables, labelled_records, read_table, without_unlabelled
from fedalc.data.formats.table_settings import AUTO, TableSettings
from fedalc.data.matrices import feature_matrix, label_matrix
from fedalc.data.tables.build import make_dataset
from fedalc.data.tables.cells import as_text, is_list, is_missing, kind_of
from fedalc.data.tables.columns import SPLIT_OF, find_columns
from fedalc.data.tables.frames import frame_source, is_frame
from fedalc.data.tables.label_cells import check_kinds, labels_in
from fedalc.data.tables.records import Records
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError, DataError


def dataset_from(
    X: Any,
    Y: Any = None,
    *,
    test: tuple[Any, Any] | Any = None,
    name: str = "data",
    table: TableSettings | None = None,
    text: TextSettings | None = None,
) -> Dataset:
    """Make a dataset of data in memory.

    With `Y`: `X` is a matrix of features (array, sparse matrix, list of rows, data frame of numbers) or a list of texts
    (list, array or Series of strings, data frame with a text column); `Y` an indicator matrix (array, sparse matrix, or
    data frame, whose columns name the labels), a list of each record's labels, or a list with one label per record.
    `test`: the same for testing, (X, Y).

    Without `Y`: `X` is a data frame or a Hugging Face dataset, and columns are found as in files; a mapping (such as a
    DatasetDict) has one for each split. `test`: another data frame.

    Without test data, the share `table.test_share` is held out.
    """
    table, text = table or TableSettings(), text or TextSettings()
    if Y is None:
        return _from_tables(X, test, name, table, text)
    splits = {"train": records_from(X, Y, table, "X", "Y")}
    if test is not None:
        if not isinstance(test, tuple | list) or len(test) != 2:
            raise ConfigError("expected a pair, (X, Y)", "test")
        splits["test"] = records_from(test[0], test[1], table, "test X", "test Y")
        if (splits["test"].texts is None) != (splits["train"].texts is None):
            raise DataError("train and test have to be both texts, or both features")
    return make_dataset(name, splits, table, text)


def _from_tables(X: Any, test: Any, name: str, table: TableSettings, text: TextSettings) -> Dataset:
    parts: dict[str, Any]
    if frames := _frames_by_split(X):
        parts = {}
        for key, part in frames.items():
            split = SPLIT_OF.get(str(key).lower())
            if split is None or split in parts:
                raise DataError(f"{name}: the split {key!r} is not one of train, test and validation, each once")
            parts[split] = part
        if "train" not in parts:
            raise DataError(f"{name}: has no split called train; the splits are {', '.join(map(str, X))}")
    else:
        check_has_labels(X, "dataset_from(X, Y)")
        parts = {"train": X}
    if test is not None:
        if not is_frame(test) or "test" in parts:
            raise ConfigError("expected one data frame, as for training", "test")
        parts["test"] = test
    sources = {
        split: frame_source(part, f"{name} ({split})" if len(parts) > 1 else name) for split, part in parts.items()
    }
    return dataset_of_tables(name, sources, table, text)


def check_has_labels(X: Any, call: str) -> None:
    """Refuse records without labels. `call`: what to call instead."""
    if not is_frame(X) and not _frames_by_split(X):
        raise ConfigError(
            f"expected labels: {type(X).__name__} has none. Give {call}, or a data frame with a label column", "Y"
        )


def records_to_evaluate(X: Any, Y: Any, table: TableSettings, split: str) -> Records:
    """Return records with their labels, given in one of the ways that `dataset_from` takes: those of `split`, if a
    frame has a column of splits or there is a frame for each."""
    if Y is not None:
        return without_unlabelled(records_from(X, Y, table, "X", "Y"), table)
    if not is_frame(X):
        frames = {SPLIT_OF.get(str(key).lower()): part for key, part in _frames_by_split(X).items()}
        if split not in frames:
            raise ConfigError(f"expected labels: {type(X).__name__} has none. Give evaluate(X, Y)", "Y")
        X = frames[split]
    return labelled_records(frame_source(X, "data"), table, split)


def _frames_by_split(X: Any) -> Mapping[Any, Any]:
    """Return a mapping (such as a DatasetDict) of frames; empty if it is something else."""
    return X if isinstance(X, Mapping) and all(map(is_frame, X.values())) else {}


def records_from(X: Any, Y: Any, table: TableSettings, x_name: str, y_name: str) -> Records:
    """Return records of X and Y, which messages call by these names."""
    labels, label_names, in_order = label_rows(Y, table, y_name)
    texts, features, feature_names = input_rows(X, table, x_name)
    count = features.shape[0] if texts is None else len(texts)  # type: ignore[union-attr]
    if count != labels.shape[0]:
        raise DataError(f"{x_name} has {count} records, but {y_name} has {labels.shape[0]}")
    return Records(labels, label_names, texts, features, feature_names, in_order)


def input_rows(
    X: Any, table: TableSettings | None = None, what: str = "X"
) -> tuple[list[str] | None, csr_matrix | None, tuple[str, ...]]:
    """Return (texts, features, names of features); one of the first two is None."""
    if isinstance(X, str):
        raise DataError(f"{what}: expected a list of texts, found one text")
    if is_frame(X):
        source = frame_source(X, what)
        sample = source.sample()
        settings = table or TableSettings()
        if not settings.text_columns and not settings.feature_columns:
            settings = _all_columns(sample, settings)
        settings = settings.model_copy(update={"label_columns": None, "split_column": None})
        columns = find_columns(sample, settings, what, need_labels=False, find_labels=False)
        records = next(iter(read_table(source, settings, columns=columns).splits.values()))
        return None if records.texts is None else list(records.texts), records.features, records.feature_names
    if (texts := _texts(X, what)) is not None:
        return texts, None, ()
    return None, feature_matrix(X), ()


def _all_columns(sample: Mapping[str, Sequence[Any]], table: TableSettings) -> TableSettings:
    """A data frame given as X holds nothing but features, if all of its columns are numbers."""
    if all(kind_of(cells) in ("flags", "numbers", "vectors") for cells in sample.values()):
        return table.model_copy(update={"feature_columns": tuple(sample)})
    return table


def _texts(X: Any, what: str) -> list[str] | None:
    """Return a sequence of texts as a list; None if it is something else."""
    if issparse(X) or not isinstance(X, Iterable):
        return None
    if getattr(X, "ndim", 1) != 1:
        return None
    items = list(X)
    if not items or not any(isinstance(item, str | bytes) for item in items):
        return None
    for number, item in enumerate(items):
        if not isinstance(item, str) and not is_missing(item):
            raise DataError(f"{what}: record {number} is not a text but {item!r:.40}")
    return [as_text(item) for item in items]


def label_rows(Y: Any, table: TableSettings | None = None, what: str = "Y") -> tuple[csr_matrix, tuple[str, ...], bool]:
    """Return (records × labels with ones, the labels' names, whether their order was given)."""
    names = tuple(map(str, Y.columns)) if hasattr(Y, "columns") and hasattr(Y, "to_numpy") else ()
    if isinstance(Y, str) or Y is None:
        raise DataError(f"{what}: expected the labels of every record, found {Y!r:.40}")
    if issparse(Y) or getattr(Y, "ndim", 1) == 2 or _is_indicator(Y):
        matrix = label_matrix(Y.to_numpy() if names else Y)
        return matrix, names or tuple(map(str, range(matrix.shape[1]))), True
    try:
        cells = list(Y)
    except TypeError:
        raise DataError(f"{what}: expected the labels of every record, found {Y!r:.40}") from None
    separator = (table or TableSettings()).label_separator
    number: dict[str, int] = {}
    rows = []
    for record, cell in enumerate(cells):
        try:
            labels = labels_in(cell, None if separator == AUTO else separator)
        except ValueError as error:
            raise DataError(f"{what}: record {record}: {error}") from None
        rows.append([number.setdefault(label, len(number)) for label in labels])
    single = ((record, item) for record, cell in enumerate(cells) for item in (cell if is_list(cell) else (cell,)))
    check_kinds(single, what, ", or give [] if it has none")
    pointers = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    flat = np.array([label for row in rows for label in row], dtype=np.int64)
    data = np.ones(len(flat), dtype=np.float32)
    matrix = csr_matrix((data, flat, pointers), shape=(len(rows), max(len(number), 1)))
    matrix.sort_indices()
    return matrix, tuple(number) or ("0",), False


def _is_indicator(Y: Any) -> bool:
    """Return whether a list of lists is a matrix of 0 and 1, rather than labels of each record."""
    if not isinstance(Y, list | tuple) or not Y or not all(is_list(row) for row in Y):
        return False
    if any(isinstance(row, set | frozenset) for row in Y) or len({len(row) for row in Y}) != 1 or len(Y[0]) < 2:
        return False
    return all(not isinstance(value, str) and value in (0, 1) for row in Y for value in row)
