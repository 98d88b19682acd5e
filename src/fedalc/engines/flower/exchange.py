"""Messages out, replies in as they arrive: never more than a few in memory, whatever the number of parties."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

AT_ONCE = 1  # replies pulled at a time; each may be as large as θ, and one that cannot be read takes the others along
GRACE = 5.0  # seconds by which a message outlives the wait for its reply
REASONS = {
    2: "its app failed",
    3: "no answer in time",
    4: "its answer was lost",
    5: "its node is gone",
    8: "its app was ended in mid-work",
}
# What Flower raises when it puts a reply together that somebody has made up. Its own troubles (httpx) are others.
UNREADABLE = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, MemoryError, DecodeError,
)  # fmt: skip


def exchange(
    grid: Grid, messages: Iterable[Message], timeout: float, pause: float = 1.0
) -> Iterator[tuple[int, Message | str]]:
    """(node, its reply), in the order of arrival; in place of a reply that did not come, the reason why.

    Whoever has not answered within `timeout` seconds of the last message's sending is not waited for any longer. Its
    late reply is dropped by Flower.
    """
    waiting: dict[str, int] = {}
    for message in messages:  # one by one: together they would be as large as all parties' rows and θ
        node = message.metadata.dst_node_id
        message_id = next(iter(grid.push_messages([message])), None)
        if message_id:
            waiting[message_id] = node
        else:  # empty where the node has gone since we looked
            yield node, "the message could not be sent"
    deadline = time.monotonic() + timeout
    while waiting:
        late, arrived = time.monotonic() > deadline, False
        for start in range(0, len(ids := list(waiting)), AT_ONCE):
            for message_id, reply in _pulled(grid, ids[start : start + AT_ONCE]):
                asked = waiting.pop(message_id, None)
                if asked is not None:
                    arrived = True
                    yield asked, reply
        if late:
            break
        if waiting and not arrived:
            time.sleep(pause)
    for node in waiting.values():
        yield node, f"no answer within {timeout:g} seconds"


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
    return REASONS.get(code, " ".join(said.split())[:200] or f"error {code}")
