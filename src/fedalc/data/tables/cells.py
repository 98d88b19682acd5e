"""Single cells of a table: is there a value, is it a number, what is it as text?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Kind = Literal["empty", "flags", "numbers", "vectors", "lists", "texts"]
_FLAGS = {"0", "1", "0.0", "1.0", "true", "false"}
_LONG_TEXT = 20
"""Free text has at least this many characters on average. Most names of labels have fewer."""


def is_missing(cell: Any) -> bool:
    """Return whether a cell has no value: None, blank text, NaN, or pandas' NA and NaT."""
    if cell is None:
        return True
    if isinstance(cell, str):
        return not cell.strip()
    if isinstance(cell, float):
        return math.isnan(cell)
    if is_list(cell):
        return False
    try:
        return bool(cell != cell)
    except (TypeError, ValueError):  # pandas' NA is neither equal nor unequal to itself
        return True


def is_list(cell: Any) -> bool:
    return isinstance(cell, list | tuple | set | frozenset | np.ndarray)


def is_nested(cell: Any) -> bool:
    """Return whether a cell is an object with fields of its own, or a list of objects or lists."""
    return isinstance(cell, Mapping) or (
        is_list(cell) and any(isinstance(item, Mapping | list | tuple) for item in cell)
    )


def in_words(cell: Any) -> str:
    """Return what a nested cell is, for a message."""
    shown = str(cell)
    return f"{'a list' if is_list(cell) else 'an object'}, {shown[:40]}{'…' * (len(shown) > 40)}"


def is_number(cell: Any) -> bool:
    if isinstance(cell, str):
        try:
            float(cell)
        except ValueError:
            return False
        return True
    return isinstance(cell, bool | int | float | np.number | np.bool_)


def as_text(cell: Any) -> str:
    """Return a cell as text: the same for a number in CSV, JSON and a data frame."""
    return "" if is_missing(cell) else cell if isinstance(cell, str) else str(cell)


def as_flag(cell: Any) -> bool | None:
    """Return a 0 or 1 (or true, false) as bool; None if it is neither."""
    text = str(cell).strip().lower()
    return text in ("1", "1.0", "true") if text in _FLAGS else None


def kind_of(cells: Sequence[Any]) -> Kind:
    """Return what a column holds, by some of its cells."""
    there = [cell for cell in cells if not is_missing(cell)]
    if not there:
        return "empty"
    if any(is_list(cell) for cell in there):
        numeric = all(is_list(cell) and len(cell) and all(map(_is_plain_number, cell)) for cell in there)
        same = len({len(cell) if is_list(cell) else -1 for cell in there}) == 1
        return "vectors" if numeric and same and len(there) == len(cells) else "lists"
    if all(as_flag(cell) is not None for cell in there):
        return "flags"
    return "numbers" if all(map(is_number, there)) else "texts"


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def is_free_text(cells: Sequence[Any]) -> bool:
    """Return whether a column of texts holds sentences rather than names."""
    if any(map(is_nested, cells)):
        return False
    return average_length(cells) >= _LONG_TEXT and sum(" " in as_text(cell).strip() for cell in cells) * 2 > len(cells)


def average_length(cells: Sequence[Any]) -> float:
    return sum(len(as_text(cell)) for cell in cells) / max(len(cells), 1)
