"""Writing what came of a table: `table.json`, `table.md`, the figures and the page, from the run folders."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedalc.core.atomic_files import write_text
from fedalc.reproduction import figures, page
from fedalc.reproduction import results as outcome
from fedalc.reproduction import table_text as text
from fedalc.reproduction.plan import Ended, Plan


def write_outcome(plan: Plan, command: str, ended: Ended | None, sizes: np.ndarray | None) -> outcome.Outcome:
    with alone_in(plan.folder):
        found = outcome.collect(plan, command, ended, sizes)
        outcome.write_json(found, plan.folder / "table.json")
        write_text(plan.folder / "table.md", text.markdown(found))
        page.write_page(found, figures.write_all(found, plan.folder), plan.folder)
    return found


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is writing here. So the last to write has read all that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)  # the folder itself: no file is left behind
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
