"""What a worker does with one message of a SuperNode."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import Status
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.nodestate import NodeStateFactory

from fedalc.deployment.worker import DONE, NodeClient, answer, serve
from tests.deployment.test_workers import Node

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    assert context.state.pop("first", None) is None, "the second message"
    context.state["first"] = message.content["task"]
    return Message(RecordDict({"echo": message.content["task"]}), reply_to=message)


class Served(Node):
    """A node with a run, which gives workers what they ask for."""

    def __init__(self) -> None:
        super().__init__()
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state, self.store = factory.state(), factory.objectstore_factory.store()
        self.state.set_node_id(1)
        run = Run.create_empty(7)
        run.fab_hash = self.state.store_fab(Fab("", b"never unpacked", {}))
        self.state.store_run(run)
        context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={})
        self.state.set_run_series_context(run.series_id, context)
        self.series = run.series_id
        self.channel, self.theirs = Pipe()

    def answer(self, task: Any) -> None:
        """Give a worker, in this thread, what it asks for until it is done."""
        self.state.claim_task(task.task_id)
        thread = threading.Thread(target=self._serve, args=(task,))
        thread.start()
        try:
            answer(app, NodeClient(self.theirs))
        finally:
            self.theirs.send_bytes(DONE)
            thread.join()

    def _serve(self, task: Any) -> None:
        while (asked := self.channel.recv_bytes()) != DONE:
            self.channel.send_bytes(serve(asked, self.state, task))


@pytest.fixture
def node() -> Served:
    return Served()


def test_an_answer_and_the_state_of_the_run_are_with_the_node(node: Served) -> None:
    task, message_id = node.fetch()
    node.answer(task)
    (reply,) = node.state.get_messages_legacy(is_reply=True)
    assert reply.metadata.reply_to_message_id == message_id and not reply.has_error()
    assert node.status(task) == Status.FINISHED
    assert "first" in node.state.get_run_series_context(node.series).state
    assert message_id not in node.store


def test_an_error_is_answered_without_its_words_and_ends_the_worker(node: Served) -> None:
    node.answer(node.fetch()[0])
    node.state.get_messages_legacy(is_reply=True)
    task, _ = node.fetch()
    with pytest.raises(AssertionError):
        node.answer(task)
    (reply,) = node.state.get_messages_legacy(is_reply=True)
    assert reply.error.reason == "AssertionError"
    assert "first" in node.state.get_run_series_context(node.series).state, "as it was before the message"
