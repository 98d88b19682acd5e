"""FLAIR (Song, Granqvist and Talwar, 2022): pictures of Flickr users, with labels at two levels of detail.

The layout is that of the authors' download: `labels_and_metadata.json`, a list with one record per picture, and the
pictures `small_images/<image_id>.jpg`, in that folder or in the archives `small_images-00.tar.gz` and so on. The
`partition` of a record says train, validation or test, and also separates users. Labels are in alphabetical order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedalc.data.formats.annotation_text import checked_text
from fedalc.data.formats.json_stream import read_json
from fedalc.data.images.annotations import Annotations, label_matrix
from fedalc.data.storage import File, Place
from fedalc.errors import DataError

VERSION = 2
"""Raise it when the same files would be read differently."""

_FILE = "labels_and_metadata.json"
_PARTITIONS = {"train": "train", "val": "validation", "dev": "validation", "test": "test"}
_ID = re.compile(r"\w[\w@-]*")


@dataclass(frozen=True)
class Variant:
    """Which of a record's two label lists to use."""

    field: str


VARIANTS = {"coarse": Variant("labels"), "fine": Variant("fine_grained_labels")}


def pattern(_variant: Variant) -> re.Pattern[str]:
    return re.compile(rf"(?P<root>(?:.*/)?){re.escape(_FILE)}")


class _Record(NamedTuple):
    picture: str
    user: str
    partition: str
    labels: Sequence[str]


def read_flair(storage: Place, variant: Variant) -> Annotations:
    """Read the annotations, including the user of each picture."""
    root, records = _read_records(storage, variant)
    label_names = tuple(sorted({label for record in records for label in record.labels}))
    label_of = {name: label for label, name in enumerate(label_names)}
    pairs = ((row, label_of[name]) for row, record in enumerate(records) for name in record.labels)
    partitions = np.array([record.partition for record in records])
    splits = {part: np.flatnonzero(partitions == part) for part in ("train", "test", "validation")}
    for part in ("train", "test"):
        if not len(splits[part]):
            raise DataError(f"no record has the partition {part!r}", storage.path / _FILE)
    if not len(splits["validation"]):
        del splits["validation"]
    return Annotations(
        tuple(f"{root}small_images/{record.picture}.jpg" for record in records),
        label_matrix(pairs, len(records), len(label_names)),
        label_names,
        splits,
        tuple(record.user for record in records),
    )


def _read_records(storage: Place, variant: Variant) -> tuple[str, list[_Record]]:
    """Return the folder of the only file with records, and the records."""
    files = pattern(variant)
    content: tuple[str, list[_Record]] | None = None
    for file in storage.matching(files):
        if content is not None:
            raise file.error("exists twice. Keep only one")
        match = files.fullmatch(file.name)
        assert match is not None
        content = match["root"], _records(file, variant)
    if content is None:
        raise DataError(f"no {_FILE} here", storage.path)
    return content


def _records(file: File, variant: Variant) -> list[_Record]:
    names: dict[str, str] = {}  # to store each label's and user's name once, not once per picture

    def once(text: Any) -> Any:
        return names.setdefault(text, text) if isinstance(text, str) else text

    def cut_down(entry: dict[str, Any]) -> Any:
        if not {"image_id", "user_id", "partition", variant.field} <= entry.keys():
            return entry
        labels = entry[variant.field]
        if isinstance(labels, list):
            labels = [once(label) for label in labels]
        return _Record(entry["image_id"], once(entry["user_id"]), once(entry["partition"]), labels)

    content = read_json(file, cut_down)
    if not isinstance(content, list):
        raise file.error("is not a list of records")
    if not content:
        raise file.error("has no records")
    seen: set[str] = set()
    for at, record in enumerate(content):
        wrong = _fault(record, variant)
        if wrong:
            raise file.error(f"record {at}: {wrong}")
        checked_text(record.user, f"record {at}: user_id", file.error)
        for label in record.labels:
            checked_text(label, f"record {at}: {variant.field}", file.error)
        if record.picture in seen:
            raise file.error(f"record {at}: image_id {record.picture!r} occurs a second time")
        seen.add(record.picture)
    return [record._replace(partition=_PARTITIONS[record.partition]) for record in content]


def _fault(record: Any, variant: Variant) -> str | None:
    if type(record) is not _Record:
        return f"expected image_id, user_id, partition and {variant.field}"
    if not isinstance(record.picture, str) or not _ID.fullmatch(record.picture):
        return f"image_id: {str(record.picture)[:40]!r} is not a picture's number"
    if not isinstance(record.user, str) or not record.user:
        return f"user_id: expected text, found {str(record.user)[:40]!r}"
    if not isinstance(record.partition, str) or record.partition not in _PARTITIONS:
        return f"partition: {str(record.partition)[:40]!r} is not train, val or test"
    if not isinstance(record.labels, list) or not all(isinstance(label, str) for label in record.labels):
        return f"{variant.field}: expected a list of labels"
    return None
