"""A grid in one process: the real client app answers real messages, which are serialized on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedalc.deployment.flower.answers import RECORD, sign_off
from fedalc.deployment.flower.client_app import app as client_app

Tamper = Callable[[Message, Message], Message | None]
"""From what a node was asked and its answer, another answer; or none: the node is dead."""


class LocalGrid(Grid):
    """`nodes` maps node ids to configurations. Nodes in `tampering` alter the app's answers."""

    def __init__(self, nodes: dict[int, dict[str, Any]], app: ClientApp = client_app) -> None:
        self.nodes = dict(nodes)
        self.app = app
        self.tampering: dict[int, Tamper] = {}
        self.states: dict[int, RecordDict] = {}  # what each node's app remembers of the run
        self.sent: dict[str, Message] = {}  # and not yet answered
        self.pushed: list[Message] = []  # all of them, where `keeps`
        self.keeps = False
        self.signs_off = True
        self.replies: list[Message] = []
        self.asked: list[tuple[int, str, str]] = []  # (node, kind, group), in the order of sending
        self.bytes_down: dict[int, int] = {}
        self.bytes_up: dict[int, int] = {}
        self.script: dict[int, dict[int, dict[str, Any]]] = {}  # from that look on (0, 1, …), these are the nodes
        self.before_push: Callable[[Message], None] = lambda message: None
        self._looks = itertools.count()
        self._never: set[str] = set()  # messages that are not answered
        self._numbers = itertools.count(1)
        # Messages are stamped with the task that makes them, which Flower's own processes set when they start.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self) -> Iterable[int]:
        self.nodes = dict(self.script.get(next(self._looks), self.nodes))
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.before_push(message)
            if message.metadata.dst_node_id not in self.nodes:
                ids.append("")  # as a SuperLink does
                continue
            copy, size = over_the_wire(message)
            number = f"message {next(self._numbers)}"
            copy.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            self.bytes_down[node] = self.bytes_down.get(node, 0) + size
            self.asked.append((node, message.metadata.message_type, message.metadata.group_id))
            self.sent[number] = copy
            if self.keeps:
                self.pushed.append(copy)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """A node works only when its reply is pulled, so that only pulled replies are in memory."""
        replies = []
        for number in message_ids:
            message = self.sent[number]
            node = message.metadata.dst_node_id
            if node not in self.nodes or number in self._never:
                continue
            context = Context(1, node, self.nodes[node], self.states.setdefault(node, RecordDict()), {})
            reply: Message | None = self.app(message, context)
            if node in self.tampering:
                reply = self._signed_off(self.tampering[node](message, reply), message)
            if reply is None:
                self._never.add(number)
                continue
            copy, size = over_the_wire(reply)
            self.bytes_up[node] = self.bytes_up.get(node, 0) + size
            del self.sent[number]
            if self.keeps:
                self.replies.append(copy)
            replies.append(copy)
        return replies

    def _signed_off(self, reply: Message | None, message: Message) -> Message | None:
        """Sign a reply that a test made by hand, unless it already has a signature record."""
        if self.signs_off and reply is not None and reply.has_content() and RECORD not in reply.content:
            sign_off(reply.content, message)
        return reply

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **keys: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **keys: Any) -> Iterable[Message]:
        raise NotImplementedError


def over_the_wire(message: Message) -> tuple[Message, int]:
    """Return the message as its receiver gets it, and its size in bytes on the way."""
    with no_object_id_recompute():  # as Flower sends it
        written = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        size = sum(map(len, written.values()))  # now: reading takes the parts away
        copy = inflate_object_from_contents(message.object_id, written)
    assert isinstance(copy, Message)
    return copy, size
