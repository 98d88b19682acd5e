"""What several commands print."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from fedalc.errors import FedalcError, Interrupted


def with_resume_hint(error: FedalcError, command: str) -> FedalcError:
    return Interrupted(f"{error}; continue with: {command}") if isinstance(error, Interrupted) else error


def note_absent_labels(console: Console, result: Any) -> None:
    absent = result["labels_without_client"]
    if absent:
        total = result.get("labels", absent + result["clients"])  # older results have no "labels"
        console.print(
            f"note: {absent} of {total} labels have no training instance: no client holds them, and they are never "
            "predicted"
        )
