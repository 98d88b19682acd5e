"""PASCAL VOC 2007 and 2012 in the devkit's layout: `Annotations`, `ImageSets/Main` and `JPEGImages`.

A picture has a label if an object of that class is annotated in it, also if the object is marked `difficult` (small,
cut off, hard to tell). The devkit's lists of a class have 1 for pictures with an object that is not difficult, 0 for
pictures with only difficult ones, and the challenge leaves out pictures with 0 when it evaluates that class. fedalc
ranks all labels of a picture together and cannot leave out single ones. With `images.difficult = false` such pictures
are without that label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.parsers import expat

import numpy as np

from fedalc.data.formats.safe_xml import parse
from fedalc.data.images.annotations import Annotations, label_matrix
from fedalc.data.storage import File, Place
from fedalc.errors import DataError

VERSION = 1
"""Raise it when the same files would be read differently."""

LABELS = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
_LARGEST_FILE, _LARGEST_LIST = 1 << 20, 64 << 20
_DEEPEST = 16
_STEM = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Variant:
    """The year, and the lists for train and test."""

    year: str
    train: str
    test: str


VARIANTS = {
    "2007": Variant("2007", "trainval", "test"),
    # The labels of 2012's test pictures were never published.
    "2012": Variant("2012", "train", "val"),
    "2012-leaking": Variant("2012", "trainval", "val"),
}


def pattern(variant: Variant) -> re.Pattern[str]:
    """Match the files to read. Other years may be beside them; a folder without a year counts as this year."""
    root = rf"(?P<root>(?:.*/)?VOC{variant.year}/|(?:(?!.*VOC\d{{4}}/).*/)?)"
    return re.compile(rf"{root}(?:Annotations/(?P<stem>[^/]+)\.xml|ImageSets/Main/(?P<list>[a-z]+)\.txt)")


def read_voc(storage: Place, variant: Variant, difficult: bool = True) -> Annotations:
    lists: dict[str, dict[str, list[str]]] = {}
    objects: dict[tuple[str, str], list[int]] = {}
    files = pattern(variant)
    for file in storage.matching(files):
        match = files.fullmatch(file.name)
        assert match is not None
        if match["stem"] is not None:
            objects[match["root"], match["stem"]] = _read_objects(file, difficult)
        elif match["list"] in (variant.train, variant.test):
            lists.setdefault(match["root"], {})[match["list"]] = _read_list(file)
    root = _root(storage, variant, lists)
    train, test = lists[root][variant.train], lists[root][variant.test]
    # In alphabetical order, so that splits of the same pictures share their small copies.
    stems = sorted({*train, *test})
    unknown = [stem for stem in stems if (root, stem) not in objects]
    if unknown:
        raise DataError(
            f"{root}Annotations/{unknown[0]}.xml is not there"
            + (f", nor are {len(unknown) - 1} others" if len(unknown) > 1 else ""),
            storage.path,
        )
    row_of = {stem: row for row, stem in enumerate(stems)}
    pairs = ((row_of[stem], label) for stem in stems for label in objects[root, stem])
    return Annotations(
        tuple(f"{root}JPEGImages/{stem}.jpg" for stem in stems),
        label_matrix(pairs, len(stems), len(LABELS)),
        LABELS,
        {part: _rows(listed, row_of) for part, listed in (("train", train), ("test", test))},
    )


def _rows(stems: Iterable[str], row_of: dict[str, int]) -> np.ndarray:
    return np.array([row_of[stem] for stem in stems], dtype=np.int64)


def _root(storage: Place, variant: Variant, lists: dict[str, dict[str, list[str]]]) -> str:
    complete = [root for root, names in lists.items() if {variant.train, variant.test} <= names.keys()]
    if len(complete) == 1:
        return complete[0]
    if complete:
        raise DataError(
            f"has VOC {variant.year} more than once: {', '.join(sorted(complete))}. Keep only one", storage.path
        )
    wanted = " and ".join(dict.fromkeys(f"{name}.txt" for name in (variant.train, variant.test)))
    raise DataError(
        f"no VOC {variant.year} here: expected {wanted} in VOCdevkit/VOC{variant.year}/ImageSets/Main, in a folder or "
        "in a .tar or .tar.gz archive",
        storage.path,
    )


def _read_list(file: File) -> list[str]:
    stems: dict[str, None] = {}
    for number, line in enumerate(file.read(_LARGEST_LIST).decode("utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        stem = line.split()[0]
        if not _STEM.fullmatch(stem):
            raise file.error(f"{stem!r} is not a picture's name", number)
        if stem in stems:
            raise file.error(f"{stem} is listed a second time", number)
        stems[stem] = None
    if not stems:
        raise file.error("lists no pictures")
    return list(stems)


def _read_objects(file: File, difficult: bool) -> list[int]:
    """Return the labels of the objects in one annotation."""
    content = file.read(_LARGEST_FILE)
    reader = _ObjectReader(file, difficult)
    parse(reader.parser, content, file.error)
    return reader.labels


class _ObjectReader:
    """Takes the names of objects (not of their parts) from a stream of XML events.

    Refuses document types, and so entities that expand without end or open files.
    """

    def __init__(self, file: File, difficult: bool) -> None:
        self.labels: list[int] = []
        self._file, self._difficult = file, difficult
        self._path: list[str] = []
        self._text: list[str] = []
        self._object: dict[str, str] = {}
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text.append

    def _error(self, message: str) -> DataError:
        return self._file.error(message, self.parser.CurrentLineNumber)

    def _doctype(self, *_: object) -> None:
        raise self._error("refused: an annotation has no DOCTYPE")

    def _start(self, tag: str, _attributes: object) -> None:
        if not self._path and tag != "annotation":
            raise self._error(f"begins with <{tag}>, but should begin with <annotation>")
        self._path.append(tag)
        if len(self._path) > _DEEPEST:
            raise self._error("its elements are nested too deeply")
        self._text.clear()

    def _end(self, tag: str) -> None:
        if self._path[:-1] == ["annotation", "object"] and tag in ("name", "difficult"):
            self._object[tag] = "".join(self._text).strip()
        elif self._path == ["annotation", "object"]:
            self._take(self._object)
            self._object = {}
        self._path.pop()
        self._text.clear()

    def _take(self, fields: dict[str, str]) -> None:
        name, difficult = fields.get("name"), fields.get("difficult", "0")
        if name is None:
            raise self._error("an <object> without a <name>")
        if name not in LABELS:
            raise self._error(f"<name>: {name!r} is not one of VOC's {len(LABELS)} classes")
        if difficult not in ("0", "1"):
            raise self._error(f"<difficult>: {difficult!r} is neither 0 nor 1")
        if self._difficult or difficult == "0":
            self.labels.append(LABELS.index(name))
