"""Large JSON files of annotations, of which little is kept: every object is cut down as soon as it has been read.

The most memory is needed before that: the file's bytes and its text, for a moment both at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fedalc.data.storage import File

_LARGEST_FILE = 2 << 30


def read_json(file: File, cut_down: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the file's content. `cut_down` gets every object, inner ones first, and returns its replacement.

    Numbers with a fraction are read as None: outlines of objects are made of them, and nobody here wants them.
    """
    try:
        text = str(file.read(_LARGEST_FILE), "utf-8")
    except UnicodeDecodeError:
        raise file.error("is not UTF-8 text, as JSON has to be") from None
    try:
        return json.loads(text.removeprefix("\ufeff"), object_hook=cut_down, parse_float=_nothing)
    except json.JSONDecodeError as error:
        hint = ": the file was cut short; get it again" if error.pos >= len(text.rstrip()) - 1 else ""
        raise file.error(f"is damaged JSON, column {error.colno}: {error.msg}{hint}", error.lineno) from None
    except RecursionError:
        raise file.error("its JSON is nested too deeply") from None
    except ValueError as error:  # a number with thousands of digits
        raise file.error(f"is damaged JSON: {error}") from None


def _nothing(_digits: str) -> None:
    return None


def list_of(content: Any, key: str, file: File) -> list[Any]:
    """Return a field of the outermost object, which has to be a list."""
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise file.error(f"has no list {key!r}, which a file of this layout has")
    return found
