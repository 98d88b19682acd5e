"""What a party remembers of the runs that it answers: a server may not say one thing now and another later.

Run ids, the settings of each, and what the server told of labels and instances: as digests, in one small file per run,
in the party's own folder. A party without a folder (a plain flower-supernode without `state`) has Flower's memory of
the run instead, which ends with the node's process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fedalc.core.atomic_files import write_text
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import FedalcError

_RECORD = "fedalc-runs"


def fingerprint(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()[:32]


def check_same_run(context: Context, run: str) -> None:
    """One Flower run is one run of fedalc. (One that is resumed is another Flower run with the same run id.)"""
    record = context.state.get(f"{_RECORD}-id")
    if not isinstance(record, ConfigRecord):
        context.state[f"{_RECORD}-id"] = ConfigRecord({"run": run})
    elif record["run"] != run:
        raise BadMessage(f"says run id {run[:70]!r}, and this run began with {str(record['run'])[:70]!r}")


def check_unchanged(context: Context, run: str, facts: Mapping[str, str], what: str) -> None:
    """These facts of a run are what they were when it was first told of them. `what`: in words, for the refusal."""
    with _remembered(context, run) as known:
        if any(known.setdefault(key, value) != value for key, value in facts.items()):
            raise BadMessage(what)


@contextmanager
def _remembered(context: Context, run: str) -> Iterator[dict[str, str]]:
    """Kept if something new was learnt and nothing went wrong."""
    folder = context.node_config.get("state")
    if folder is None:
        record = context.state.get(_RECORD)
        known = json.loads(str(record.get(run, "{}"))) if isinstance(record, ConfigRecord) else {}
        before = len(known)
        yield known
        if len(known) > before:
            others = dict(record) if isinstance(record, ConfigRecord) else {}
            context.state[_RECORD] = ConfigRecord({**others, run: json.dumps(known)})
        return
    file = Path(str(folder)) / "runs" / f"{run or '_none'}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with (file.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # answers to several messages may be made at once
            known = _read(file)
            before = len(known)
            yield known
            if len(known) > before:
                write_text(file, json.dumps(known))
    except (OSError, ValueError, RecursionError) as error:
        raise FedalcError(f"{file}: what this party remembers of the run cannot be read or kept: {error}") from None


def _read(file: Path) -> dict[str, str]:
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
        raise ValueError("not a table of digests")
    return known
