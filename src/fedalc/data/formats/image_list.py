"""A user's pictures, listed in `train.csv`, `test.csv` and optionally `validation.csv` (or `dev.csv`).

The first line of a list names its columns: `picture`, `labels` and, if known, `user`. Then one line per picture: its
path relative to the list's folder (or inside a tar archive in that folder), its labels separated by `|` (empty for a
picture without labels), and its user. The text is UTF-8; a field with a comma needs quotes. Labels are in the order of
`labels.txt`, one per line, if it exists, and otherwise in alphabetical order.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedalc.data.cache import content_digest
from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.annotation_text import checked_text, shown
from fedalc.data.formats.base import Format, ReadOptions
from fedalc.data.formats.text_stream import LineReader, not_text
from fedalc.data.images.annotations import Annotations, kept_annotations, label_matrix, make_dataset, make_splits
from fedalc.data.images.decode import need_pillow
from fedalc.data.storage import Place, safe_name
from fedalc.errors import DataError

_LISTS = {
    "train": ("train.csv",),
    "test": ("test.csv",),
    "validation": ("validation.csv", "valid.csv", "dev.csv"),
}
_NEEDED = ("train", "test")  # by a dataset; a party needs only the list it trains on
_LABELS = "labels.txt"
_COLUMNS = ("picture", "labels", "user")
_NAMED_IN_A_NOTE = 5
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")


class _Row(NamedTuple):
    """A picture of a list. `labels` are numbers, in the order in which the labels first occur."""

    picture: str
    labels: tuple[int, ...]
    user: str
    line: int


class _Fault(Exception):
    """An error in a field. The message begins with the field's name."""


class ImageList(Format):
    help = "pictures listed in CSV files"
    has_pictures = True
    version = 1

    def recognises_file(self, path: Path) -> bool:
        return _split_of(path) is not None and _lists_pictures(path)

    def candidates(self, folder: Path, split: str) -> list[Path]:
        paths = [folder / name for name in _LISTS[split] if (folder / name).is_file()]
        deciding = folder / _LISTS["train"][0]
        return [path for path in paths if _lists_pictures(deciding if deciding.is_file() else path)]

    def read_alone(self, path: Path, options: ReadOptions) -> Dataset:
        raise DataError("lists pictures: give its folder, with train.csv and test.csv", path)

    def looks_for(self, split: str = "train") -> str:
        return "train.csv and test.csv, which list pictures"

    def split_files(self, folder: Path, needed: Iterable[str] = _NEEDED) -> dict[str, Path]:
        files = super().split_files(folder)
        for split in _NEEDED:
            if split in needed and split not in files:
                raise DataError(f"no {split}.csv: pictures are listed in train.csv and test.csv", folder)
        return {split: files[split] for split in _LISTS if split in files}

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        """Read the dataset. Calls `options.images.tell` with a note about pictures that are in two splits."""
        need_pillow()
        storage = Place(folder)
        annotations = self.annotations(storage, options.cache)
        for note in overlaps(annotations):
            options.images.tell(f"{folder}: {note}")
        return make_dataset(folder.name, storage, annotations, options.images, options.cache)

    def read_held(self, path: Path, options: ReadOptions) -> tuple[Split, tuple[str, ...]]:
        """Read a list together with the others of its folder: they share the order of the labels."""
        need_pillow()
        storage = Place(path.parent)
        annotations = self.annotations(storage, options.cache, needed=())
        splits = make_splits(storage, annotations, options.images, options.cache)
        return splits[_split_of(path) or "train"], annotations.label_names

    def annotations(self, storage: Place, cache: bool = True, needed: Iterable[str] = _NEEDED) -> Annotations:
        """Read the lists without opening a picture."""
        files = list(self.split_files(storage.path, needed).values())
        if (storage.path / _LABELS).is_file():
            files.append(storage.path / _LABELS)
        contents = (f"{file.name} {content_digest(file)}" for file in files)
        key = "\0".join(("listed", str(self.version), *contents))
        return kept_annotations(key, lambda: read_listed(storage, needed), cache)

    def describe(self, folder: Path) -> list[str]:
        annotations = self.annotations(Place(folder))
        sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in annotations.splits.items())
        users = "" if annotations.users is None else ", with the names of users"
        return [
            f"pictures listed in {', '.join(path.name for path in self.split_files(folder).values())}",
            f"{sizes}, {len(annotations.label_names):,} labels{users}; no picture has been opened",
            *overlaps(annotations),
        ]


def _split_of(path: Path) -> str | None:
    """Return the split that a file of this name lists; None if it is not a list."""
    return next((split for split, names in _LISTS.items() if path.name in names), None)


def _lists_pictures(path: Path) -> bool:
    """Return whether a CSV file lists pictures: its first line has a column `picture`, or names a picture, or there is
    none. Other tables are for the format `csv-table`."""
    try:
        with LineReader(path) as reader:
            line = reader.next_line() or b""
    except DataError:  # reading it says what is wrong
        return True
    fields = [field.strip().strip('"').lower() for field in re.split(r"[,;\t|]", line.decode("utf-8", "replace"))]
    return fields == [""] or "picture" in fields or fields[0].endswith(_PICTURE_SUFFIXES)


def read_listed(storage: Place, needed: Iterable[str] = _NEEDED) -> Annotations:
    """Read the lists. Pictures are in alphabetical order, so that another split of them shares their copies."""
    files = ImageList().split_files(storage.path, needed)
    given = _read_label_names(storage.path / _LABELS)
    number = {name: label for label, name in enumerate(given or ())}
    lists = {split: _read_list(path, number, given is not None) for split, path in files.items()}
    if "train" in lists and not any(row.labels for row in lists["train"]):
        raise DataError("no picture in it has a label, so there is nothing to learn", files["train"])
    entries = _merged(lists, files)
    pictures = tuple(sorted(entries))
    row_of = {picture: row for row, picture in enumerate(pictures)}
    label_names = given or tuple(sorted(number))
    label_of = {number[name]: label for label, name in enumerate(label_names)}
    pairs = ((row_of[picture], label_of[each]) for picture, entry in entries.items() for each in entry.labels)
    return Annotations(
        pictures,
        label_matrix(pairs, len(pictures), len(label_names)),
        label_names,
        {part: np.array([row_of[row.picture] for row in rows], dtype=np.int64) for part, rows in lists.items()},
        tuple(entries[picture].user for picture in pictures) if next(iter(lists.values()))[0].user else None,
    )


def overlaps(annotations: Annotations) -> list[str]:
    """Return a note for each pair of splits that share pictures."""
    notes = []
    splits = annotations.splits
    for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        if one not in splits or other not in splits:
            continue
        both = np.intersect1d(splits[one], splits[other])
        if len(both):
            named = [annotations.pictures[row] for row in both[:_NAMED_IN_A_NOTE].tolist()]
            more = f" and {len(both) - len(named)} more" if len(both) > len(named) else ""
            what = "1 picture is" if len(both) == 1 else f"{len(both)} pictures are"
            notes.append(
                f"{what} in {one} and in {other}: {', '.join(named)}{more}. Results on such pictures are too optimistic"
            )
    return notes


def _merged(lists: Mapping[str, list[_Row]], files: Mapping[str, Path]) -> dict[str, _Row]:
    """Return every picture once. A picture in two lists must have the same labels in both."""
    known: dict[str, tuple[str, _Row]] = {}
    for split, rows in lists.items():
        for row in rows:
            elsewhere, other = known.setdefault(row.picture, (split, row))
            if other.labels != row.labels:
                raise DataError(
                    f"labels: {row.picture} is also in {files[elsewhere].name}, line {other.line}, with other labels",
                    files[split],
                    row.line,
                )
    return {picture: row for picture, (_, row) in known.items()}


def _read_list(path: Path, number: dict[str, int], complete: bool) -> list[_Row]:
    """Read a list. Labels that are not in `number` get the next number, or are refused if `number` is `complete`."""
    records, folder = _records(path), path.parent
    columns = _columns(next(records, None), path)
    rows: list[_Row] = []
    lines: dict[str, int] = {}
    users: dict[str, str] = {}  # to store each user's name once, not once per picture
    for line, fields in records:
        if len(fields) != len(columns):
            raise DataError(
                f"has {len(fields)} fields, but the first line has {len(columns)} ({','.join(columns)}). Labels are "
                "separated by |; a field that contains a comma needs quotes around it",
                path,
                line,
            )
        record = dict(zip(columns, fields, strict=True))
        try:
            picture = _picture(record["picture"], folder)
            if picture in lines:
                raise _Fault(f"picture: {picture} is listed a second time, first in line {lines[picture]}")
            user = _user(record["user"]) if "user" in record else ""
            labels = _labels(record["labels"], number, complete)
        except _Fault as fault:
            raise DataError(str(fault), path, line) from None
        lines[picture] = line
        rows.append(_Row(picture, labels, users.setdefault(user, user), line))
    if not rows:
        raise DataError("lists no pictures", path)
    return rows


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each record. Skip blank lines."""
    with LineReader(path) as reader:
        records = csv.reader(_text(reader), strict=True)
        while True:
            line = records.line_num + 1
            try:
                fields = next(records, None)
            except csv.Error as error:
                what = str(error).partition(" - ")[0]  # the rest is for programmers
                raise DataError(f"cannot be read as CSV: {what}", path, line) from None
            if fields is None:
                return
            if len(fields) > 1 or "".join(fields).strip():
                yield line, fields


def _text(reader: LineReader) -> Iterator[str]:
    while (line := reader.next_line()) is not None:
        try:
            yield line.decode("utf-8") + "\n"
        except UnicodeDecodeError:
            raise not_text(reader.path, line) or DataError("is not UTF-8 text", reader.path, reader.line) from None


def _columns(first: tuple[int, list[str]] | None, path: Path) -> list[str]:
    line, fields = first or (1, [])
    columns = [field.strip().lower() for field in fields]
    if len(set(columns)) == len(columns) and {"picture", "labels"} <= set(columns) <= set(_COLUMNS):
        return columns
    header = ",".join(fields)
    raise DataError(
        "its first line should be picture,labels or picture,labels,user"
        + (f", but is {shown(header)}" if header else ", but it is empty"),
        path,
        line,
    )


def _picture(text: str, folder: Path) -> str:
    if not text.strip():
        raise _Fault("picture: is empty")
    checked_text(text, "picture", _Fault)
    if "\\" in text or ":" in text:
        raise _Fault(f"picture: {shown(text)} contains \\ or :. Give a relative path with / between its parts")
    try:
        return safe_name(text, folder)
    except DataError:
        raise _Fault(f"picture: refused: {shown(text)} leads out of the folder") from None


def _user(text: str) -> str:
    if not text.strip():
        raise _Fault("user: is empty. Leave out the column if users are unknown")
    return checked_text(text, "user", _Fault).strip()


def _labels(text: str, number: dict[str, int], complete: bool) -> tuple[int, ...]:
    if not checked_text(text, "labels", _Fault).strip():
        return ()
    names = {name.strip() for name in text.split("|")}
    if "" in names:
        raise _Fault(f"labels: a label of {shown(text)} is empty")
    if complete and (unknown := sorted(names - number.keys())):
        close = difflib.get_close_matches(unknown[0], number, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise _Fault(f"labels: {shown(unknown[0])} is not in {_LABELS}{hint}")
    return tuple(sorted(number.setdefault(name, len(number)) for name in sorted(names)))


def _read_label_names(path: Path) -> tuple[str, ...] | None:
    """Return the labels in order, or None if the file does not exist."""
    if not path.is_file():
        return None
    lines: dict[str, int] = {}
    blank = 0
    with LineReader(path) as reader:
        for line, text in enumerate(_text(reader), 1):
            name = text.strip()
            if not name:
                blank = blank or line
                continue
            if blank:
                raise DataError("is empty, but a label follows", path, blank)
            checked_text(name, "a label", partial(DataError, path=path, line=line))
            if "|" in name:
                raise DataError(f"a label: {shown(name)} contains |, which separates labels", path, line)
            if name in lines:
                raise DataError(f"{name!r} is listed a second time, first in line {lines[name]}", path, line)
            lines[name] = line
    if not lines:
        raise DataError("names no label. Remove it, or list the labels, one per line", path)
    return tuple(lines)
