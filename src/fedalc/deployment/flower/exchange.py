"""Send messages to nodes, one after another, and take the replies as they arrive.

At most one message and one reply are in memory at a time, whatever the number of parties.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import flwr.superlink.grid.http_grid as http_grid
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedalc.deployment.flower.answers import check_question
from fedalc.deployment.flower.wire import BadMessage
from fedalc.deployment.pauses import SHORTEST, pause_after

EARLY = 0.8  # of the time of the first answer to the last questions of a kind: no answer is expected before
GRACE = 5.0  # seconds by which a message outlives the wait for its reply
LATE = 3  # Flower's error code
REASONS = {
    2: "its app failed",
    LATE: "no answer in time",
    4: "its answer was lost",
    5: "its node is gone",
    8: "its app was stopped while it worked",
}
# Flower raises these when it decodes a malformed reply. Errors of its own network code (httpx) are others.
UNREADABLE = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, MemoryError, DecodeError,
)  # fmt: skip

Wait = Callable[[float], float]
"""From the seconds that the slowest other node took, the seconds to wait for this node."""


@dataclass(frozen=True)
class Reply:
    """What a node answered, or the `problem` in place of an answer."""

    node: int
    content: RecordDict | None = None
    problem: str = ""
    seconds: float | None = None  # until it arrived; None if nothing arrived in time
    late: bool = False


class Exchange:
    """Messages of one kind and round. First `send` all of them, then read the `replies`. `soonest`: from a kind, the
    seconds until the first answer came last time; it saves looks that find nothing, and is brought up to date."""

    def __init__(
        self,
        grid: Grid,
        kind: str,
        round_number: int,
        timeout: float,
        pause: float = 1.0,
        soonest: dict[str, float] | None = None,
    ) -> None:
        self.grid = grid
        self.kind = kind
        self.round_number = round_number
        self.timeout = timeout
        self.pause = pause  # at most, in seconds, between two looks for replies
        self.soonest = {} if soonest is None else soonest
        self._waiting: dict[str, int] = {}  # message id → node
        self._unsent: list[int] = []
        self._last_sent = time.monotonic()

    def send(self, node: int, content: RecordDict) -> None:
        """Send one message now. Messages collected first would take the memory of all parties' rows and θ."""
        ttl = self.timeout + GRACE
        message = Message(content, node, self.kind, ttl=ttl, group_id=str(self.round_number))
        message_id = next(iter(self.grid.push_messages([message])), None)
        if message_id:
            self._waiting[message_id] = node
        else:  # the node has disconnected since its id was listed
            self._unsent.append(node)
        self._last_sent = time.monotonic()

    def replies(self, waits: Mapping[int, Wait] | None = None) -> Iterator[Reply]:
        """Yield one reply per message, in order of arrival.

        The wait ends `timeout` seconds after the last message was sent. Flower drops replies that arrive later. For
        nodes in `waits` it may end earlier, once all other nodes have answered.
        """
        for node in self._unsent:
            yield Reply(node, problem="the message could not be sent")
        hurried = {node: wait for node, wait in (waits or {}).items() if node in self._waiting.values()}
        if len(hurried) == len(self._waiting):
            hurried = {}  # there are no others to compare with
        slowest, first = 0.0, True
        if self._waiting:
            time.sleep(max(0.0, EARLY * self.soonest.get(self.kind, 0.0) - self._elapsed))
        while self._waiting:
            is_over, arrived, took = self._elapsed > self.timeout, False, 0.0
            for message_id in list(self._waiting):
                before = self._elapsed
                reply = self._pull(message_id)
                took += self._elapsed - before
                if reply is not None:
                    arrived = True
                    del self._waiting[message_id]
                    if first:
                        self.soonest[self.kind], first = self._elapsed, False
                    if reply.node not in hurried:
                        slowest = max(slowest, self._elapsed)
                    yield reply
            if is_over:
                break
            if all(node in hurried for node in self._waiting.values()):
                for message_id, node in list(self._waiting.items()):
                    if self._elapsed > (seconds := hurried[node](slowest)):
                        del self._waiting[message_id]
                        why = f"no answer within {seconds:.3g} seconds, a shorter wait because it was late before"
                        yield Reply(node, problem=why, late=True)
            if self._waiting and not arrived:
                time.sleep(pause_after(self._elapsed, self.pause, took))
        for node in self._waiting.values():
            yield Reply(node, problem=f"no answer within {self.timeout:g} seconds", late=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._last_sent

    def _pull(self, message_id: str) -> Reply | None:
        """Return the reply to a message, or None if there is none yet.

        Pulls one at a time: each may be as large as θ, and one that Flower cannot decode makes the whole pull fail.
        """
        node = self._waiting[message_id]
        try:
            pulled = list(self.grid.pull_messages([message_id]))
        except UNREADABLE:
            return Reply(node, problem="its answer cannot be read", seconds=self._elapsed)
        # By the question's id, as the sender of an error may be the server.
        message = next((reply for reply in pulled if reply.metadata.reply_to_message_id == message_id), None)
        if message is None:
            return None
        if not message.has_content() or not isinstance(message.content, RecordDict):
            if message.has_error() and message.error.code == LATE:
                return Reply(node, problem=REASONS[LATE], late=True)
            return Reply(node, problem=_problem(message), seconds=self._elapsed)
        try:
            check_question(message.content, self.kind, str(self.round_number), message_id)
        except BadMessage as error:
            return Reply(node, problem=str(error), seconds=self._elapsed)
        return Reply(node, message.content, seconds=self._elapsed)


def pull_soon() -> None:
    """Look for the rest of an answer that is still on its way soon again, not after Flower's second."""
    vars(http_grid)["pull_objects"] = partial(pull_objects, initial_backoff=SHORTEST)


def _problem(reply: Message) -> str:
    if not reply.has_error():
        return "its answer is empty"
    code, reason = reply.error.code, str(reply.error.reason or "")
    return REASONS.get(code, " ".join(reason.split())[:200] or f"error {code}")
