"""A run's history: one JSON line per evaluated round, written as it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedalc.errors import DataError
from fedalc.files import append_text, write_text


def append(path: Path, record: dict[str, Any]) -> None:
    """One more line. It is on the disk when this returns."""
    append_text(path, json.dumps(record) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines. A last line cut off by a crash is left out; anything else unreadable is an error."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise DataError("not a JSON line", path, number) from None
    return records


def rewrite(path: Path, records: list[dict[str, Any]]) -> None:
    """Cut the history back to these records (what came after the checkpoint will be done again)."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))
