"""Messages out, replies in as they arrive: never more than a few in memory, whatever the number of parties."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedalc.deployment.flower.answers import check_question
from fedalc.deployment.flower.wire import BadMessage

AT_ONCE = 1  # replies pulled at a time; each may be as large as θ, and one that cannot be read takes the others along
GRACE = 5.0  # seconds by which a message outlives the wait for its reply
LATE = 3  # Flower's code
REASONS = {
    2: "its app failed",
    LATE: "no answer in time",
    4: "its answer was lost",
    5: "its node is gone",
    8: "its app was ended in mid-work",
}
# What Flower raises when it puts a reply together that somebody has made up. Its own troubles (httpx) are others.
UNREADABLE = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, MemoryError, DecodeError,
)  # fmt: skip


class Late(str):
    """No reply, and the reason is that it took too long."""


class Asked(NamedTuple):
    node: int
    kind: str
    group: str


Wait = Callable[[float], float]
"""From how long the slowest of the others took, how long to wait, both in seconds."""


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    pause: float = 1.0,
    hurried: Mapping[int, Wait] | None = None,
    answered: Callable[[int, float], None] = lambda node, seconds: None,
) -> Iterator[tuple[int, Message | str]]:
    """(node, its reply), in the order of arrival; in place of a reply that did not come, the reason why.

    Whoever has not answered within `timeout` seconds of the last message's sending is not waited for any longer. Its
    late reply is dropped by Flower. For nodes that are `hurried` the wait may end earlier, when all others have
    answered. `answered` hears who has, and after how many seconds.
    """
    waiting: dict[str, Asked] = {}
    for message in messages:  # one by one: together they would be as large as all parties' rows and θ
        node = message.metadata.dst_node_id
        message_id = next(iter(grid.push_messages([message])), None)
        if message_id:
            waiting[message_id] = Asked(node, message.metadata.message_type, message.metadata.group_id)
        else:  # empty where the node has gone since we looked
            yield node, "the message could not be sent"
    began, slowest = time.monotonic(), 0.0
    hurried = {asked.node: (hurried or {})[asked.node] for asked in waiting.values() if asked.node in (hurried or {})}
    if len(hurried) == len(waiting):
        hurried = {}  # there are no others
    while waiting:
        late, arrived = time.monotonic() - began > timeout, False
        for start in range(0, len(ids := list(waiting)), AT_ONCE):
            for message_id, reply in _pulled(grid, ids[start : start + AT_ONCE]):
                asked = waiting.pop(message_id, None)
                if asked is not None:
                    arrived, took = True, time.monotonic() - began
                    if not isinstance(reply, Late):
                        answered(asked.node, took)
                    if asked.node not in hurried:
                        slowest = max(slowest, took)
                    yield asked.node, _checked(reply, asked, message_id)
        if late:
            break
        if all(asked.node in hurried for asked in waiting.values()):
            for message_id, (node, *_) in list(waiting.items()):
                if time.monotonic() - began > (patience := hurried[node](slowest)):
                    del waiting[message_id]
                    yield node, Late(f"no answer within {patience:.3g} seconds, a shorter wait as it was late before")
        if waiting and not arrived:
            time.sleep(pause)
    for node, *_ in waiting.values():
        yield node, Late(f"no answer within {timeout:g} seconds")


def _checked(reply: Message | str, asked: Asked, message_id: str) -> Message | str:
    if isinstance(reply, str):
        return reply
    try:
        check_question(reply.content, asked.kind, asked.group, message_id)
    except BadMessage as error:
        return str(error)
    return reply


def _pulled(grid: Grid, ids: list[str]) -> Iterator[tuple[str, Message | str]]:
    """The id of the message that was answered (an error's sender may be the server), and the answer."""
    try:
        replies = list(grid.pull_messages(ids))
    except UNREADABLE:
        yield from ((message_id, "its answer cannot be read") for message_id in ids)
        return
    for reply in replies:
        usable = reply.has_content() and isinstance(reply.content, RecordDict)
        yield reply.metadata.reply_to_message_id, reply if usable else _reason(reply)


def _reason(reply: Message) -> str:
    if not reply.has_error():
        return "its answer is empty"
    code, said = reply.error.code, str(reply.error.reason or "")
    if code == LATE:
        return Late(REASONS[LATE])
    return REASONS.get(code, " ".join(said.split())[:200] or f"error {code}")
