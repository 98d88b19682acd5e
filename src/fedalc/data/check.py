"""Compare a dataset with the catalog's numbers, or count what is in it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedalc.data.catalog.datasets import Entry, ImageSet
from fedalc.data.dataset import Dataset
from fedalc.data.formats.text_stream import LineReader
from fedalc.data.images.images import Images
from fedalc.data.label_counts import shared
from fedalc.data.parties import describe_parties

_ROUNDING = 0.0051
"""Published averages have two decimals."""
SHOWN = 5  # labels that several parties have


class Check(NamedTuple):
    what: str
    expected: int | float | str
    found: int | float | str
    ok: bool


def check(dataset: Dataset, entry: Entry) -> list[Check]:
    """Compare the dataset's statistics with the published ones; an empty list if there are none."""
    if entry.images is not None:
        return _check_pictures(dataset, entry.images)
    expected = entry.statistics
    if expected is None:
        return []
    averaged = [dataset.train] if expected.averages_over_train else list(dataset.splits.values())
    instances = sum(len(split) for split in averaged)
    marks = sum(int(split.labels.nnz) for split in averaged)
    counts = [
        ("train instances", expected.train, len(dataset.train)),
        ("test instances", expected.test, len(dataset.test)),
        ("labels", expected.labels, dataset.label_count),
    ]
    if expected.features is not None:
        counts.insert(2, ("features", expected.features, dataset.feature_count))
    if expected.validation is not None or dataset.validation is not None:
        found = 0 if dataset.validation is None else len(dataset.validation)
        counts.insert(2, ("validation instances", expected.validation or 0, found))
    averages = [
        ("instances per label", expected.instances_per_label, marks / max(dataset.label_count, 1)),
        ("labels per instance", expected.labels_per_instance, marks / max(instances, 1)),
    ]
    if expected.features_per_instance is not None and entry.like is None:  # approximate for generated data
        words = sum(int(split.features.nnz) for split in averaged)
        averages.append(("features per instance", expected.features_per_instance, words / max(instances, 1)))
    return [_same(*line) for line in counts] + [_about(*line) for line in averages]


def _check_pictures(dataset: Dataset, expected: ImageSet) -> list[Check]:
    """Does not compare features: the user chooses the size of the copies."""
    checks = [
        _same("train instances", expected.train, len(dataset.train)),
        _same("test instances", expected.test, len(dataset.test)),
        _same("labels", expected.labels, dataset.label_count),
    ]
    if expected.validation is not None or dataset.validation is not None:
        found = 0 if dataset.validation is None else len(dataset.validation)
        checks.insert(2, _same("validation instances", expected.validation or 0, found))
    if expected.labels_per_instance is not None:
        checks.append(_about("labels per instance", expected.labels_per_instance, _labels_per_instance(dataset)))
    return checks


def count(dataset: Dataset) -> list[tuple[str, str]]:
    """Count what is in a dataset without published numbers."""
    held = dataset.train.labels.getnnz(axis=0)
    lines = [(f"{split} instances", f"{len(part):,}") for split, part in dataset.splits.items()]
    lines += [
        (f"{split} instances without a label", f"{without:,}")
        for split, part in dataset.splits.items()
        if (without := int((part.labels.getnnz(axis=1) == 0).sum()))
    ]
    if not isinstance(dataset.train.features, Images):
        words = sum(int(part.features.nnz) for part in dataset.splits.values())
        lines.append(("features", f"{dataset.feature_count:,}"))
        lines.append(("features per instance", f"{words / sum(map(len, dataset.splits.values())):.2f}"))
    lines.append(("labels", f"{dataset.label_count:,}"))
    if alone := int((held == 0).sum()):
        lines.append(("labels without a training instance", f"{alone:,}"))
    lines += [
        ("training instances of a label", f"{held.min():,} to {held.max():,}, {np.median(held):,g} in the middle"),
        ("labels per instance", f"{_labels_per_instance(dataset):.2f}"),
    ]
    for party, records, labels, alone in describe_parties(dataset):
        lines.append(
            (f"party {party}", f"{records:,} records of {len(labels):,} labels, {alone:,} of them its own alone")
        )
    if (common := shared(dataset)) is not None:
        names = ", ".join(f"{name:.40}" for name in common.labels[:SHOWN]) + ", …" * (len(common.labels) > SHOWN)
        lines += [
            ("records at several parties", f"{common.records:,} of {common.different:,} different ones"),
            ("labels at several parties", f"{len(common.labels):,}" + f": {names}" * bool(names)),
        ]
    if dataset.users is not None:
        lines.append(("users with training instances", f"{len(set(dataset.users)):,}"))
    return lines


def _labels_per_instance(dataset: Dataset) -> float:
    splits = dataset.splits.values()
    return sum(int(split.labels.nnz) for split in splits) / sum(map(len, splits))


def _same(what: str, wanted: int, found: int) -> Check:
    return Check(what, wanted, found, wanted == found)


def _about(what: str, wanted: float, found: float) -> Check:
    return Check(what, wanted, round(found, 2), abs(wanted - found) < _ROUNDING)


def check_files(folder: Path, entry: Entry) -> list[Check]:
    """Compare the SHA-256 of the files' uncompressed content with the known ones."""
    checks = []
    for name, wanted in entry.sha256.items():
        present = find_file(folder, name)
        found = "missing" if present is None else content_sha256(present)
        checks.append(Check(f"SHA-256 of {name}", wanted, found, wanted == found))
    return checks


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file of this name, plain or compressed; None if there is none."""
    candidates = (folder / f"{name}{suffix}" for suffix in ("", ".gz", ".bz2"))
    return next((path for path in candidates if path.is_file()), None)


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of the unpacked content: the same for every compression level."""
    digest = hashlib.sha256()
    with LineReader(path) as reader:
        for piece in reader.pieces():
            digest.update(piece)
    return digest.hexdigest()
