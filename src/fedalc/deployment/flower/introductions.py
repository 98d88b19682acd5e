"""A party's answer to `query.hello`: who it is and what data it has."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.wire import BadMessage, config, read_json
from fedalc.errors import DataError
from fedalc.labels.collection.messages import PSEUDONYM_BYTES, Protocol, check_client_name, protocol_from

HELLO = "query.hello"
MOST = 1 << 31  # instances of a label, or features
LONGEST = 1000  # characters of a label's name
TEXTS = "texts"  # the record of a party with texts, before parties agree on features


@dataclass(frozen=True)
class Introduction:
    """`labels` are pseudonyms; `counts` and `held_out` count instances; `names` is empty or has one per label.

    A party that `has_texts`, whose features parties have yet to agree on, says only its name. `protocol`: how it hashes
    its instances, in a run without digests of them (`collection.by` sums, psi)."""

    client: str
    labels: list[bytes]
    counts: list[int]
    held_out: list[int]
    features: int
    names: list[str]
    has_texts: bool = False
    protocol: Protocol | None = None


def read_introduction(content: RecordDict, empty_labels: bool = False) -> Introduction:
    """`empty_labels`: whether a party may claim labels that it has no instance of."""
    if TEXTS in content:
        return _with_texts(content)
    wanted: dict[str, type | tuple[type, type]] = {
        "client": str,
        "labels": (list, bytes),
        "counts": (list, int),
        "held-out": (list, int),
        "features": int,
        "names": (list, str),
    }
    said_so, protocol = content.get("introduction"), None
    if isinstance(said_so, ConfigRecord) and "protocol" in said_so:
        wanted["protocol"] = str
    exactly(content, {"introduction": wanted})
    said = config(content, "introduction", wanted)
    labels, size = said["labels"], len(said["labels"])
    check_name(said["client"])
    if not size or len(set(labels)) != size or any(len(label) != PSEUDONYM_BYTES for label in labels):
        raise BadMessage("no labels, a label twice, or one that is not a pseudonym")
    for key in ("counts", "held-out"):
        if len(said[key]) != size or not all(0 <= count < MOST for count in said[key]):
            raise BadMessage(f"{key} are not one plausible number per label")
    have = [count + out > 0 for count, out in zip(said["counts"], said["held-out"], strict=True)]
    if not (empty_labels or all(have)):
        raise BadMessage("it claims a label that it has no instance of")
    if not any(said["counts"]):
        raise BadMessage("it has no instance to train on")
    if not 0 < said["features"] < MOST:
        raise BadMessage(f"{said['features']} is not a valid number of features")
    if said["names"] and (len(said["names"]) != size or not all(_is_name(name) for name in said["names"])):
        raise BadMessage("names are not one per label, or not printable")
    if "protocol" in said:
        try:
            protocol = protocol_from(read_json(said["protocol"], "its protocol"))
        except DataError as error:
            raise BadMessage(str(error)) from None
    counted = said["counts"], said["held-out"], said["features"], said["names"]
    return Introduction(said["client"], labels, *counted, protocol=protocol)


def _with_texts(content: RecordDict) -> Introduction:
    exactly(content, {TEXTS: ("client",)})
    client = config(content, TEXTS, {"client": str})["client"]
    check_name(client)
    return Introduction(client, [], [], [], 0, [], has_texts=True)


def check_name(client: str) -> None:
    try:
        check_client_name(client)
    except DataError as error:
        raise BadMessage(str(error)) from None


def _is_name(name: str) -> bool:
    return 0 < len(name) <= LONGEST and name.isprintable()
