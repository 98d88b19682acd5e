"""Messages between a server and its parties. Undecodable Flower messages are refused as the engine does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.common.serde import ProtoRecordDict, recorddict_from_proto, recorddict_to_proto

from fedalc.config.resolve import experiment
from fedalc.deployment.flower.answers import RECORD, check_question, exactly
from fedalc.deployment.flower.collecting import read_messages
from fedalc.deployment.flower.exchange import UNREADABLE
from fedalc.deployment.flower.introductions import read_introduction
from fedalc.deployment.flower.measuring import read_metrics
from fedalc.deployment.flower.norm_screen import bad_rows
from fedalc.deployment.flower.party_memory import check_unchanged
from fedalc.deployment.flower.party_trials import check_trial
from fedalc.deployment.flower.ranking import read_hits
from fedalc.deployment.flower.wire import (
    SEARCH,
    BadMessage,
    config,
    for_parties,
    pack,
    pack_all_rows,
    pack_theta,
    read_json,
    read_task,
    task,
    unpack,
    unpack_all_rows,
    unpack_theta,
)
from fedalc.engines.aggregation.lengths import norm
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import changed, changed_json, mutated
from tests.fuzz.registry import reader, workplace
from tests.labels.collection.problems import rows_of, sent

Tree = dict[str, dict[str, Any]]
KINDS = {"config": ConfigRecord, "metrics": MetricRecord}


def written(content: RecordDict) -> bytes:
    return bytes(recorddict_to_proto(content).SerializeToString())


def decoded(data: bytes) -> RecordDict:
    try:
        return recorddict_from_proto(ProtoRecordDict.FromString(data))
    except UNREADABLE:
        raise BadMessage("its answer cannot be read") from None


def as_tree(content: RecordDict) -> Tree:
    tree: Tree = {}
    for name, found in content.items():
        if isinstance(found, ArrayRecord):
            tree[name] = {key: [a.dtype, list(a.shape), a.stype, a.data] for key, a in found.items()}
        else:
            tree[name] = dict(found)
    return tree


def from_tree(tree: Any, like: RecordDict, rng: Random) -> RecordDict:
    """Return records of all values that fit into one; leave the others out."""
    made = RecordDict()
    for name, values in tree.items() if isinstance(tree, dict) else ():
        kind = type(like[name]) if name in like and rng.random() < 0.95 else rng.choice(list(KINDS.values()))
        found: Any = kind()
        for key, value in values.items() if isinstance(values, dict) else ():
            try:
                found[key] = _array(value) if kind is ArrayRecord else value
            except (TypeError, ValueError, OverflowError):
                continue
        made[str(name)] = found
    return made


def _array(value: Any) -> Array:
    dtype, shape, stype, data = value
    return Array(str(dtype), tuple(shape), str(stype), bytes(data) if isinstance(data, bytes) else str(data).encode())


def _reader(name: str, what: str, contents: list[RecordDict], read: Callable[[RecordDict], object]) -> Reader:
    seeds = [written(content) for content in contents]

    def make(_seed: bytes, rng: Random) -> bytes:
        content = rng.choice(contents)
        try:
            return written(from_tree(changed(as_tree(content), rng), content, rng))
        except (TypeError, ValueError, OverflowError, AttributeError):  # Flower cannot send it
            return mutated(rng.choice(seeds), seeds, rng)

    return Reader(name, what, seeds, lambda data: read(decoded(data)), make)


@cache
def _settings() -> Any:
    return experiment({"method": "fedalc", "dataset": "demo"}, overrides=['engine="flower"'])


def _introduction() -> RecordDict:
    labels = [row.tobytes() for row in rows_of("a", "b")]
    said = {
        "client": "party",
        "labels": labels,
        "counts": [3, 2],
        "held-out": [0, 1],
        "features": 20,
        "names": ["a", "b"],
    }
    return RecordDict({"introduction": ConfigRecord(said)})


@reader
def wire_introduction() -> Reader:
    return _reader("wire-introduction", "a party's introduction", [_introduction()], read_introduction)


@reader
def wire_label_sets() -> Reader:
    messages, who = sent("party", {"a": "xyz", "b": "yz"}), read_introduction(_introduction())
    arrays = {"pseudonyms": messages.pseudonyms, "digests": messages.digests, "labels": messages.labels}
    sender = ConfigRecord({"client": "party", "protocol": json.dumps(asdict(messages.protocol))})
    content = RecordDict({"messages": pack(arrays), "sender": sender})
    return _reader(
        "wire-label-sets", "a party's label sets", [content], lambda found: read_messages(found, who, who.counts, "")
    )


@reader
def wire_change() -> Reader:
    theta = [torch.zeros(4, 3), torch.ones(3)]
    rows = np.eye(2, 3, dtype=np.float32)
    outcome = ConfigRecord({"labels": [b"a" * 16, b"b" * 16], "loss": 0.5})
    content = RecordDict({"change": pack_theta(theta), "rows": pack({"rows": rows}), "outcome": outcome})

    def read(found: RecordDict) -> None:
        config(found, "outcome", {"labels": (list, bytes), "loss": float})
        norm(unpack_theta(found, "change", theta))
        if bad_rows(torch.from_numpy(unpack(found, "rows", {"rows": ("float32", (2, 3))})["rows"])):
            raise BadMessage("a row is not of length 1")

    return _reader("wire-change", "a party's change of a round", [content], read)


@reader
def wire_metrics() -> Reader:
    content = RecordDict({"metrics": MetricRecord({"score": 0.5, "loss": 0.25, "num-examples": 3})})
    return _reader(
        "wire-metrics", "a party's measurements", [content], lambda found: read_metrics(("score", "loss"), found)
    )


@reader
def wire_hits() -> Reader:
    hits = RecordDict({"hits": pack({"counts": np.array([1, 2, 3]), "gains": np.array([1.0, 1.5, 2.0])})})
    nothing = RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    most = np.array([4.0, 6, 6, 4, 4, 4])
    return _reader("wire-hits", "a party's hits", [hits, nothing], lambda found: read_hits(most, True, found))


@reader
def wire_all_rows() -> Reader:
    contents = [RecordDict({"all-rows": pack_all_rows(W)}) for W in (torch.eye(4)[:3], torch.ones(3, 4) / 2)]
    return _reader(
        "wire-all-rows", "all rows of W", contents, lambda found: unpack_all_rows(found, "all-rows", "float32", 3, 4)
    )


@reader
def wire_task() -> Reader:
    """A server's request to a party: settings as JSON, and arrays."""
    more: dict[str, Any] = {"labels": [b"a" * 16], "numbers": [3], "share": 0.1, "round": 2}
    content = RecordDict({"task": task(_settings(), "run-1", **more), "theta": pack_theta([torch.zeros(2, 2)])})
    tried = experiment({"method": "fedalc-exact"}, overrides=['engine="flower"'])
    trial = RecordDict({"task": task(tried, "run-1", **more, search=for_parties(tried)), "theta": content["theta"]})
    settings = json.loads(str(content["task"]["settings"]))  # type: ignore[index]

    def read(found: RecordDict) -> None:
        _, said = read_task(found, "cpu", share=float, labels=(list, bytes), numbers=(list, int), round=int)
        if said[SEARCH]:
            check_trial(read_json(said[SEARCH], "the settings"), read_json(said["settings"], "the settings"))
        unpack_theta(found, "theta", [torch.zeros(2, 2)])

    base = _reader("wire-task", "a server's request to a party", [content, trial], read)

    def make(seed: bytes, rng: Random) -> bytes:
        if rng.random() < 0.5:
            return base.make(seed, rng)  # type: ignore[misc]
        said = json.dumps(changed(settings, rng), default=str)
        asked = ConfigRecord({**dict(content["task"]), "settings": said})  # type: ignore[arg-type]
        return written(RecordDict({"task": asked, "theta": content["theta"]}))

    return Reader(base.name, base.what, base.seeds, base.read, make)


@reader
def wire_answer() -> Reader:
    """The id of the question in a reply, whatever else the reply contains."""
    said = {"kind": "train", "round": "2", "question": "q"}
    content = RecordDict({RECORD: ConfigRecord(said), "metrics": MetricRecord({"score": 0.5})})

    def read(found: RecordDict) -> None:
        check_question(found, "train", "2", "q")
        exactly(found, {"metrics": {"score"}})

    return _reader("wire-answer", "the question that a reply names", [content], read)


@reader
def party_memory() -> Reader:
    """A party's record of a run, in its own folder."""
    folder = workplace() / "party"
    file = folder / "runs" / "r.json"
    context = Context(1, 1, {"state": str(folder)}, RecordDict(), {})
    check_unchanged(context, "r", {"settings": "a" * 32}, "other settings")
    seed = file.read_bytes()

    def read(data: bytes) -> None:
        file.write_bytes(data)
        check_unchanged(context, "r", {"settings": "a" * 32, "shares": "b"}, "other settings")

    return Reader("party-memory", "a party's memory of a run", [seed], read, changed_json)
