"""Run a plan's jobs in parallel worker processes. The parent sends each worker its next job through a pipe.

This is more than concurrent.futures offers: a worker that dies fails its own job only, with its exit code; workers
report progress; and a signal stops them after their round.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedalc.core.interrupt import Interrupt
from fedalc.reproduction.plan import Ended, Job
from fedalc.reproduction.worker import Message, work

GRACE_SECONDS = 5.0  # for an idle worker to end
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # libraries read them once, when loaded


class Watcher:
    """Follows the progress of jobs. Every method does nothing unless overridden."""

    def started(self, job: Job) -> None: ...

    def phase(self, job: Job, name: str, rounds: int, done: int) -> None: ...

    def round(self, job: Job, number: int) -> None: ...

    def finished(self, job: Job, how: str, why: str) -> None: ...

    def stopping(self, running: int) -> None: ...

    def tick(self) -> None: ...


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    job: Job | None = None
    asked_to_stop: bool = False


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[Job], workers: int, threads: int, data_dir: Path | None = None, watcher: Watcher | None = None
) -> Ended:
    """Run all jobs, at most `workers` at a time. After the first signal, running jobs finish their round and save."""
    waiting, ended = deque(jobs), Ended()
    watcher = watcher or Watcher()
    pool: list[_Worker] = []
    try:
        with Interrupt() as interrupt:
            while waiting or any(worker.job for worker in pool):
                if interrupt.asked or ended.stopped:
                    ended.stopped = True
                    waiting.clear()
                    _ask_to_stop(pool, watcher)
                while waiting and sum(worker.job is not None for worker in pool) < workers:
                    _give(waiting.popleft(), pool, threads, data_dir, watcher)
                _listen(pool, ended, watcher)
                watcher.tick()
    finally:
        _end(pool)
    return ended


def _give(job: Job, pool: list[_Worker], threads: int, data_dir: Path | None, watcher: Watcher) -> None:
    for worker in [worker for worker in pool if worker.job is None and not worker.process.is_alive()]:
        pool.remove(worker)  # died while idle: a job sent to it would be lost
        worker.pipe.close()
    idle = next((worker for worker in pool if worker.job is None), None)
    if idle is None:
        idle = _start(threads, data_dir)
        pool.append(idle)
    idle.job = job
    with suppress(OSError):  # `_listen` notices its death
        idle.pipe.send(job)
    watcher.started(job)


def _start(threads: int, data_dir: Path | None) -> _Worker:
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, threads, data_dir), daemon=True)
    with _no_ctrl_c(), _threads_in_environment(threads):
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """Processes started here never receive the terminal's Ctrl-C: the parent tells them to stop."""
    resource_tracker.ensure_running()  # otherwise it starts with the first process, and unblocks the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _threads_in_environment(threads: int) -> Iterator[None]:
    """Set the number of threads for processes started here: they load numpy before any line of ours runs."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _ask_to_stop(pool: list[_Worker], watcher: Watcher) -> None:
    """Send each busy worker one signal: a second one would not wait for the round."""
    busy = [worker for worker in pool if worker.job is not None and not worker.asked_to_stop]
    for worker in busy:
        worker.asked_to_stop = True
        worker.process.terminate()
    if busy:
        watcher.stopping(len(busy))


def _listen(pool: list[_Worker], ended: Ended, watcher: Watcher) -> None:
    ready = connection.wait([worker.pipe for worker in pool], timeout=0.2)
    for worker in [worker for worker in pool if worker.pipe in ready]:
        try:
            message: Message = worker.pipe.recv()
        except (EOFError, OSError):  # it died, perhaps in the middle of a message
            pool.remove(worker)
            worker.process.join()
            stopped = worker.asked_to_stop or worker.process.exitcode == -signal.SIGTERM
            message = ("stopped", "") if stopped else ("failed", _death(worker.process.exitcode))
        _handle(worker, message, ended, watcher)


def _death(code: int | None) -> str:
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return f"its process ended {how}" + (" (out of memory? try fewer --jobs)" if code == -signal.SIGKILL else "")


def _handle(worker: _Worker, message: Message, ended: Ended, watcher: Watcher) -> None:
    job, (kind, content) = worker.job, message
    if job is None:
        return  # an idle worker that died
    if kind == "phase":
        watcher.phase(job, *content)
    elif kind == "round":
        watcher.round(job, content)
    else:
        worker.job = None
        why = content or ""
        if kind == "done":
            ended.done.append(job.name)
        elif kind == "failed":
            ended.failed[job.name] = why
        elif kind == "locked":
            ended.elsewhere[job.name] = why
        else:  # by us, or by a signal from elsewhere
            ended.stopped = True
        watcher.finished(job, kind, why)


def _end(pool: list[_Worker]) -> None:
    """Close the pipes, which ends idle workers, and kill the busy ones."""
    for worker in pool:
        worker.pipe.close()
        if worker.job is not None:
            worker.process.kill()
    for worker in pool:
        worker.process.join(GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
