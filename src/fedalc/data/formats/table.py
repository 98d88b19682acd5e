"""Formats of tables: records with named columns, one file per split or one file for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedalc.data.cache import Parsed
from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.base import Format, ReadOptions
from fedalc.data.formats.label_file import label_list
from fedalc.data.formats.table_settings import AUTO, TableSettings
from fedalc.data.tables.build import make_dataset
from fedalc.data.tables.columns import Columns, find_columns
from fedalc.data.tables.records import Read, Records, read_records, separator_in_words
from fedalc.data.tables.source import Source
from fedalc.data.text.agreed import NotAgreed, needs_counts
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError


class TableFormat(Format, ABC):
    """A format whose files are tables. It declares `source`."""

    needed: ClassVar[tuple[str, ...]] = ("train",)

    @abstractmethod
    def source(self, path: Path, table: TableSettings) -> Source:
        """Return the table in a file."""

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        files = self.split_files(folder, needed=self.needed)
        return self._dataset(folder.name, files, options, folder)

    def read_alone(self, path: Path, options: ReadOptions) -> Dataset:
        return self._dataset(path.name, {"train": path}, options, None)

    def _dataset(self, name: str, files: dict[str, Path], options: ReadOptions, folder: Path | None) -> Dataset:
        sources = {split: self.source(path, options.table) for split, path in files.items()}
        if options.table.test is not None:
            if "test" in files:
                raise DataError(f"there are two test files: this one and {options.table.test}", files["test"])
            sources["test"] = source_of(Path(options.table.test), options.table)
        names = () if folder is None else label_list(folder)
        return dataset_of_tables(name, sources, options.table, options.text, names)

    def read_file(self, path: Path, options: ReadOptions) -> Parsed:
        """Read features, with labels if there are any. Splits are ignored."""
        table = options.table.model_copy(update={"split_column": None})
        records = read_table(self.source(path, table), table, need_labels=False).splits["train"]
        if records.features is None:
            raise DataError("holds texts, where features are expected", path)
        return Parsed(Split(records.features, records.labels), records.feature_names, records.label_names)

    def read_labelled(self, path: Path, table: TableSettings, split: str) -> Records:
        """Read the records of a file as `labelled_records` does."""
        return labelled_records(self.source(path, table), table, split)

    def read_texts(self, path: Path, table: TableSettings) -> Sequence[str]:
        """Read the texts of records to predict on. Labels and splits are ignored."""
        table = table.model_copy(update={"label_columns": None, "split_column": None})
        texts = read_table(self.source(path, table), table, need_labels=False).splits["train"].texts
        if texts is None:
            raise DataError("has no column of texts, and the model was trained on texts", path)
        return texts

    def read_held(self, path: Path, options: ReadOptions) -> tuple[Split, tuple[str, ...]]:
        source = self.source(path, options.table)
        table = options.table.model_copy(update={"test_share": 0.0})
        records = read_table(source, table).splits
        if "train" not in records:
            raise DataError("has no records for training", path)
        return held_records(records["train"], path, label_list(path.parent), replace(options, table=table))


def held_records(
    records: Records, path: Path, names: Sequence[str], options: ReadOptions
) -> tuple[Split, tuple[str, ...]]:
    """Return a party's records with features, and its label names. `names`: its labels.txt."""
    agrees = isinstance(options.text, TextSettings) and needs_counts(options.text)
    if records.texts is not None and agrees:
        raise NotAgreed(
            "holds texts, and their features (text.kind, text.idf) depend on all parties' documents, on which real "
            "parties agree first; nobody has to with text.kind=hashing and text.idf=false",
            path,
        )
    made = make_dataset(path.name, {"train": records}, options.table, options.text, label_list=names)
    return made.train, made.label_names


def source_of(path: Path, table: TableSettings) -> Source:
    """Return the table in a file of any table format."""
    from fedalc.data.formats import file_format

    if not path.is_file():
        raise DataError("no such file", path)
    data_format = file_format(path)
    if not isinstance(data_format, TableFormat):
        raise DataError(f"is {data_format.title}; test records have to be a table, as the training records are", path)
    return data_format.source(path, table)


def read_table(
    source: Source, table: TableSettings, *, need_labels: bool = True, columns: Columns | None = None
) -> Read:
    """Read one table, after finding out which column is what."""
    if columns is None:
        columns = find_columns(source.sample(), table, source.place, need_labels)
    return read_records(source, columns, table)


def labelled_records(source: Source, table: TableSettings, split: str) -> Records:
    """Read records with their labels, as they are: texts are not turned into features. All of them, or those of `split`
    if a column says which."""
    if table.split_column not in (None, AUTO, *source.columns):  # that of the training records
        table = table.model_copy(update={"split_column": None})
    splits = read_table(source, table).splits
    if len(splits) > 1 and split not in splits:
        raise DataError(f"none of its records is of the split {split!r}: it has {', '.join(splits)}", source.place)
    return without_unlabelled(splits[split] if split in splits else next(iter(splits.values())), table)


def without_unlabelled(records: Records, table: TableSettings) -> Records:
    """Return the records that have a label, or all if the settings keep the others."""
    labelled = np.flatnonzero(records.labels.getnnz(axis=1))
    drop = table.unlabelled == "drop" and len(labelled) < len(records)
    return records.rows(labelled) if drop else records


def dataset_of_tables(
    name: str,
    sources: Mapping[str, Source],
    table: TableSettings,
    text: TextSettings | TextFeatures,
    names: Sequence[str] = (),
) -> Dataset:
    """Read the tables of all splits, and make a dataset of them. The train table decides which column is what."""
    train = sources["train"]
    if len(sources) > 1 and table.split_column == AUTO:
        table = table.model_copy(update={"split_column": None})
    columns = find_columns(train.sample(), table, train.place)
    read = read_records(train, columns, table)
    splits = dict(read.splits)
    for split, source in sources.items():
        if split != "train":
            splits[split] = read_records(source, _in_other(columns, source), table, read.separator).splits["train"]
    said = columns.described(separator_in_words(read.separator))
    said += [f"{count:,} records of split {each!r} left out" for each, count in read.left_out.items()]
    found = columns.settings(table).model_copy(update={"label_separator": read.separator})
    return make_dataset(name, splits, found, text, notes=said, label_list=names)


def _in_other(columns: Columns, source: Source) -> Columns:
    """Return the same columns for another table, which has to have them."""
    there = source.columns
    columns = replace(columns, split=None)
    for name in columns.used:
        if name not in there:
            raise DataError(f"has no column {name!r}, which the training records have", source.place)
    return columns
