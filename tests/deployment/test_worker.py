"""What a worker does with one message, over a SuperNode's real API."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")
import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import Status
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from fedalc.deployment.processes import free_port
from fedalc.deployment.worker import answer
from tests.deployment.test_workers import Node

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> RecordDict:
    assert context.state.pop("first", None) is None, "the second message"
    context.state["first"] = message.content["task"]
    return Message(RecordDict({"echo": message.content["task"]}), reply_to=message)  # type: ignore[return-value]


class Served(Node):
    """A node whose API is served, with a run."""

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
        self.address = f"127.0.0.1:{free_port()}"
        service = create_app(state_factory=factory, superexec_auth_secret=b"a secret that nobody else has")
        port = int(self.address.partition(":")[2])
        self.server = uvicorn.Server(uvicorn.Config(service, host="127.0.0.1", port=port, log_level="warning"))
        self.thread = threading.Thread(target=self.server.run)


@pytest.fixture
def node() -> Iterator[Served]:
    served = Served()
    served.thread.start()
    while not served.server.started:
        time.sleep(0.01)
    yield served
    served.server.should_exit = True
    served.thread.join()


def test_an_answer_and_the_state_of_the_run_are_with_the_node(node: Served) -> None:
    task, message_id = node.fetch()
    token = node.state.claim_task(task.task_id)
    answer(app, node.address, token)
    (reply,) = node.state.get_messages_legacy(is_reply=True)
    assert reply.metadata.reply_to_message_id == message_id and not reply.has_error()
    assert node.status(task) == Status.FINISHED
    assert "first" in node.state.get_run_series_context(node.series).state
    assert message_id not in node.store


def test_an_error_is_answered_without_its_words_and_ends_the_worker(node: Served) -> None:
    answer(app, node.address, node.state.claim_task(node.fetch()[0].task_id))
    node.state.get_messages_legacy(is_reply=True)
    task, _ = node.fetch()
    with pytest.raises(AssertionError):
        answer(app, node.address, node.state.claim_task(task.task_id))
    (reply,) = node.state.get_messages_legacy(is_reply=True)
    assert reply.error.reason == "AssertionError"
    assert "first" in node.state.get_run_series_context(node.series).state, "as it was before the message"
