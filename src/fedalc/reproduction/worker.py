"""A worker process: trains one run after the other, as its parent asks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedalc.core.atomic_files import write_text
from fedalc.core.plugins import load_inherited_plugins
from fedalc.errors import FedalcError, Interrupted, Locked
from fedalc.reproduction.plan import FAILURE, Job

# During a job: "phase" (name, rounds, done) and "round" number (an oracle's step). At its end: "done", "failed",
# "locked" or "stopped", and the reason
Message = tuple[str, Any]
SECONDS_BETWEEN = 0.2  # between messages about rounds


def work(pipe: Connection, threads: int, data_dir: Path | None) -> None:
    """Train jobs until the parent closes the pipe, or ends."""
    os.setpgrp()  # a signal to the parent's group would reach us twice; the second does not wait for the round
    threading.Thread(target=_end_with_parent, daemon=True).start()
    load_inherited_plugins()
    import torch

    from fedalc.data import load_dataset
    from fedalc.workflows.train import image_options

    torch.set_num_threads(threads)
    loaded: dict[Any, Any] = {}
    with suppress(EOFError, BrokenPipeError):
        while True:
            job: Job = pipe.recv()
            name, options = job.settings.dataset, image_options(job.settings, wait=False)

            def load(name: str = name, options: Any = options) -> Any:
                if (name, options) not in loaded:
                    loaded.clear()  # keep one dataset at a time: they can be large
                    loaded[name, options] = load_dataset(name, data_dir, images=options)
                return loaded[name, options]

            pipe.send(_outcome(job, load, pipe))


def _end_with_parent() -> None:
    """When the parent dies, stop as after a signal: finish the round and save."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _outcome(job: Job, load: Callable[[], Any], pipe: Connection) -> Message:
    from fedalc.workflows.train import train_or_continue

    failure = job.folder / FAILURE
    try:
        failure.unlink(missing_ok=True)
        train_or_continue(job.settings, job.folder, load(), [_follower(pipe)])
        return "done", None
    except (Interrupted, KeyboardInterrupt) as stop:
        return "stopped", str(stop)
    except Locked as error:
        return "locked", str(error)
    except Exception as error:  # any error belongs to this run only; the others continue
        first = (str(error) or "no reason given").splitlines()[0]
        why = first if isinstance(error, FedalcError) else f"{type(error).__name__}: {first}"
        if (job.folder / "config.toml").exists():
            write_text(failure, why + "\n")
        return "failed", why


def _follower(pipe: Connection) -> Any:
    from fedalc.training.base import Callback

    class Follower(Callback):
        """Reports progress to the parent. If the parent is gone, `_end_with_parent` ends the run."""

        sent = 0.0

        def phase(self, name: str, rounds: int, done: int) -> None:
            with suppress(BrokenPipeError):
                pipe.send(("phase", (name, rounds, done)))

        def round(self, number: int, loss: float) -> None:
            self._reached(number)

        def step(self, number: int, what: str) -> None:
            self._reached(number)

        def _reached(self, number: int) -> None:
            if time.monotonic() - self.sent >= SECONDS_BETWEEN:
                self.sent = time.monotonic()
                with suppress(BrokenPipeError):
                    pipe.send(("round", number))

    return Follower()
