"""Messages out, replies in as they arrive: never more than a few in memory, whatever the number of parties."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

AT_ONCE = 4  # replies pulled at a time; each may be as large as θ
GRACE = 5.0  # seconds by which a message outlives the wait for its reply
REASONS = {
    2: "its app failed",
    3: "no answer in time",
    4: "its answer was lost",
    5: "its node is gone",
    8: "its app was ended in mid-work",
}


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
        if message_id is None:
            yield node, "the message could not be sent"
        else:
            waiting[message_id] = node
    deadline = time.monotonic() + timeout
    while waiting:
        arrived = False
        for start in range(0, len(ids := list(waiting)), AT_ONCE):
            for reply in grid.pull_messages(ids[start : start + AT_ONCE]):
                asked = waiting.pop(reply.metadata.reply_to_message_id, None)  # an error's sender may be the server
                if asked is not None:
                    arrived = True
                    yield asked, reply if reply.has_content() else _reason(reply)
        if waiting and time.monotonic() > deadline:
            break
        if waiting and not arrived:
            time.sleep(pause)
    for node in waiting.values():
        yield node, f"no answer within {timeout:g} seconds"


def _reason(reply: Message) -> str:
    code, said = reply.error.code, str(reply.error.reason or "")
    return REASONS.get(code, " ".join(said.split())[:200] or f"error {code}")
