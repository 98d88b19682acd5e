"""What to know about a dataset before training on it: duplicates, empty records, labels that cannot be learned.

A finding is a remark, not an error: fedalc trains on the data as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Dataset, Features, Split
from fedalc.data.images.images import Images
from fedalc.data.places import Places

EVERYWHERE = 0.9
"""A label that at least this share of the labelled training records has is nearly everywhere."""
SHOWN = 3  # examples
_AS_MISSING = {"nan", "null", "none", "na", "n/a", "#n/a", "nil"}


@dataclass(frozen=True)
class Finding:
    """Something to know, which records or labels it is about (the first few), and what to do."""

    what: str
    count: int
    examples: tuple[str, ...]
    do: str

    def as_text(self) -> str:
        """Return what was found, with examples."""
        if not self.examples:
            return self.what
        more = ", …" if self.count > len(self.examples) else ""
        return f"{self.what}: {', '.join(self.examples)}{more}"


def findings(dataset: Dataset) -> list[Finding]:
    """Return all findings, those about records first. Records are called by their line in the file, or counted from 1
    in it."""
    return [finding for finding in _all(dataset) if finding.count]


def _all(dataset: Dataset) -> Iterator[Finding]:
    dataset = replace(dataset, train=dataset.train.in_one_place)  # a record at several parties is no mistake
    contents = {name: _contents(split.features) for name, split in dataset.splits.items()}
    places = {name: split.places or Places.counted(len(split)) for name, split in dataset.splits.items()}
    for name, split in dataset.splits.items():
        yield from _empty(name, split, contents[name], places[name], dataset.text is not None)
    yield _repeated(dataset.train, contents["train"], places["train"])
    for name in ("test", "validation"):
        if name in contents:
            yield _in_both(name, contents[name], contents["train"], places[name])
    yield from _of_labels(dataset)


def _empty(name: str, split: Split, contents: list[bytes], places: Places, texts: bool) -> Iterator[Finding]:
    without = [row for row, content in enumerate(contents) if not content]
    why = "texts without a known word" if texts else "all features are 0"
    yield Finding(
        f"{name}: {_records(len(without))} without features ({why})",
        len(without),
        _first(without, places),
        "correct or remove them: they all get the same prediction",
    )
    unlabelled = np.flatnonzero(split.labels.getnnz(axis=1) == 0)
    do = "no client holds them; add labels, or remove them"
    do = do if name == "train" else "they count as 0 in precision and nDCG; add labels, or remove them"
    yield Finding(
        f"{name}: {_records(len(unlabelled))} without a label", len(unlabelled), _first(unlabelled, places), do
    )


def _repeated(train: Split, contents: list[bytes], places: Places) -> Finding:
    first: dict[bytes, int] = {}
    pairs = [
        (before, row)
        for row, content in enumerate(contents)
        if content and (before := _before(first, content, row)) != row
    ]
    others = sum(_labels(train, a) != _labels(train, b) for a, b in pairs)
    labels = f", {others:,} of them with other labels" if others else ""
    return Finding(
        f"train: {_records(len(pairs))} equal to an earlier one{labels}",
        len(pairs),
        tuple(f"{places[row]} = {places[before]}" for before, row in pairs[:SHOWN]),
        "merge the labels of equal records into one record" if others else "remove them, unless repeats should count",
    )


def _before(first: dict[bytes, int], content: bytes, row: int) -> int:
    """Return the first row with this content."""
    return first.setdefault(content, row)


def _in_both(name: str, contents: list[bytes], train: list[bytes], places: Places) -> Finding:
    known = set(train) - {b""}
    rows = [row for row, content in enumerate(contents) if content in known]
    do = f"remove them from {name}: figures on records that were trained on are too good"
    return Finding(f"{name}: {_records(len(rows))} also in train", len(rows), _first(rows, places), do)


def _of_labels(dataset: Dataset) -> Iterator[Finding]:
    held = dataset.train.labels.getnnz(axis=0)
    elsewhere = sum(
        (split.labels.getnnz(axis=0) for name, split in dataset.splits.items() if name != "train"), np.zeros_like(held)
    )
    names = dataset.label_names

    def about(what: str, chosen: np.ndarray, do: str) -> Finding:
        labels = np.flatnonzero(chosen)
        shown = tuple(f"{names[label]:.40}" for label in labels[:SHOWN])
        return Finding(f"{_labels_word(len(labels))} {what}", len(labels), shown, do)

    yield about(
        "only in test or validation",
        (held == 0) & (elsewhere > 0),
        "they are never predicted; move records of them to train, or leave them out",
    )
    yield about("without any record", (held == 0) & (elsewhere == 0), "they are never predicted; remove their names")
    yield about(
        "with a single training record",
        held == 1,
        "a client of one record learns little and reveals that record; collect more, or leave them out",
    )
    missing = np.array([name.strip().lower() in _AS_MISSING for name in names], dtype=bool)
    yield about("named like a missing value", missing & (held > 0), "if it means no label, leave the cell empty")
    labelled = int((dataset.train.labels.getnnz(axis=1) > 0).sum())
    yield about(
        f"on at least {EVERYWHERE:.0%} of the training records",
        (held >= EVERYWHERE * labelled) & (labelled > 1),
        "predicting them says nothing; leave them out",
    )


def _contents(features: Features) -> list[bytes]:
    """Return each record's content: equal for equal records, and empty for a record without features."""
    if isinstance(features, Images):
        return [digest.tobytes() for digest in features.digests]
    matrix: csr_matrix = features
    if not matrix.has_canonical_format or not matrix.data.all():
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    indices, data = matrix.indices.astype(np.int64, copy=False), matrix.data
    return [indices[a:b].tobytes() + data[a:b].tobytes() for a, b in pairwise(matrix.indptr.tolist())]


def _labels(split: Split, row: int) -> tuple[Any, ...]:
    starts = split.labels.indptr
    return tuple(split.labels.indices[starts[row] : starts[row + 1]])


def _first(rows: Any, places: Places) -> tuple[str, ...]:
    return tuple(places[row] for row in rows[:SHOWN])


def _records(count: int) -> str:
    return f"{count:,} record{'s' * (count != 1)}"


def _labels_word(count: int) -> str:
    return f"{count:,} label{'s' * (count != 1)}"
