"""The life of a party's worker: how long one is kept, and what happens when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import Status, SubStatus
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedalc.deployment import workers as module
from fedalc.deployment.pauses import Pauses
from fedalc.deployment.worker import serve
from fedalc.deployment.workers import Worker, Workers, settings_digest

GB = 1 << 30


class Node:
    """A SuperNode's state, with messages that were fetched."""

    def __init__(self) -> None:
        stores = ObjectStoreFactory()
        self.state: Any = NodeStateFactory(stores).state()
        self.store: Any = stores.store()
        self.state.set_node_id(1)
        self.fetched = 0

    def fetch(self, run: int = 7, settings: str | None = "{}") -> tuple[Any, str]:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = run  # who makes the message
        self.fetched += 1
        task = ConfigRecord({"round": self.fetched})
        if settings is not None:
            task["settings"] = settings
        message = Message(RecordDict({"task": task}), dst_node_id=1, message_type="train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.store.preregister(run, get_object_tree(message))
        for name, part in get_all_nested_objects(message).items():
            self.store.put(name, part.deflate())
        self.state.store_message(message)
        task_id = self.state.create_task(task_type="flwr-clientapp", run_id=run, fab_hash="f")
        (made,) = self.state.get_tasks(task_ids=[task_id])
        return made, message.object_id

    def status(self, task: Any) -> str:
        return str(self.state.get_tasks(task_ids=[task.task_id])[0].status.status)


class Fake:
    """A worker in this process. `does`: what happens in place of an answer, once each."""

    def __init__(self, node: Node, about: tuple[int, str], does: list[Callable[[Any], bool]], size: int = 0) -> None:
        self.node, self.about, self.does, self.size = node, about, does, size
        self.ended = False

    def answer(self, serve: Any, beat: Callable[[], object]) -> bool:
        assert not self.ended
        task_id = serve.keywords["task"].task_id
        beat()
        return self.does.pop(0)(task_id) if self.does else self.complete(task_id)

    def complete(self, task_id: int) -> bool:
        assert self.node.state.activate_task(task_id)
        return bool(self.node.state.finish_task(task_id, SubStatus.COMPLETED, ""))

    def memory(self) -> int:
        return self.size

    def end(self) -> None:
        self.ended = True


class Pool:
    """Workers that are fakes. `started` are those that there were."""

    def __init__(self, *does: Callable[[Any], bool], sizes: tuple[int, ...] = ()) -> None:
        self.node, self.started, self.does, self.sizes = Node(), list[Fake](), list(does), list(sizes)
        self.workers = Workers(GB, self._start)  # type: ignore[arg-type]

    def _start(self, about: tuple[int, str]) -> Fake:
        assert all(worker.ended for worker in self.started), "two at a time"
        self.started.append(Fake(self.node, about, self.does, self.sizes.pop(0) if self.sizes else 0))
        return self.started[-1]

    def answer(self, run: int = 7, settings: str | None = "{}") -> str:
        task, message_id = self.node.fetch(run, settings)
        self.workers.answer(self.node.state, self.node.store, task, message_id)
        return self.node.status(task)


def test_messages_of_one_run_with_one_set_of_settings_are_answered_by_one_worker() -> None:
    pool = Pool()
    assert [pool.answer() for _ in range(3)] == [Status.FINISHED] * 3
    assert len(pool.started) == 1 and not pool.started[0].ended


@pytest.mark.parametrize("other", [{"run": 8}, {"settings": '{"a": 1}'}, {"settings": None}])
def test_another_run_or_other_settings_get_another_worker(other: dict[str, Any]) -> None:
    pool = Pool()
    for about in ({}, other, other, {}):
        assert pool.answer(**about) == Status.FINISHED
    assert [worker.ended for worker in pool.started] == [True, True, False]


def test_a_worker_that_keeps_too_much_memory_answers_no_more() -> None:
    pool = Pool(sizes=(GB + 1, GB))
    for _ in range(3):
        pool.answer()
    assert [worker.ended for worker in pool.started] == [True, False]


def test_an_idle_worker_ends() -> None:
    pool, now = Pool(), [0.0]
    pauses = Pauses(pool.workers.end_if_idle, clock=lambda: now[0])
    pool.answer()
    pauses.message()
    pauses.sleep(0.0)
    assert not pool.started[0].ended
    now[0] = module.IDLE + 1
    pauses.sleep(0.0)
    assert pool.started[0].ended
    assert pool.answer() == Status.FINISHED and len(pool.started) == 2


def test_a_worker_that_ends_before_it_has_the_message_is_replaced() -> None:
    pool = Pool(lambda task_id: False)
    assert pool.answer() == Status.FINISHED
    assert len(pool.started) == 2 and not pool.node.state.get_messages_legacy(is_reply=True)


def test_a_worker_that_ends_at_work_is_reported_and_not_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The message may be what ended it, and an answer with noise may have left."""
    pool = Pool()
    pool.does.append(lambda task_id: not pool.node.state.activate_task(task_id))
    task, message_id = pool.node.fetch()
    pool.workers.answer(pool.node.state, pool.node.store, task, message_id)
    (reply,) = pool.node.state.get_messages_legacy(is_reply=True)
    assert reply.has_error() and reply.error.code == 8 and reply.metadata.reply_to_message_id == message_id
    assert pool.node.status(task) == Status.FINISHED and message_id not in pool.node.store
    assert "ended before it had answered" in capsys.readouterr().out
    assert len(pool.started) == 1 and pool.answer() == Status.FINISHED


def test_half_an_answer_is_not_sent() -> None:
    """Otherwise the node waits for the rest of it."""
    pool = Pool()
    task, message_id = pool.node.fetch()

    def half(task_id: int) -> bool:
        assert pool.node.state.activate_task(task_id)
        (asked,) = pool.node.state.get_messages_legacy(is_reply=False)
        reply = Message(RecordDict(), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pool.node.state.store_message(reply)
        return False

    pool.does.append(half)
    pool.workers.answer(pool.node.state, pool.node.store, task, message_id)
    (reply,) = pool.node.state.get_messages_legacy(is_reply=True)
    assert reply.has_error() and reply.metadata.reply_to_message_id == message_id


def test_workers_that_cannot_be_started_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()

    def fails(about: tuple[int, str]) -> Fake:
        raise EOFError

    monkeypatch.setattr(pool.workers, "_start", fails)
    assert pool.answer() == Status.FINISHED
    assert pool.node.state.get_messages_legacy(is_reply=True)[0].error.code == 8


def test_settings_of_a_message_that_has_none_or_is_damaged() -> None:
    node = Node()
    _, message_id = node.fetch(settings='{"a": 1}')
    assert len(settings_digest(node.store, message_id)) == 64
    assert settings_digest(node.store, node.fetch(settings=None)[1]) == ""
    assert settings_digest(node.store, "0" * 64) == ""


@pytest.fixture
def real() -> Iterator[Worker]:
    """A real process."""
    worker = Worker((7, ""))
    yield worker
    worker.end()


def test_a_process_that_is_killed_has_not_answered(real: Worker) -> None:
    assert real.memory() > 0
    os.kill(int(real._process.pid or 0), signal.SIGKILL)
    assert not real.answer(lambda asked: b"", lambda: None)
    real.end()
    assert not real._process.is_alive()


def test_a_process_that_is_refused_what_it_asks_has_not_answered(
    real: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def refuse(words: bytes) -> bytes:
        asked.append(words)
        raise PermissionError if len(asked) > 1 else KeyError

    assert not real.answer(refuse, lambda: None)
    assert asked[0].startswith(b"PullTaskInput\n") and "may not have: KeyError" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [b"", b"CreateTask\n", b"GetNodes\n", b"PullObject\n\xff", b"no line"])
def test_a_worker_may_ask_for_nothing_else(asked: bytes) -> None:
    node = Node()
    task, _ = node.fetch()
    with pytest.raises((KeyError, DecodeError)):
        serve(asked, node.state, task)


def test_what_workers_are_forked_from_imports_only_libraries() -> None:
    """It is given no path, no key and no message."""
    assert all(name.startswith(("fedalc.", "flwr.")) for name in module.PRELOADED)
