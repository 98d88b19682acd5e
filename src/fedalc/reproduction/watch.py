"""Progress of a plan: bars on a terminal, one line per finished run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedalc.report.summary import number_at
from fedalc.report.tables import fixed, human_seconds
from fedalc.reproduction.plan import Job
from fedalc.reproduction.pool import Watcher

CHOOSING = 0.6  # estimated share of a run's time spent choosing the rounds, if it trains again


class Share:
    """The share of the work that is done, in runs. The time left is estimated from the work of this process."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.parts: dict[str, float] = {}
        self.phases: dict[str, tuple[str, int]] = {}  # each job's phase and its rounds
        self._begun_with: dict[str, float] = {}
        self._start = time.monotonic()

    def phase(self, job: Job, name: str, rounds: int, done: int) -> None:
        self.phases[job.name] = name, rounds
        self.round(job, done)
        self._begun_with.setdefault(job.name, self.parts[job.name])

    def round(self, job: Job, number: int) -> None:
        name, rounds = self.phases[job.name]
        part = number / max(rounds, 1)
        refits = job.settings.selection.refit and job.settings.selection.validation > 0
        if name == "select" and refits:
            part *= CHOOSING
        elif name == "refit":
            part = CHOOSING + (1 - CHOOSING) * part
        self.parts[job.name] = part

    def finished(self, job: Job) -> None:
        self.parts[job.name] = 1.0

    @property
    def done(self) -> float:
        return sum(self.parts.values())

    @property
    def seconds_left(self) -> float | None:
        """Return the estimate, or None if it is too early for one."""
        here = self.done - sum(self._begun_with.values())
        return (time.monotonic() - self._start) * (self.total - self.done) / here if here > 0.02 else None


class PlainWatcher(Watcher):
    """Prints lines, for logs and pipes."""

    def __init__(self, console: Console, jobs: Sequence[Job], workers: int) -> None:
        self.console, self.total, self.count = console, len(jobs), 0
        self.share = Share(len(jobs))
        self.begin(f"{len(jobs)} run{'s' * (len(jobs) != 1)}, {workers} at a time")

    def begin(self, title: str) -> None:
        self.console.print(title, highlight=False)

    def phase(self, job: Job, name: str, rounds: int, done: int) -> None:
        self.share.phase(job, name, rounds, done)

    def round(self, job: Job, number: int) -> None:
        self.share.round(job, number)

    def finished(self, job: Job, how: str, why: str) -> None:
        self.share.finished(job)
        self.count += how != "stopped"
        left = self.share.seconds_left
        rest = f"  about {human_seconds(left)} left" if left and how != "stopped" and self.count < self.total else ""
        self.console.print(
            f"[{self.count}/{self.total}] {_ending(job, how, why)}{rest}", highlight=False, markup=False, soft_wrap=True
        )

    def stopping(self, running: int) -> None:
        runs = "run finishes its" if running == 1 else "runs finish their"
        self.console.print(f"stopping: {running} {runs} round; press Ctrl-C again to stop now", highlight=False)

    def close(self) -> None: ...


class LiveWatcher(PlainWatcher):
    """Shows a bar for all runs and one per running run. Close it at the end."""

    def __init__(self, console: Console, jobs: Sequence[Job], workers: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description:40}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        super().__init__(console, jobs, workers)

    def begin(self, title: str) -> None:
        self._all = self._bar.add_task(title, total=self.total, text="")
        self._bar.start()

    def started(self, job: Job) -> None:
        self._tasks[job.name] = self._bar.add_task(f"  {job.name}", total=None, text="reading data")

    def phase(self, job: Job, name: str, rounds: int, done: int) -> None:
        super().phase(job, name, rounds, done)
        self._bar.update(self._tasks[job.name], total=rounds, completed=done, text=f"{name} {done}/{rounds}")

    def round(self, job: Job, number: int) -> None:
        super().round(job, number)
        name, rounds = self.share.phases[job.name]
        self._bar.update(self._tasks[job.name], completed=number, text=f"{name} {number}/{rounds}")

    def finished(self, job: Job, how: str, why: str) -> None:
        self._bar.remove_task(self._tasks.pop(job.name))
        super().finished(job, how, why)

    def tick(self) -> None:
        left = self.share.seconds_left
        text = f"{self.count}/{self.total} done" + (f", about {human_seconds(left)} left" if left else "")
        self._bar.update(self._all, completed=self.share.done, text=text)

    def close(self) -> None:
        self._bar.stop()


def _ending(job: Job, how: str, why: str) -> str:
    if how == "done":
        result = job.result() or {}
        metrics = " ".join(f"{name} {fixed(number_at(result, 'metrics', name), 2)}" for name in ("P@1", "P@3", "P@5"))
        return f"{job.name}  {metrics}  {human_seconds(number_at(result, 'seconds'))}"
    words = {
        "failed": f"failed: {why}",
        "locked": "another process runs it",
        "stopped": f"stopped {why}".strip(),
    }
    return f"{job.name}  {words[how]}"


def make_watcher(console: Console, jobs: Sequence[Job], workers: int) -> PlainWatcher:
    return (LiveWatcher if console.is_terminal else PlainWatcher)(console, jobs, workers)
