"""Whether what was read is what the catalog says it should be."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from fedalc.data._stream import LineReader
from fedalc.data.catalog import Entry, ImageSet
from fedalc.data.dataset import Dataset

_ROUNDING = 0.0051
"""Published averages have two digits behind the point."""


class Check(NamedTuple):
    what: str
    expected: int | float | str
    found: int | float | str
    ok: bool


def check(dataset: Dataset, entry: Entry) -> list[Check]:
    """The dataset's statistics beside the published ones. Nothing to compare with is an empty list."""
    if entry.images is not None:
        return _check_pictures(dataset, entry.images)
    expected = entry.statistics
    if expected is None:
        return []
    splits = [split for split in (dataset.train, dataset.test, dataset.validation) if split is not None]
    averaged = [dataset.train] if expected.averages_over_train else splits
    instances = sum(len(split) for split in averaged)
    marks = sum(int(split.labels.nnz) for split in averaged)
    counts = [
        ("train instances", expected.train, len(dataset.train)),
        ("test instances", expected.test, len(dataset.test)),
        ("features", expected.features, dataset.feature_count),
        ("labels", expected.labels, dataset.label_count),
    ]
    if expected.validation is not None or dataset.validation is not None:
        found = 0 if dataset.validation is None else len(dataset.validation)
        counts.insert(2, ("validation instances", expected.validation or 0, found))
    averages = [
        ("instances per label", expected.instances_per_label, marks / max(dataset.label_count, 1)),
        ("labels per instance", expected.labels_per_instance, marks / max(instances, 1)),
    ]
    return [_same(*line) for line in counts] + [_about(*line) for line in averages]


def _check_pictures(dataset: Dataset, expected: ImageSet) -> list[Check]:
    """The size of the copies is the user's choice, so features are not compared."""
    splits = [split for split in (dataset.train, dataset.test, dataset.validation) if split is not None]
    checks = [
        _same("train instances", expected.train, len(dataset.train)),
        _same("test instances", expected.test, len(dataset.test)),
        _same("labels", expected.labels, dataset.label_count),
    ]
    if expected.validation is not None or dataset.validation is not None:
        found = 0 if dataset.validation is None else len(dataset.validation)
        checks.insert(2, _same("validation instances", expected.validation or 0, found))
    if expected.labels_per_instance is not None:
        average = sum(int(split.labels.nnz) for split in splits) / sum(map(len, splits))
        checks.append(_about("labels per instance", expected.labels_per_instance, average))
    return checks


def _same(what: str, wanted: int, found: int) -> Check:
    return Check(what, wanted, found, wanted == found)


def _about(what: str, wanted: float, found: float) -> Check:
    return Check(what, wanted, round(found, 2), abs(wanted - found) < _ROUNDING)


def check_files(folder: Path, entry: Entry) -> list[Check]:
    """The checksums of the files' uncompressed content, for the files whose checksum is known."""
    checks = []
    for name, wanted in entry.sha256.items():
        present = find_file(folder, name)
        found = "missing" if present is None else content_sha256(present)
        checks.append(Check(f"SHA-256 of {name}", wanted, found, wanted == found))
    return checks


def find_file(folder: Path, name: str) -> Path | None:
    """The file of this name, as it is or compressed."""
    candidates = (folder / f"{name}{suffix}" for suffix in ("", ".gz", ".bz2"))
    return next((path for path in candidates if path.is_file()), None)


def content_sha256(path: Path) -> str:
    """The checksum of what is in the file once it is unpacked: another compression level is still the same data."""
    digest = hashlib.sha256()
    with LineReader(path) as reader:
        for piece in reader.pieces():
            digest.update(piece)
    return digest.hexdigest()
