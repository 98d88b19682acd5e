"""svmlight (libsvm) without a header: a line per record, `labels feature:value …`.

Labels are numbers, several joined by commas. Features count from 0 or from 1: if no file of a dataset has a feature 0,
they count from 1. A comment begins with #. (With a header `N F L` it is XML-repository text.)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.cache import Parsed
from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.base import Format, ReadOptions
from fedalc.data.formats.label_file import label_list
from fedalc.data.formats.sparse_builder import RowsBuilder
from fedalc.data.formats.text_stream import Block, LineReader
from fedalc.data.formats.xmlc import parse_features
from fedalc.data.limits import MOST_LABELS
from fedalc.data.tables.build import make_dataset
from fedalc.data.tables.records import Records
from fedalc.errors import DataError

_LINE = re.compile(rb"\s*(?:[+-]?\d+(?:\.\d*)?(?:,[+-]?\d+(?:\.\d*)?)*)?(?:\s+qid:\d+)?(?:\s*\d+:\S+)+\s*(?:#.*)?")
_LABEL = re.compile(rb"[+-]?\d{1,18}(?:\.0*)?")
_MOST_FEATURES = np.iinfo(np.int32).max - 1


class Svmlight(Format):
    help = "svmlight text"
    suffixes = (".svm", ".svmlight", ".libsvm", ".txt")
    compressed = True

    def recognises_file(self, path: Path) -> bool:
        """By its first line, or its name."""
        try:
            with LineReader(path) as reader:
                while (line := reader.next_line()) is not None:
                    if line.strip() and not line.lstrip().startswith(b"#"):
                        return _LINE.fullmatch(line) is not None
        except DataError:
            return False
        return False

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        files = self.split_files(folder, needed=("train",))
        return self._dataset(folder.name, files, options, folder)

    def _dataset(self, name: str, files: dict[str, Path], options: ReadOptions, folder: Path | None) -> Dataset:
        if options.table.test is not None:
            if "test" in files:
                raise DataError(f"there are two test files: this one and {options.table.test}", files["test"])
            files = {**files, "test": Path(options.table.test)}
        table = options.table.model_copy(update={"unlabelled": "keep"})
        names = () if folder is None else label_list(folder)
        splits, first = read_svmlight(files, table.first_feature)
        table = table.model_copy(update={"first_feature": first})
        return make_dataset(name, splits, table, options.text, label_list=names)

    def read_file(self, path: Path, options: ReadOptions) -> Parsed:
        records = read_svmlight({"train": path}, options.table.first_feature, options.feature_count)[0]["train"]
        return Parsed(Split(records.features, records.labels), (), records.label_names)

    def read_held(self, path: Path, options: ReadOptions) -> tuple[Split, tuple[str, ...]]:
        raise DataError(
            "does not say how many features there are, and parties need the same number: add a first line with the "
            "numbers of records, features and labels, and count features and labels from 0",
            path,
        )


def read_svmlight(
    files: dict[str, Path], first: Literal["auto", 0, 1] = "auto", feature_count: int | None = None
) -> tuple[dict[str, Records], Literal[0, 1]]:
    """Read the files of all splits, which share the numbers of their features. Return the number of the first too.
    With `feature_count`, there are as many, even if the last ones do not occur."""
    read = {split: _Rows(path) for split, path in files.items()}
    lowest, highest = min(rows.lowest for rows in read.values()), max(rows.highest for rows in read.values())
    if first == "auto":
        first = 1 if lowest >= 1 else 0
    if lowest < first:
        path = next(path for split, path in files.items() if read[split].lowest < first)
        raise DataError(f"has a feature 0, but features count from {first} (table.first_feature)", path)
    width = max(highest + 1 - first, feature_count or 1)
    return {split: rows.records(width, first) for split, rows in read.items()}, first


class _Rows:
    """The rows of a file, with features as it numbers them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lowest, self.highest = _MOST_FEATURES, 0
        self._features, self._labels, self._count = RowsBuilder(), RowsBuilder(), 0
        self._number: dict[str, int] = {}
        with LineReader(path) as reader:
            for block in reader.blocks():
                self._add(block)
        if not self._count:
            raise DataError("has no records", path)

    def _add(self, block: Block) -> None:
        rows: list[tuple[list[int], list[tuple[int, float]]]] = []
        for number, line in enumerate(block.text.split(b"\n")[:-1], start=block.first_line):
            content = line.partition(b"#")[0].split()
            if not content:
                continue
            try:
                labels = self._labels_of(content.pop(0)) if b":" not in content[0] else []
                words = content[1:] if content and content[0].startswith(b"qid:") else content
                rows.append((labels, parse_features(words, _MOST_FEATURES)))
            except ValueError as error:
                raise DataError(str(error), self.path, number) from None
        if not rows:
            return
        columns = np.array([feature for _, features in rows for feature, _ in features], dtype=np.int64)
        values = np.array([value for _, features in rows for _, value in features], dtype=np.float64)
        self._features.append(columns, values, np.array([len(features) for _, features in rows]))
        flat = np.array([label for labels, _ in rows for label in labels], dtype=np.int64)
        self._labels.append(flat, np.ones(len(flat), dtype=np.float32), np.array([len(labels) for labels, _ in rows]))
        if len(columns):
            self.lowest, self.highest = min(self.lowest, int(columns.min())), max(self.highest, int(columns.max()))
        self._count += len(rows)

    def _labels_of(self, word: bytes) -> list[int]:
        labels: dict[int, None] = {}
        for part in word.split(b","):
            if not _LABEL.fullmatch(part):
                raise ValueError(f"a label should be a whole number, not {part[:40].decode('utf-8', 'replace')!r}")
            if len(self._number) >= MOST_LABELS:
                raise ValueError(f"more than {MOST_LABELS:,} different labels, the limit")
            labels[self._number.setdefault(str(int(part.partition(b".")[0])), len(self._number))] = None
        return list(labels)

    def records(self, width: int, first: int) -> Records:
        features = self._features.matrix(width + first)
        labels = self._labels.matrix(max(len(self._number), 1))
        labels.data.fill(1.0)
        return Records(labels, tuple(self._number) or ("0",), features=_shifted(features) if first else features)


def _shifted(features: csr_matrix) -> csr_matrix:
    """Return the features numbered from 0. None is in column 0."""
    shape = (features.shape[0], features.shape[1] - 1)
    return csr_matrix((features.data, features.indices - 1, features.indptr), shape=shape)
