"""Labels in a cell: a list, or text with separators. Which separator, is found in all cells of a column."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from fedalc.data.formats.table_settings import AUTO
from fedalc.data.tables.cells import as_text, in_words, is_list, is_missing, is_nested
from fedalc.errors import DataError

SEPARATORS = ("|", ";", ",")
"""In the order in which they are looked for: names of labels contain commas more often than bars."""
AS_LIST = "[]"
"""The cells are lists as Python, JSON or numpy write them: ['a', 'b'], ["a", "b"], ['a' 'b']."""
_SEVERAL = {"labels", "tags", "topics", "categories", "classes", "targets", "subjects", "keywords", "genres"}
"""Names of columns that hold several labels, so that a comma in a cell separates two."""
CLASSIFY = (
    "fedalc learns classes: sort the values into ranges (pandas.cut); or, if these numbers are names of classes, give "
    "them as text: Y.astype(str)"
)
_KINDS: dict[str, Any] = {
    "text": str,
    "bool": bool | np.bool_,
    "int": int | np.integer,
    "float": float | np.floating,
}
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,'"\[\]]+)\s*(,|(?=\s|\]|['"]))\s*""", re.DOTALL)


def found_separator(column: str, cells: Iterable[Any]) -> str | None:
    """Return what separates labels in the cells of a column: one of `SEPARATORS`, `AS_LIST`, or None if nothing does.

    A comma may be part of a name. In a column whose name is not a plural it separates only if the parts come back in
    other cells: then there are fewer different parts than different cells.
    """
    texts = {as_text(cell).strip() for cell in cells if not is_list(cell)} - {""}
    if not texts:
        return None
    if all(text.startswith("[") and text.endswith("]") for text in texts):
        return AS_LIST
    for separator in SEPARATORS:
        if not any(separator in text for text in texts):
            continue
        if separator == "," and column.strip().lower() not in _SEVERAL:
            parts = {part.strip() for text in texts for part in text.split(separator)} - {""}
            return separator if len(parts) <= len(texts) else None
        return separator
    return None


def labels_in(cell: Any, separator: str | None) -> list[str]:
    """Return the labels of a cell, each once, without white space around them. Raises ValueError if it has none."""
    if is_missing(cell):
        return []
    if is_nested(cell):
        raise ValueError(
            f'expected a label or a list of labels, found {in_words(cell)}. Write the names alone, such as ["a", "b"]'
        )
    for value in cell if is_list(cell) else (cell,):
        if isinstance(value, float | np.floating) and not is_missing(value) and not float(value).is_integer():
            raise ValueError(f"{value:g} is a measurement, not a label. {CLASSIFY}")
    if is_list(cell):
        names: Iterator[str] = (as_text(item) for item in cell)
    else:
        text = as_text(cell).strip()
        if separator == AS_LIST:
            names = items_of(text) if text.startswith("[") else iter((text,))
        else:
            names = iter(text.split(separator) if separator and separator != AUTO else (text,))
    return list(dict.fromkeys(name for each in names if (name := each.strip())))


def separator_hint(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return what to do about unknown labels, if other separators would make known ones of them; otherwise nothing.

    >>> separator_hint(["sport/trade", "art"], ["sport", "trade"])
    "If '/' separates labels, give --label-separator '/' (in Python table={'label_separator': '/'})"
    >>> separator_hint(["Home", "Garden"], ["Home, Garden"])
    "If ',' is part of a label's name, give --label-separator none (in Python table={'label_separator': 'none'})"
    """
    unknown, known = set(unknown), set(known)
    for mark in (*SEPARATORS, "\t", "/", "+", "&", " "):
        if any(mark in name and _parts(name, mark) <= known for name in unknown):
            how, value = f"{mark!r} separates labels", repr(mark)
        elif any(mark in name and _parts(name, mark) <= unknown for name in known):
            how, value = f"{mark!r} is part of a label's name", "none"
        else:
            continue
        python = {"label_separator": mark if value != "none" else value}
        return f"If {how}, give --label-separator {value} (in Python table={python})"
    return ""


def _parts(name: str, mark: str) -> set[str]:
    return {part.strip() for part in name.split(mark)} - {""}


def check_kinds(labels: Iterable[tuple[int, Any]], what: str, none: str = "") -> None:
    """Refuse labels, each with its record, that are missing or of several types. `none`: what to give for a record
    without a label."""

    def present() -> Iterator[tuple[int, Any]]:
        for record, label in labels:
            if not isinstance(label, str) and is_missing(label):
                raise DataError(
                    f"{what}: the label of record {record} is missing ({label!r:.20}): leave the record out{none}"
                )
            yield record, label

    if (found := several_kinds(present())) is not None:
        (first, one), (record, other) = found
        raise DataError(
            f"{what}: labels of several types: record {first} has {with_kind(one)}, and record {record} "
            f"{with_kind(other)}. Give them all as text, such as [str(label) for label in {what}]"
        )


def several_kinds(labels: Iterable[tuple[int, Any]]) -> tuple[tuple[int, Any], tuple[int, Any]] | None:
    """Return the first of these labels, each with its record, and the first of another type; None if all have one.

    As names, 1 and "1" would become one label, and 1 and 1.0 two."""
    first: tuple[int, Any] | None = None
    kind = ""
    for record, label in labels:
        if first is None:
            first, kind = (record, label), _kind(label)
        elif _kind(label) != kind:
            return first, (record, label)
    return None


def with_kind(label: Any) -> str:
    """Return a label and its type, for a message."""
    return f"{f'{label!r:.40}' if isinstance(label, str) else f'{label!s:.40}'} ({_kind(label)})"


def _kind(label: Any) -> str:
    return next((name for name, kind in _KINDS.items() if isinstance(label, kind)), type(label).__name__)


def items_of(text: str) -> Iterator[str]:
    """Yield the items of a written list, quoted or not.

    >>> [list(items_of(text)) for text in ("['grain', \\"it's\\"]", "['a' 'b']", "[3, 4]", "[]")]
    [['grain', "it's"], ['a', 'b'], ['3', '4'], []]
    """
    at, end = 1, len(text) - 1
    if not text.endswith("]") or end < 1:
        raise ValueError("the list is not closed")
    while text[at:end].strip():
        match = _ITEM.match(text, at)
        if match is None or match.end() > end:
            raise ValueError(f"{text[at:end].strip()[:40]!r} is not an item of a list")
        item = match[1]
        if item[0] in "'\"":
            yield _unquoted(item)
        else:
            yield item
        at = match.end()


def _unquoted(item: str) -> str:
    """Return a quoted text as JSON reads it, or else as Python does."""
    with suppress(ValueError):
        return str(json.loads(item))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a backslash that means nothing stays one
            return str(ast.literal_eval(item))
    except (ValueError, SyntaxError, MemoryError):
        raise ValueError(f"{item[:40]} is not a quoted text") from None
