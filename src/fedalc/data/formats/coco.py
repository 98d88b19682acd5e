"""COCO: `annotations/instances_<set>.json` beside the folder `<set>` with the pictures.

A picture has a label if at least one object of that category is annotated in it, including crowds. Pictures
without objects stay. Categories are numbered with gaps; labels are the categories in the order of their numbers.

There are two ways to split: `train2017` and `val2017` as published, or, with only val2017, a fifth of it for testing.
For the latter, take the SHA-256 of a picture's number (12 digits, as in its file name). The picture is for testing if
the first 8 bytes, as a fraction of 2^64, are below 1/5. This depends on no other picture and on no random numbers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedalc.data.formats.annotation_text import checked_text
from fedalc.data.formats.json_stream import list_of, read_json
from fedalc.data.images.annotations import Annotations, label_matrix
from fedalc.data.storage import File, Place
from fedalc.errors import DataError

VERSION = 1
"""Raise it when the same files would be read differently."""


@dataclass(frozen=True)
class Variant:
    """The sets for training and testing. If both are the same set, it is divided."""

    train: str
    test: str


VARIANTS = {
    "2017": Variant("train2017", "val2017"),
    "val2017": Variant("val2017", "val2017"),
}


def pattern(variant: Variant) -> re.Pattern[str]:
    sets = "|".join(dict.fromkeys((variant.train, variant.test)))
    return re.compile(rf"(?P<root>(?:.*/)?)instances_(?P<set>{sets})\.json")


class _Picture(NamedTuple):
    number: Any
    file_name: Any


class _Object(NamedTuple):
    picture: Any
    category: Any


class _Category(NamedTuple):
    number: Any
    name: Any


class _Set(NamedTuple):
    """One instances file."""

    numbers: np.ndarray
    pictures: tuple[str, ...]
    labels: csr_matrix
    label_names: tuple[str, ...]


def read_coco(storage: Place, variant: Variant) -> Annotations:
    sets: dict[str, _Set] = {}
    files = pattern(variant)
    for file in storage.matching(files):
        match = files.fullmatch(file.name)
        assert match is not None
        if match["set"] in sets:
            raise file.error("exists twice. Keep only one")
        sets[match["set"]] = _read_set(file, _picture_folder(storage, match["root"], match["set"]))
    for name in (variant.train, variant.test):
        if name not in sets:
            hint = "; coco-val2017 needs only val2017" if "val2017" in sets else ""
            raise DataError(
                f"no annotations/instances_{name}.json, neither in the folder nor in a .tar or .tar.gz archive{hint}",
                storage.path,
            )
    train, test = sets[variant.train], sets[variant.test]
    if train is test:
        for_test = np.array([is_for_testing(number) for number in train.numbers.tolist()], dtype=bool)
        splits = {"train": np.flatnonzero(~for_test), "test": np.flatnonzero(for_test)}
        if not (len(splits["train"]) and len(splits["test"])):
            raise DataError(f"{variant.train} has too few pictures to be divided", storage.path)
        return Annotations(train.pictures, train.labels, train.label_names, splits)
    if train.label_names != test.label_names:
        raise DataError(f"{variant.train} and {variant.test} have different categories", storage.path)
    first, both = len(train.pictures), len(train.pictures) + len(test.pictures)
    return Annotations(
        train.pictures + test.pictures,
        vstack([train.labels, test.labels], format="csr"),
        train.label_names,
        {"train": np.arange(first), "test": np.arange(first, both)},
    )


def is_for_testing(number: int) -> bool:
    """Return whether a picture of a divided set is in the fifth for testing."""
    start = hashlib.sha256(f"{number:012d}".encode()).digest()[:8]
    return int.from_bytes(start, "big") * 5 < 1 << 64


def picture_folders(storage: Place, variant: Variant) -> list[str]:
    """Return the folders of the pictures. They depend on which folders exist, not only on the annotations."""
    files = pattern(variant)
    roots = {"", *(files.sub(r"\g<root>", name) for name in storage.loose(files))}
    return [_picture_folder(storage, root, name) for root in sorted(roots) for name in (variant.train, variant.test)]


def _picture_folder(storage: Place, annotations: str, name: str) -> str:
    """Return the folder beside `annotations`, or in `images` beside it if that exists."""
    root = annotations.removesuffix("annotations/")
    if storage.folder is not None and (storage.folder / root / "images" / name).is_dir():
        return f"{root}images/{name}/"
    return f"{root}{name}/"


def _cut_down(entry: dict[str, Any]) -> Any:
    """Drop the outlines, which are most of the 450 MB of train2017."""
    if "image_id" in entry and "category_id" in entry:
        return _Object(entry["image_id"], entry["category_id"])
    if "file_name" in entry and "id" in entry:
        return _Picture(entry["id"], entry["file_name"])
    if "name" in entry and "id" in entry:
        return _Category(entry["id"], entry["name"])
    return entry


def _read_set(file: File, folder: str) -> _Set:
    content = read_json(file, _cut_down)
    pictures = _checked(list_of(content, "images", file), _Picture, ("id", "file_name"), str, file, "images")
    categories = _checked(list_of(content, "categories", file), _Category, ("id", "name"), str, file, "categories")
    objects = _checked(
        list_of(content, "annotations", file), _Object, ("image_id", "category_id"), int, file, "annotations"
    )
    row, label = _positions(pictures, "images", file), _positions(categories, "categories", file)
    pairs = []
    for at, (picture, category) in enumerate(objects):
        if picture not in row:
            raise file.error(f"annotations[{at}].image_id: no picture has the number {picture}")
        if category not in label:
            raise file.error(f"annotations[{at}].category_id: no category has the number {category}")
        pairs.append((row[picture], label[category]))
    names = dict(pictures)
    return _Set(
        np.array(list(row), dtype=np.int64),
        tuple(folder + names[number] for number in row),
        label_matrix(pairs, len(row), len(label)),
        tuple(dict(categories)[number] for number in label),
    )


def _checked(
    entries: list[Any], kind: type, fields: tuple[str, str], second: type, file: File, where: str
) -> list[tuple[Any, Any]]:
    """Check that every entry has its fields with the right types. (A bool is not a number here.)"""
    for at, entry in enumerate(entries):
        if not isinstance(entry, kind) or not isinstance(entry, tuple):
            raise file.error(f"{where}[{at}]: expected an object with {', '.join(fields)}")
        for name, value, expected in zip(fields, tuple(entry), (int, second), strict=True):
            if type(value) is not expected:
                what = "a whole number" if expected is int else "text"
                raise file.error(f"{where}[{at}].{name}: expected {what}, found {str(value)[:40]!r}")
            if isinstance(value, str):
                checked_text(value, f"{where}[{at}].{name}", file.error)
    return entries


def _positions(entries: list[tuple[Any, Any]], where: str, file: File) -> dict[int, int]:
    """Return the position of each number, in ascending order."""
    numbers = sorted(number for number, _ in entries)
    if not numbers:
        raise file.error(f"its list {where!r} is empty")
    row = {number: at for at, number in enumerate(numbers)}
    if len(row) != len(numbers):
        twice = next(a for a, b in pairwise(numbers) if a == b)
        raise file.error(f"{where}: two entries have the number {twice}")
    if not 0 <= numbers[0] <= numbers[-1] < 1 << 62:
        raise file.error(f"{where}: numbers range from {numbers[0]} to {numbers[-1]}; expected 0 to 2^62 - 1")
    return row
