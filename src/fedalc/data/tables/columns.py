"""Find out which column of a table is text, which are labels and which are features."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedalc.data.formats.table_settings import AUTO, TableSettings
from fedalc.data.tables.cells import Kind, as_text, average_length, is_free_text, is_missing, is_number, kind_of
from fedalc.errors import DataError, either

BODIES = (
    "text", "texts", "body", "content", "contents", "document", "message", "abstract", "description", "review",
    "comment", "sentence", "article", "tweet", "question", "utterance", "summary", "post", "snippet",
)  # fmt: skip
TITLES = ("title", "headline", "subject")
LABELS = (
    "labels", "label", "tags", "tag", "topics", "topic", "categories", "category", "classes", "class", "targets",
    "target", "subjects", "keywords", "genres", "genre", "y",
)  # fmt: skip
LABEL_PREFIXES = ("label", "tag", "topic", "class", "category", "target")
"""Names of columns of 0 and 1, each a label, begin with one of these: label_sport, tag:news, …"""
FEATURES = ("x", "features", "embedding", "embeddings", "vector", "vectors")
FILES = ("file", "filename", "file_name", "path")
_NUMBERING = {"id", "_id", "index", "idx", "uid", "uuid", "guid", "unnamed: 0", "column 1", "__index_level_0__"}
SPLIT_OF = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation",
    "valid": "validation", "val": "validation", "dev": "validation",
}  # fmt: skip
STRANGERS = ("stranger", "strangers")
"""Values of a split column: records of nobody who is enrolled, to test verification with."""
_BOTH = "table={'text_columns': …, 'label_columns': …}"
_FEW_OTHERS = 0.1
"""Largest share of other cells in a column that should be numbers."""
_NAMED = 12
"""Columns named in a message."""


@dataclass(frozen=True)
class Columns:
    """What each column of a table is. `indicators`: the label columns hold 0 and 1, not names."""

    text: tuple[str, ...] = ()
    files: str | None = None
    """A column with names of files that hold the texts."""
    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    indicators: bool = False
    split: str | None = None

    @property
    def used(self) -> tuple[str, ...]:
        optional = (self.files, self.split)
        return (*self.text, *self.features, *self.labels, *(column for column in optional if column is not None))

    def settings(self, table: TableSettings) -> TableSettings:
        """Return the settings with the columns that were found."""
        return table.model_copy(
            update={
                "text_columns": self.text or table.text_columns,
                "label_columns": self.labels or table.label_columns,
                "feature_columns": self.features or table.feature_columns,
                "split_column": self.split,
            }
        )

    def described(self, separated: str = "") -> list[str]:
        """Return what the columns are, for the user. `separated`: how labels are separated."""
        said = []
        if self.files is not None:
            said.append(f"text: the files named in column {self.files!r}")
        if self.text:
            said.append(f"text: {_called(self.text)}")
        if self.features:
            said.append(f"features: {_called(self.features)}")
        if self.labels:
            said.append(f"labels: {_called(self.labels)}{' of 0 and 1' if self.indicators else separated}")
        if self.split is not None:
            said.append(f"split: column {self.split!r}")
        return said


def find_columns(
    sample: Mapping[str, Sequence[Any]],
    table: TableSettings,
    place: Path | str,
    need_labels: bool = True,
    find_labels: bool = True,
) -> Columns:
    """Return what each column is: as the settings say, otherwise by names and content. What is unclear is an error."""
    return _Finder(sample, table, place).find(need_labels, find_labels)


class _Finder:
    def __init__(self, sample: Mapping[str, Sequence[Any]], table: TableSettings, place: Path | str) -> None:
        self.sample, self.table, self.place = sample, table, place
        self.names = tuple(sample)
        self._kinds: dict[str, Kind] = {}
        self._need_labels = True

    def find(self, need_labels: bool, find_labels: bool) -> Columns:
        table, self._need_labels = self.table, need_labels
        found = Columns(
            text=self._given(table.text_columns, "text_columns"),
            features=self._given(table.feature_columns, "feature_columns"),
            labels=self._given(table.label_columns, "label_columns", needed=need_labels),
            split=self._split(),
        )
        if both := [name for name in (*found.text, *found.features) if name in found.labels]:
            raise DataError(f"the column {both[0]!r} cannot be both labels and something to learn from", self.place)
        if not found.labels and find_labels:
            found = replace(found, labels=self._named(found, LABELS, "label_columns") or self._prefixed(found))
        if not found.text and not found.features:
            found = self._with_input(found)
        if not found.labels and need_labels:
            found = replace(found, labels=self._other_labels(found))
        if need_labels and found.text != table.text_columns and _of_names(found.labels, (*BODIES, *TITLES)):
            self._refuse_swapped(found)
        indicators = len(found.labels) > 1
        if indicators and (names := [name for name in found.labels if self._kind(name) not in ("flags", "empty")]):
            if not need_labels:  # several columns of names: ignored all the same
                return replace(found, labels=())
            raise DataError(
                f"several label columns hold 0 and 1 each, but {names[0]!r} holds other values; a column with names of "
                "labels stands alone: " + _option("label_columns"),
                self.place,
            )
        return replace(found, indicators=indicators)

    def _kind(self, name: str) -> Kind:
        if name not in self._kinds:
            self._kinds[name] = kind_of(self.sample[name])
        return self._kinds[name]

    def _given(self, wanted: Sequence[str] | None, setting: str, needed: bool = True) -> tuple[str, ...]:
        """Return the columns that a setting names, alone or by a pattern such as tag_*."""
        chosen: dict[str, None] = {}
        for pattern in wanted or ():
            names = [pattern] if pattern in self.names else [name for name in self.names if fnmatchcase(name, pattern)]
            if not names and needed:
                close = difflib.get_close_matches(pattern, self.names, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise DataError(
                    f"there is no column {pattern!r} (table.{setting}): {hint}{_there_are(self.names)}; choose with "
                    f"{_option(setting)}",
                    self.place,
                )
            chosen.update(dict.fromkeys(names))
        return tuple(chosen)

    def _split(self) -> str | None:
        column = self.table.split_column
        if column is None:
            return None
        if column != AUTO:
            return self._given((column,), "split_column")[0]
        for name in self.names:
            values = {as_text(cell).strip().lower() for cell in self.sample[name]} if name.lower() == "split" else set()
            if any(SPLIT_OF.get(value) == "train" for value in values):
                return name
        return None

    def _free(self, found: Columns) -> list[str]:
        return [name for name in self.names if name not in found.used]

    def _named(self, found: Columns, names: Sequence[str], setting: str) -> tuple[str, ...]:
        matching = [name for name in self._free(found) if name.strip().lower() in names]
        if len(matching) > 1 and (self._need_labels or setting != "label_columns"):
            raise DataError(
                f"{_quoted(matching)} could each be it; choose with {_option(setting)}",
                self.place,
            )
        return tuple(matching)

    def _prefixed(self, found: Columns) -> tuple[str, ...]:
        for prefix in LABEL_PREFIXES:
            names = [name for name in self._free(found) if name.strip().lower().startswith(prefix)]
            if len(names) > 1 and all(self._kind(name) == "flags" for name in names):
                return tuple(names)
        return ()

    def _with_input(self, found: Columns) -> Columns:
        """Add text, files that hold it, or features."""
        texts = {name for name in self._free(found) if self._kind(name) == "texts"}
        bodies = self._named(found, [name for name in BODIES if self._is_text(name, texts)], "text_columns")
        titles = tuple(name for name in self._free(found) if name.strip().lower() in TITLES and name in texts)
        if bodies or titles:
            return replace(found, text=tuple(name for name in self.names if name in (*titles, *bodies)))
        for name in self._free(found):
            if name.strip().lower() in FILES and name in texts and self._are_files(name):
                return replace(found, files=name)
        free = [name for name in texts if is_free_text(self.sample[name])]
        if free:
            longest = max(free, key=lambda name: (average_length(self.sample[name]), -self.names.index(name)))
            return replace(found, text=(longest,))
        vectors = [name for name in self._free(found) if self._kind(name) == "vectors"]
        named = [name for name in vectors if name.strip().lower() in FEATURES]
        if named or vectors:
            return replace(found, features=tuple(named or vectors))
        # With names of labels found, numbers are features. Without them, 0 and 1 could be either.
        numbers = [name for name in self._free(found) if self._kind(name) in ("numbers", "flags")]
        numbers = [name for name in numbers if name.strip().lower() not in _NUMBERING]
        if numbers and (found.labels or not self._need_labels):
            self._refuse_mixed(texts)
            return replace(found, features=tuple(numbers))
        if numbers:
            raise DataError(
                f"which columns are labels? Say it: {_option('label_columns')}. {_there_are(self.names)}", self.place
            )
        raise DataError(
            f"no column looks like text or numbers to learn from. Say which is: {_option('text_columns')}; or "
            f"{_option('feature_columns')}. {_there_are(self.names)}",
            self.place,
        )

    def _refuse_mixed(self, texts: set[str]) -> None:
        """Refuse a column of numbers with a few other cells: it would be left out without a word."""
        for name in (name for name in self.names if name in texts and name.strip().lower() not in _NUMBERING):
            there = [cell for cell in self.sample[name] if not is_missing(cell)]
            others = [cell for cell in there if not is_number(cell)]
            if len(others) <= _FEW_OTHERS * len(there):
                raise DataError(
                    f"column {name!r} holds numbers, but also {as_text(others[0])[:40]!r}. Correct it, "
                    f"or say which columns to learn from: {_option('feature_columns')}",
                    self.place,
                )

    def _is_text(self, body: str, texts: set[str]) -> bool:
        return any(name.strip().lower() == body and name in texts for name in self.names)

    def _are_files(self, name: str) -> bool:
        if not isinstance(self.place, Path):
            return False
        cells = [as_text(cell) for cell in self.sample[name] if not is_missing(cell)]
        try:
            return bool(cells) and (self.place.parent / cells[0].strip()).is_file()
        except (OSError, ValueError):  # too long for a name, or a null character in it
            return False

    def _refuse_swapped(self, found: Columns) -> None:
        """Refuse a text column that by its name holds the labels, while another column would become the labels."""
        if taken := _of_names(found.text, LABELS):
            raise DataError(
                f"the text would be the column {taken!r}, which by its name holds labels. If that is right, say which "
                f"column is which: {either('--text-column and --label-column', _BOTH)}. {_there_are(self.names)}",
                self.place,
            )

    def _other_labels(self, found: Columns) -> tuple[str, ...]:
        """Return the label columns that no name tells: several columns of 0 and 1, or the only column left."""
        self._refuse_swapped(found)
        left = [name for name in self._free(found) if name.strip().lower() not in _NUMBERING]
        flags = [name for name in left if self._kind(name) == "flags"]
        if len(flags) > 1:
            return tuple(flags)
        if len(left) == 1 and self._kind(left[0]) != "empty":
            return tuple(left)
        raise DataError(
            f"no column is called labels, tags, topics or the like. Say which holds the labels: "
            f"{_option('label_columns')}. {_there_are(self.names)}",
            self.place,
        )


def _of_names(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first column that has one of these names."""
    return next((column for column in columns if column.strip().lower() in names), None)


def _option(setting: str) -> str:
    """Return how to give a column, on the command line and in Python."""
    options = {"text_columns": "text", "label_columns": "label", "feature_columns": "feature"}
    option = f"--{options[setting]}-column NAME" if setting in options else f"--set table.{setting}=NAME"
    return either(option, f"table={{{setting!r}: 'NAME'}}")


def _quoted(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name if len(name) <= 40 else f"{name[:37]}…") for name in names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _there_are(names: Sequence[str]) -> str:
    return f"The columns are {_quoted(names)}"


def _called(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"column {names[0]!r}"
    return f"{len(names)} columns ({names[0]!r} to {names[-1]!r})" if len(names) > 4 else f"columns {_quoted(names)}"
