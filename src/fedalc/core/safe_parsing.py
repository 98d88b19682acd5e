"""JSON and TOML from files that somebody else may have written or damaged: everything wrong is one kind of error.

Python's parsers raise more than they document: `RecursionError` for deep nesting, a plain `ValueError` for a number of
thousands of digits. What they accept can still fail later, when it is printed or written. So both are bounded here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalc.errors import FedalcError

DEEPEST = 64
"""Levels of tables and lists. No file of ours has ten."""
_LARGEST = 1 << 64


class Unreadable(Exception):
    """What is wrong with a text, without a word on where it came from."""


def parse_json(text: str | bytes) -> Any:
    """The value, or `Unreadable`."""
    try:
        return _checked(json.loads(_decoded(text)))
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise Unreadable(_too_deep()) from None
    except ValueError as error:  # a number of thousands of digits
        raise Unreadable(f"not JSON: {error}") from None


def parse_toml(text: str | bytes, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The table, or `Unreadable`."""
    try:
        return dict(_checked(tomllib.loads(_decoded(text), parse_float=parse_float)))
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"not TOML: {error}") from None
    except RecursionError:
        raise Unreadable(_too_deep()) from None
    except (ValueError, ArithmeticError) as error:  # a number of thousands of digits, a date that does not exist
        raise Unreadable(f"not TOML: {error}") from None


def read_json_object(path: Path, what_to_do: str) -> dict[str, Any]:
    """The object in a JSON file. A missing file is FileNotFoundError, anything else wrong a FedalcError."""
    try:
        found = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FedalcError(f"{path}: cannot be read: {error.strerror}") from None
    except Unreadable as error:
        raise FedalcError(f"{path}: damaged: {error}; {what_to_do}") from None
    if not isinstance(found, dict):
        raise FedalcError(f"{path}: damaged: not a JSON object; {what_to_do}")
    return found


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 text (byte {error.start + 1})") from None


def _checked(value: Any) -> Any:
    """The value, if it is nested no deeper than `DEEPEST` and its whole numbers have at most 64 bits."""
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            return value
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, int) and not -_LARGEST < item < _LARGEST:
                raise Unreadable("a whole number of more than 64 bits")
        level = inner
    raise Unreadable(_too_deep())


def _too_deep() -> str:
    return f"nested more than {DEEPEST} levels deep"
