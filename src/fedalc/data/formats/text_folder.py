"""Folders of text files.

    set/train/LABEL/*.txt  set/test/LABEL/*.txt     a folder per label, in a folder per split
    set/LABEL/*.txt                                 a folder per label; a share is held out for testing
    set/labels.csv  set/…/*.txt                     labels.csv (or .tsv, .jsonl) has the columns file and labels

A text that lies in the folders of several labels, byte by byte the same, is one record with all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.base import Format, ReadOptions
from fedalc.data.formats.table import TableFormat, held_records
from fedalc.data.formats.text_stream import read_text
from fedalc.data.tables.build import make_dataset
from fedalc.data.tables.columns import SPLIT_OF
from fedalc.data.tables.records import Records
from fedalc.errors import DataError

_LISTS = ("labels.csv", "labels.tsv", "labels.jsonl")
_A_SPLIT = re.compile(r"(.*[_.-])?(train|test|dev|valid|validation)\.[a-z0-9.]+", re.IGNORECASE)


class TextFolder(Format):
    help = "folders of texts"

    def recognises(self, folder: Path) -> bool:
        return _list_in(folder) is not None or bool(_splits(folder))

    def looks_for(self, split: str = "train") -> str:
        return "a folder of text files (.txt) for each label, or texts and labels.csv"

    def split_files(self, folder: Path, needed: Iterable[str] = ()) -> dict[str, Path]:
        """Return the folder of each split, or the list of files."""
        listed = _list_in(folder)
        return _splits(folder) if listed is None else {"train": listed}

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        listed = _list_in(folder)
        if listed is not None:
            return replace(_format_of(listed).read_alone(listed, options), name=folder.name)
        read = {split: _read(path, options.table.encoding) for split, path in _splits(folder).items()}
        count = len(read["train"].label_names)
        notes = [f"text: the files in {count} folders; labels: the names of the folders"]
        if merged := sum(int((records.labels.getnnz(axis=1) > 1).sum()) for records in read.values()):
            notes.append(f"{merged:,} texts lie in several folders and have several labels")
        return make_dataset(folder.name, read, options.table, options.text, notes=notes)

    def read_held(self, path: Path, options: ReadOptions) -> tuple[Split, tuple[str, ...]]:
        if path.is_file():
            return _format_of(path).read_held(path, options)
        table = options.table.model_copy(update={"test_share": 0.0})
        return held_records(self.records(path, options), path, (), replace(options, table=table))

    def records(self, path: Path, options: ReadOptions) -> Records:
        """Read the texts of one split: a list of files, or a folder of a folder for each label."""
        if path.is_file():
            return _format_of(path).read_labelled(path, options.table, "train")
        return _read(path, options.table.encoding)

    def describe(self, folder: Path) -> list[str]:
        where = _list_in(folder)
        return [f"texts listed in {where.name}" if where else f"{self.title}, one for each label"]


def _list_in(folder: Path) -> Path | None:
    """Return the file that lists texts and their labels."""
    return next((folder / name for name in _LISTS if (folder / name).is_file()), None)


def _format_of(path: Path) -> TableFormat:
    from fedalc.data.formats import file_format

    data_format = file_format(path)
    assert isinstance(data_format, TableFormat)
    return data_format


def _splits(folder: Path) -> dict[str, Path]:
    """Return the folder of each split that has a folder for each label; empty if this is something else."""
    inner = {SPLIT_OF.get(path.name.lower()): path for path in _folders(folder)}
    if "train" in inner and _label_folders(inner["train"]):
        return {split: path for split, path in inner.items() if split is not None}
    return {"train": folder} if len(_label_folders(folder)) > 1 else {}


def _label_folders(folder: Path) -> list[Path]:
    """Return the folders with text files. A folder with a train or test file is a dataset of its own."""
    return [path for path in _folders(folder) if _texts(path) and not any(map(_is_split, path.iterdir()))]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _texts(folder: Path) -> list[Path]:
    """Return the text files: those that end with .txt, or in folders without any, those whose names have no ending."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return [path for path in files if path.suffix.lower() == ".txt"] or [path for path in files if not path.suffix]


def _is_split(path: Path) -> bool:
    return _A_SPLIT.fullmatch(path.name) is not None


def _read(folder: Path, encoding: str) -> Records:
    labels: dict[str, list[int]] = {}
    names = [path.name for path in _label_folders(folder)]
    for number, name in enumerate(names):
        for path in _texts(folder / name):
            labels.setdefault(read_text(path, encoding), []).append(number)
    if not labels:
        raise DataError("has no folders with text files", folder)
    rows = [sorted(set(numbers)) for numbers in labels.values()]
    pointers = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    flat = np.array([label for row in rows for label in row], dtype=np.int32)
    matrix = csr_matrix((np.ones(len(flat), dtype=np.float32), flat, pointers), shape=(len(rows), len(names)))
    return Records(matrix, tuple(names), texts=list(labels))
