"""Before round 1: ask parties for keyed digests of their instances, each with the pseudonym of its label."""

from __future__ import annotations

from flwr.app import RecordDict

from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.connections import Parties, content_of
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.wire import BadMessage, config, read_json, unpack
from fedalc.errors import DataError
from fedalc.labels.collection.messages import Messages, protocol_from


def collect(
    parties: Parties,
    kind: str,
    content: RecordDict,
    known: dict[int, Introduction],
    counts: dict[int, list[int]],
    otherwise: str,
    run: str,
) -> dict[int, Messages]:
    """Ask these nodes for digests of the instances with `counts`. `otherwise`: what the log says of bad answers."""
    exchange = parties.exchange(f"query.{kind}", 0)
    for node in counts:
        exchange.send(node, content)
    messages = {}
    for reply in exchange.replies():
        who = known[reply.node]
        try:
            messages[reply.node] = read_messages(content_of(reply), who, counts[reply.node], run)
        except (BadMessage, DataError) as error:
            parties.note(0, who.client, otherwise, str(error))
    return messages


def read_messages(content: RecordDict, who: Introduction, counts: list[int], run: str) -> Messages:
    """Return a party's messages: of exactly the labels it has instances of, at least one each."""
    exactly(content, {"sender": ("client", "protocol"), "messages": None})
    sender = config(content, "sender", {"client": str, "protocol": str})
    protocol = protocol_from(read_json(sender["protocol"], "its protocol"))
    if protocol.run != run:
        raise BadMessage(f"digests for run id {protocol.run or 'none'}, and this run's is {run or 'none'}")
    introduced = {label for label, count in zip(who.labels, counts, strict=True) if count}
    wanted = {
        "pseudonyms": ("uint8", (len(introduced), len(who.labels[0]))),
        "digests": ("uint8", (None, protocol.digest_bytes)),
        "labels": ("uint32", (None,)),
    }
    messages = Messages(protocol, who.client, **unpack(content, "messages", wanted))
    if {pseudonym.tobytes() for pseudonym in messages.pseudonyms} != introduced:
        raise BadMessage("the labels of its messages are not those of its introduction")
    if empty := len(messages.labels_without_messages):
        raise BadMessage(f"claims {empty} labels without a message")
    return messages
