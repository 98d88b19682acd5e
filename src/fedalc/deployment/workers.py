"""At a party's node: has messages answered by a worker, and decides how long one worker is kept.

A worker answers for one Flower run with one set of settings. It starts anew for another run or other settings, if an
answer has left it with more memory than it may keep, after any error, and when it has had nothing to do for a while.
Starting is quick: workers are forked from a process that has imported the libraries and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver, get_context
from typing import Any

import psutil

from fedalc.core.safe_parsing import parse_json
from fedalc.deployment.worker import DONE, PRELOADED, serve, work

BEAT = 10.0  # seconds between two signs of life to Flower, which gives a task up after 30
IDLE = 600.0  # seconds without a message, after which no worker is kept
ATTEMPTS = 2  # at a message that no worker has fetched yet


class Worker:
    """A process that answers messages of one run with one set of settings, `about`."""

    def __init__(self, about: tuple[int, str]) -> None:
        self.about = about
        context = get_context("forkserver")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self, serve: Callable[[bytes], bytes], beat: Callable[[], object]) -> bool:
        """Have a message answered, and return whether it came to an end. `serve`: gives the worker what it asks for.
        `beat`: is called from time to time."""
        try:
            self._channel.send_bytes(b"answer")
            while (asked := self._next(beat)) != DONE:
                self._channel.send_bytes(serve(asked))
            return True
        except Exception as error:  # it has ended, or asks what it may not: it deals with what the server sent
            if not isinstance(error, EOFError | OSError):
                print(f"a worker asked for something it may not have: {type(error).__name__}", flush=True)
            return False

    def _next(self, beat: Callable[[], object]) -> bytes:
        while not self._channel.poll(BEAT):
            beat()
        return self._channel.recv_bytes()

    def memory(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def end(self) -> None:
        self._channel.close()
        self._process.kill()  # what it has done is already with the node
        self._process.join()


class Workers:
    """Has messages answered one after another. `most_memory`: bytes that a worker may keep from one to the next."""

    def __init__(self, most_memory: int, start: Callable[[tuple[int, str]], Worker] = Worker) -> None:
        self.most_memory, self._start = most_memory, start
        self._worker: Worker | None = None

    def answer(self, state: Any, store: Any, task: Any, message_id: str) -> None:
        """Have the message answered. A crash is reported to the server at once; the message is not tried again, as it
        may be what ended the worker, and its answer may have left already."""
        from flwr.common.constant import Status

        about = task.run_id, settings_digest(store, message_id)
        if state.claim_task(task.task_id) is None:
            return
        for _ in range(ATTEMPTS):
            if self._try(about, partial(serve, state=state, task=task), partial(_beat, state, task)):
                return
            (now,) = state.get_tasks(task_ids=[task.task_id])
            if now.status.status != Status.STARTING:
                break
        if now.status.status != Status.FINISHED:
            report_crash(state, store, now, message_id)

    def end(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def end_if_idle(self, seconds: float) -> None:
        if seconds > IDLE:
            self.end()

    def _try(self, about: tuple[int, str], serve: Callable[[bytes], bytes], beat: Callable[[], object]) -> bool:
        try:
            if self._worker is None or self._worker.about != about:
                self.end()
                self._worker = self._start(about)
            answered = self._worker.answer(serve, beat)
        except (OSError, EOFError):  # the process that workers are forked from has ended; the next attempt restarts it
            answered = False
        if not answered or self._worker is None or self._worker.memory() > self.most_memory:
            self.end()
        return answered


def _beat(state: Any, task: Any) -> None:
    state.acknowledge_task_heartbeat(task.task_id)


def prepare() -> None:
    """Start the process that workers are forked from. It imports the libraries meanwhile."""
    get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def settings_digest(store: Any, message_id: str) -> str:
    """Return the digest of the settings in a message that has been fetched; "" if it states none.

    The worker checks them. Here they only decide which worker answers.
    """
    from flwr.app import ConfigRecord, RecordDict
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_children_ids_from_object_content,
    )

    with contextlib.suppress(Exception):  # whatever is wrong with it, the worker refuses it
        (content,) = get_object_children_ids_from_object_content(store.get(message_id))
        records = parse_json(get_object_body(store.get(content), RecordDict).decode())
        task = ConfigRecord.inflate(store.get(records["task"]))
        return hashlib.sha256(str(task["settings"]).encode()).hexdigest()
    return ""


def report_crash(state: Any, store: Any, task: Any, message_id: str) -> None:
    """Answer for a worker that is gone, as Flower does a minute later."""
    from flwr.common.constant import SubStatus

    print("a worker ended before it had answered; the server knows", flush=True)
    for part in state.get_messages_legacy(run_ids=[task.run_id], is_reply=True):  # the rest of it will never come
        state.delete_messages(message_ids=[part.metadata.message_id])
        store.delete(part.metadata.message_id)
    state.get_messages_legacy(run_ids=[task.run_id], is_reply=False)  # Flower answers for what was fetched
    state._on_task_tokens_expired([task])
    state.finish_task(task.task_id, SubStatus.FAILED, "the worker ended")
    store.delete(message_id)
