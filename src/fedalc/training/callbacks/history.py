"""Writes history.jsonl: one line per evaluated round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedalc.runs import history
from fedalc.training.callbacks.base import Callback


class HistoryWriter(Callback):
    """Appends each record to the history of a run folder. The line is on disk before other callbacks see the record."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "history.jsonl"

    def evaluated(self, record: dict[str, Any]) -> None:
        history.append(self.path, record)
