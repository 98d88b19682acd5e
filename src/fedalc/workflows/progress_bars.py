"""Show the progress of a run: live bars on a terminal, a few plain lines elsewhere, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedalc.core import distributed
from fedalc.data.dataset import Dataset
from fedalc.errors import ConfigError
from fedalc.report.curves import watched_metric
from fedalc.training.base import Callback

SHOWN_AFTER = 2.0  # seconds after which a part of a round or evaluation gets its own bar
SAID_EVERY = 60.0  # seconds between plain lines


class LiveProgress(Callback):
    """One bar per phase with loss, P@1 or mAP if evaluated, rounds and remaining time, and a second bar for a slow part
    of a round. Close it when the run ends."""

    def __init__(self, console: Console, title: str) -> None:
        self.title = title
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}  {task.fields[p1]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._reading: TaskID | None = None
        self._part: TaskID | None = None
        self._part_began = time.monotonic()
        self._closing, self._closed = threading.Lock(), False

    def reading(self, done: int, pictures: int) -> None:
        with self._closing:
            if self._closed:  # the run has failed, and the reading thread has not noticed yet
                return
            self._bar.start()
            if self._reading is None:
                self._reading = self._bar.add_task("pictures", total=pictures, loss="scaled", p1="")
            self._bar.update(self._reading, completed=done)

    def loaded(self, data: Dataset) -> None:
        print_notes(self._bar.console, data)

    def phase(self, name: str, rounds: int, done: int) -> None:
        self._bar.start()
        self._task = self._bar.add_task(
            f"{self.title} {name:6}", total=rounds, completed=done, loss="loss    -  ", p1=""
        )

    def round(self, number: int, loss: float) -> None:
        assert self._task is not None
        self._bar.update(self._task, completed=number, loss=f"loss {loss:.4f}")

    def step(self, number: int, what: str) -> None:
        assert self._task is not None
        self._bar.update(self._task, completed=number, loss=what)

    def evaluated(self, record: dict[str, Any]) -> None:
        assert self._task is not None
        metric = watched_metric([record])
        if metric is not None:
            self._bar.update(self._task, p1=f"{metric} {record['metrics'][metric]:5.2f}")

    def part(self, what: str, done: int, total: int) -> None:
        if done == 0:
            self._part_began = time.monotonic()
        if self._part is None and time.monotonic() - self._part_began > SHOWN_AFTER:
            self._bar.start()
            self._part = self._bar.add_task(f"  {what}", total=total, loss="", p1="")
        if self._part is not None:
            self._bar.update(self._part, description=f"  {what}", completed=done, total=total)
        if self._part is not None and done == total:
            self._bar.remove_task(self._part)
            self._part = None

    def log(self, text: str) -> None:
        self._bar.console.print(f"{self.title.strip()}: {text}", highlight=False, markup=False, soft_wrap=True)

    def stopping(self) -> None:
        self._bar.console.print(_stopping(), highlight=False)

    def close(self) -> None:
        with self._closing:
            self._closed = True
        self._bar.stop()


class PlainProgress(Callback):
    """About ten lines per phase, for logs and pipes, and one per minute during a long step."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self._rounds = self._shown = self._done = 0
        self._phase = ""
        self._said = time.monotonic()

    def reading(self, done: int, pictures: int) -> None:
        if done == pictures:
            self.console.print(f"{pictures} pictures scaled", highlight=False)

    def loaded(self, data: Dataset) -> None:
        print_notes(self.console, data)

    def phase(self, name: str, rounds: int, done: int) -> None:
        self._phase, self._rounds, self._shown = name, rounds, done
        self._done, self._said = done, time.monotonic()

    def round(self, number: int, loss: float) -> None:
        self._done = number

    def step(self, number: int, what: str) -> None:
        if number < self._rounds and number - self._shown < self._rounds / 10:
            return
        self._shown = number
        self._say(f"{self._phase} {number}/{self._rounds}  {what}")

    def evaluated(self, record: dict[str, Any]) -> None:
        # An oracle has one record per phase, at its end.
        number = record["round"] if record["loss"] is not None else self._rounds
        if number < self._rounds and number - self._shown < self._rounds / 10:
            return
        self._shown = number
        loss, metric = record["loss"], watched_metric([record])
        quality = "" if metric is None else f"  {metric} {record['metrics'][metric]:.2f}"
        done = f"{number}/{self._rounds}  loss {loss:.4f}" if loss is not None else "done"
        self._say(f"{record['phase']} {done}{quality}")

    def part(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._said > SAID_EVERY and done < total:  # not at its end
            where = f"{self._phase} {self._done}/{self._rounds}" if self._phase else "beginning"
            self._say(f"{where}, then {done:,} of {total:,} {what}")

    def log(self, text: str) -> None:
        self.console.print(f"{self.title.strip()}: {text}", highlight=False, markup=False, soft_wrap=True)

    def stopping(self) -> None:
        self.console.print(_stopping(), highlight=False)

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self.console.print(f"{self.title} {line}", highlight=False)

    def close(self) -> None: ...


def print_notes(console: Console, data: Dataset) -> None:
    """Print how the data was read."""
    for note in data.notes:
        console.print(f"{data.name}: {note}", highlight=False, markup=False, soft_wrap=True)


def _stopping() -> str:
    again = "; Ctrl-C again stops at once" if distributed.here().count == 1 else ""  # see `Interrupt`
    return f"stopping as soon as this round is finished and saved{again}"


def make_progress(console: Console, title: str, quiet: bool) -> list[LiveProgress | PlainProgress]:
    if quiet:
        return []
    return [LiveProgress(console, title) if console.is_terminal else PlainProgress(console, title)]


@contextmanager
def progress_shown(verbose: bool | None, title: str) -> Iterator[list[LiveProgress | PlainProgress]]:
    """Yield callbacks that show progress on standard error or in a notebook. None: only if somebody can see it there
    as it happens. They are closed at the end."""
    if verbose is not None and not isinstance(verbose, bool):
        raise ConfigError(f"expected True, False or None, found {verbose!r:.60}", "verbose")
    console = Console(stderr=True)
    notebook = console.is_jupyter
    shown = (console.is_terminal or notebook) if verbose is None else verbose
    live = console.is_terminal or (notebook and find_spec("ipywidgets") is not None)
    callbacks: list[LiveProgress | PlainProgress] = []
    if shown and distributed.started_as().rank == 0:
        callbacks.append(LiveProgress(console, title) if live else PlainProgress(console, title))
    try:
        yield callbacks
    finally:
        for callback in callbacks:
            callback.close()
