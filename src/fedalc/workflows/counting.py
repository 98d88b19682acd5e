"""Show how many items are done: one bar, for commands that do not train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Counter(Protocol):
    """Called with the number of items done, the total (None if unknown), and the kind of item if it changes."""

    def __call__(self, done: int, total: int | None, now: str = ...) -> None: ...


@contextmanager
def counting(console: Console, what: str, shown: bool) -> Iterator[Counter]:
    """Show a bar that the returned function updates. It disappears at the end."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Do not redirect standard output: it may go to a file.
    with Progress(*columns, console=console, disable=not shown, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None, now: str = what) -> None:
            if bar.tasks[task].description != now:  # a new step has its own speed
                bar.reset(task, description=now)
            bar.update(task, completed=done, total=total)

        yield show
