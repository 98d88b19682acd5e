"""A party's worker: a process with libraries and data loaded, which answers messages one after another.

It does what Flower's `flwr-clientapp` does for one message, and asks the node the same things, but over a channel and
not over HTTP. It unpacks no app and loads no code by name: it runs the client app of the fedalc that the party has
installed, and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from fedalc.deployment.processes import end_with_parent

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

PRELOADED = ["fedalc.deployment.flower.client_app", "flwr.supernode.runtime.run_clientapp"]
"""What the process that workers are forked from imports: no data, no keys, no threads."""
DONE = b"done"


def work(channel: Connection) -> None:
    """Answer a message whenever the node says so, until it closes the channel."""
    end_with_parent()
    from flwr.supercore.utils import disable_process_dumping

    from fedalc.deployment.flower.client_app import app
    from fedalc.deployment.flower.kept_party import keep_party

    disable_process_dumping(strict=False)  # no other program of this user reads its memory, which has data and key
    keep_party()
    with contextlib.suppress(EOFError):
        while channel.recv_bytes():
            answer(app, NodeClient(channel))
            channel.send_bytes(DONE)


def answer(app: ClientApp, node: Any) -> None:
    """Fetch the node's message, and give it the answer. Raises if the app does, after it has said so."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    message, context, _, _ = pull_task_input(node)
    try:
        reply = app(message=message, context=context)
    except Exception as error:
        problem = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, type(error).__name__)
        push_message(node, Message(problem, reply_to=message), context)
        push_task_output(node, None, SubStatus.FAILED, type(error).__name__)
        raise
    push_message(node, reply, context)
    push_task_output(node, context, SubStatus.COMPLETED, "")


class NodeClient:
    """Stands for Flower's client of a node's API: `PullObject(request)` and so on, for the message at hand."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._turn = channel, threading.Lock()  # Flower pulls objects in threads

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        reply = calls()[name][1]

        def call(request: Any) -> Any:
            with self._turn:
                self._channel.send_bytes(name.encode() + b"\n" + request.SerializeToString())
                return reply.FromString(self._channel.recv_bytes())

        return call


def serve(asked: bytes, state: Any, task: Any) -> bytes:
    """At the node: return what a worker asked for. It gets no other task's."""
    from flwr.supernode.servicer.runtime import runtime_handlers

    name, _, body = asked.partition(b"\n")
    request, _, handler = calls()[name.decode()]
    response = getattr(runtime_handlers, handler)(request.FromString(body), state, task)
    return bytes(response.SerializeToString())


def calls() -> dict[str, tuple[Any, Any, str]]:
    """Return all that a worker may ask of its node: request, reply, and what Flower's node does about it."""
    from flwr.proto import message_pb2, runtime_pb2

    protocol: Any = runtime_pb2
    objects: Any = message_pb2
    return {
        "PullTaskInput": (protocol.PullTaskInputRequest, protocol.PullTaskInputResponse, "pull_task_input"),
        "PullMessages": (protocol.PullAppMessagesRequest, protocol.PullAppMessagesResponse, "pull_messages"),
        "PullObject": (objects.PullObjectRequest, objects.PullObjectResponse, "pull_object"),
        "ConfirmMessageReceived": (
            objects.ConfirmMessageReceivedRequest,
            objects.ConfirmMessageReceivedResponse,
            "confirm_message_received",
        ),
        "PushMessages": (protocol.PushAppMessagesRequest, protocol.PushAppMessagesResponse, "push_messages"),
        "PushObject": (objects.PushObjectRequest, objects.PushObjectResponse, "push_object"),
        "PushTaskOutput": (protocol.PushTaskOutputRequest, protocol.PushTaskOutputResponse, "push_task_output"),
    }
