"""Parse JSON and TOML from files that others may have written or damaged. Every fault raises the same error.

Python's parsers raise more than they document: `RecursionError` for deep nesting, and a plain `ValueError` for a number
of thousands of digits. What they accept can still fail later, when printed or written. So both are limited here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalc.errors import FedalcError

DEEPEST = 64
"""Maximum depth of nested tables and lists. No file of fedalc has ten levels."""
_LARGEST = 1 << 64


class Unreadable(Exception):
    """A text cannot be parsed. The message does not name the file."""


def parse_json(text: str | bytes) -> Any:
    """Return the value, or raise `Unreadable`."""
    try:
        return _checked(json.loads(_decoded(text)))
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise Unreadable(_too_deep()) from None
    except ValueError as error:  # a number of thousands of digits
        raise Unreadable(f"not JSON: {error}") from None


def parse_toml(text: str | bytes, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """Return the table, or raise `Unreadable`."""
    try:
        return dict(_checked(tomllib.loads(_decoded(text), parse_float=parse_float)))
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"not TOML: {error}") from None
    except RecursionError:
        raise Unreadable(_too_deep()) from None
    except (ValueError, ArithmeticError) as error:  # a number of thousands of digits, a date that does not exist
        raise Unreadable(f"not TOML: {error}") from None


def read_json_object(path: Path, what_to_do: str) -> dict[str, Any]:
    """Return the object in a JSON file. A missing file raises FileNotFoundError, any other fault a FedalcError."""
    try:
        content = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FedalcError(f"{path}: cannot be read: {error.strerror}") from None
    except Unreadable as error:
        raise FedalcError(f"{path}: damaged: {error}; {what_to_do}") from None
    if not isinstance(content, dict):
        raise FedalcError(f"{path}: damaged: not a JSON object; {what_to_do}")
    return content


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 text (byte {error.start + 1})") from None


def _checked(value: Any) -> Any:
    """Return the value if it is nested at most `DEEPEST` levels and its whole numbers have at most 64 bits."""
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
