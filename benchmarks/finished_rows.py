"""Rows of a table that a benchmark has finished, in a file: after an interruption it continues with the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]


class Memory:
    """Finished rows, one line each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.known: dict[tuple[str, str], Outcome] = {(r["dataset"], r["row"]): r["outcome"] for r in records}

    def row(self, dataset: str, row: str, work: Callable[[], Outcome]) -> Outcome:
        if (dataset, row) not in self.known:
            outcome = self.known[dataset, row] = work()
            with self.path.open("a") as file:
                file.write(json.dumps({"dataset": dataset, "row": row, "outcome": outcome}) + "\n")
            print(dataset, row, json.dumps(outcome)[:400], flush=True)
        return self.known[dataset, row]
