"""Parties' replies as they are read: those in order go on, the others are left out with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from flwr.app import Message, RecordDict

from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.wire import BadMessage

T = TypeVar("T")
Asked = dict[int, np.ndarray]
"""Party → its labels that a message is about."""
Replies = Iterable[tuple[int, Message | str]]
"""(node, its reply or why there is none)"""


def well_formed(
    parties: Parties, roster: Roster, round_number: int, replies: Replies, read: Callable[[RecordDict, int], T]
) -> Iterator[T]:
    """What `read` makes of a content and its party. A party whose reply it refuses is left out of the round."""
    party_of = {node: party for party, node in parties.node_of.items()}
    for node, reply in replies:
        party = party_of[node]
        try:
            if isinstance(reply, str):
                raise BadMessage(reply)
            value = read(reply.content, party)
        except BadMessage as error:
            parties.leave_out(round_number, roster.parties[party], str(error))
        else:
            yield value
