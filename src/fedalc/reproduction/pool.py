"""Running a plan's jobs in parallel: worker processes, each told its next job over a pipe of its own."""

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

GRACE_SECONDS = 5.0  # for a worker that has nothing left to do
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, as the libraries are loaded


class Watcher:
    """What may follow the jobs as they go. Every hook does nothing unless overridden."""

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
    """All jobs, at most `workers` at a time. The first signal lets the running ones finish their round and save."""
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
        pool.remove(worker)  # died with nothing to do: the job would be lost on it
        worker.pipe.close()
    idle = next((worker for worker in pool if worker.job is None), None)
    if idle is None:
        idle = _start(threads, data_dir)
        pool.append(idle)
    idle.job = job
    with suppress(OSError):  # its death is noticed when it is listened to
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
    """What is started here never sees the terminal's Ctrl-C, from its first moment on: it is for the parent to ask."""
    resource_tracker.ensure_running()  # it is started with the first process, and would lift the block
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _threads_in_environment(threads: int) -> Iterator[None]:
    """What is started here has it from its first moment on: numpy is loaded before any line of ours is run there."""
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
    """Once each: a second signal would not wait for the round."""
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
        except (EOFError, OSError):  # gone, perhaps in the middle of a message
            pool.remove(worker)
            worker.process.join()
            stopped = worker.asked_to_stop or worker.process.exitcode == -signal.SIGTERM
            message = ("stopped", "") if stopped else ("failed", _death(worker.process.exitcode))
        _hear(worker, message, ended, watcher)


def _death(code: int | None) -> str:
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return f"its process ended {how}" + (" (out of memory? try fewer --jobs)" if code == -signal.SIGKILL else "")


def _hear(worker: _Worker, message: Message, ended: Ended, watcher: Watcher) -> None:
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
        else:  # asked by us or, with a signal of their own, by somebody else
            ended.stopped = True
        watcher.finished(job, kind, why)


def _end(pool: list[_Worker]) -> None:
    """A worker whose pipe is closed ends by itself; one that is still busy is in nobody's interest any more."""
    for worker in pool:
        worker.pipe.close()
        if worker.job is not None:
            worker.process.kill()
    for worker in pool:
        worker.process.join(GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
