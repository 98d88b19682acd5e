"""What a party remembers of each run, so that a server cannot say one thing now and another later.

It keeps digests of a run's settings and of what the server sent about labels and instances: one small file per run id,
in the party's state folder. A party without that folder (a plain flower-supernode without `state`) uses Flower's
context of the run instead, which ends with the node's process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import ConfigRecord, Context

from fedalc.core.atomic_files import write_text
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import FedalcError

_RECORD = "fedalc-runs"


def fingerprint(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()[:32]


def check_same_run(context: Context, run: str) -> None:
    """Refuse a second run id within one Flower run. (A resumed run is another Flower run with the same run id.)"""
    record = context.state.get(f"{_RECORD}-id")
    if not isinstance(record, ConfigRecord):
        context.state[f"{_RECORD}-id"] = ConfigRecord({"run": run})
    elif record["run"] != run:
        raise BadMessage(f"says run id {run[:70]!r}, and this run began with {str(record['run'])[:70]!r}")


def check_unchanged(context: Context, run: str, facts: Mapping[str, str], problem: str) -> None:
    """Refuse facts that differ from what the run said first. `problem`: the words of the refusal."""
    with remembered(context, run) as known:
        if any(known.setdefault(key, value) != value for key, value in facts.items()):
            raise BadMessage(problem)


def check_numbers(context: Context, question: dict[str, Any], label_count: int) -> None:
    """Among so many, each label has one number in a run: by that it finds its own weight, row and count among those of
    all parties. (If a party is left out before anything is unmasked, there are fewer.)"""
    numbers = zip(question["labels"], question["numbers"], strict=True)
    facts = {f"number of {label_count} {label.hex()}": str(number) for label, number in numbers}
    check_unchanged(context, question["run"], facts, "gives this party's labels other numbers than before in this run")


def check_asked(context: Context, run: str, kind: str, what: str, check: Callable[[int], None]) -> None:
    """Count different questions of a kind in a run, this one included, and let `check` refuse the number."""
    with remembered(context, run) as known:
        if f"{kind} {what}" not in known:
            check(1 + sum(key.startswith(f"{kind} ") for key in known))
            known[f"{kind} {what}"] = ""


@contextmanager
def remembered(context: Context, run: str) -> Iterator[dict[str, str]]:
    """Yield the known facts of a run, under a lock. What the caller changes is saved, unless it raises."""
    folder = context.node_config.get("state")
    if folder is None:
        record = context.state.get(_RECORD)
        known = json.loads(str(record.get(run, "{}"))) if isinstance(record, ConfigRecord) else {}
        before = dict(known)
        yield known
        if known != before:
            others = dict(record) if isinstance(record, ConfigRecord) else {}
            context.state[_RECORD] = ConfigRecord({**others, run: json.dumps(known)})
        return
    file = Path(str(folder)) / "runs" / f"{run or '_none'}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.parent / ".lock"):  # several answers may be in progress at once
            known = _read(file)
            before = dict(known)
            yield known
            if known != before:
                write_text(file, json.dumps(known))
    except (OSError, ValueError, RecursionError) as error:
        raise FedalcError(f"{file}: this party's record of the run cannot be read or written: {error}") from None


def _read(file: Path) -> dict[str, str]:
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
        raise ValueError("not a table of digests")
    return known
