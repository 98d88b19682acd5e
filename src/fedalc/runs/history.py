"""A run's history: one JSON line per evaluated round, written as it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedalc.core.atomic_files import append_text, write_text
from fedalc.core.safe_parsing import Unreadable, parse_json
from fedalc.errors import DataError

_WHAT_TO_DO = "remove the line or the whole file: it holds only the curves"


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line. It is on disk when this returns."""
    append_text(path, json.dumps(record) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records. A last line that a crash cut off is left out; any other unreadable line is an error."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(_record(line))
        except Unreadable as error:
            if number == len(lines):
                break
            raise DataError(f"{error}; {_WHAT_TO_DO}", path, number) from None
    return records


def _record(line: bytes) -> dict[str, Any]:
    record = parse_json(line)
    if not isinstance(record, dict):
        raise Unreadable("not a JSON object")
    if not isinstance(record.get("phase"), str) or type(record.get("round")) is not int:
        raise Unreadable("not the record of a round: it needs `phase`, a string, and `round`, an integer")
    return record


def rewrite(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace the history by these records: the rounds after the checkpoint will run again."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))
