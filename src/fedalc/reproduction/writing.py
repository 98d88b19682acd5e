"""Write a table's outcome from its run folders: `table.json`, `table.md`, figures and page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedalc.core.atomic_files import write_text
from fedalc.core.locks import lock_file
from fedalc.reproduction import figures, page
from fedalc.reproduction import results as outcome
from fedalc.reproduction import table_text as text
from fedalc.reproduction.plan import Ended, Plan
from fedalc.runs.folder import LOCK


def write_outcome(plan: Plan, command: str, ended: Ended | None, sizes: np.ndarray | None) -> outcome.Outcome:
    with alone_in(plan.folder):
        found = outcome.collect(plan, command, ended, sizes)
        outcome.write_json(found, plan.folder / "table.json")
        write_text(plan.folder / "table.md", text.markdown(found))
        page.write_page(found, figures.write_all(found, plan.folder), plan.folder)
    return found


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process writes here, so that the last one to write has read everything there is."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / LOCK):
        yield
