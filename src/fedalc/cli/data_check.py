"""What `fedalc data check` prints about a dataset, besides published numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

if TYPE_CHECKING:
    from fedalc.data.check import Check
    from fedalc.data.dataset import Dataset


def print_findings(console: Console, dataset: Dataset, name: str) -> None:
    """Print each finding with what to do about it."""
    from fedalc.data.findings import findings

    found = findings(dataset)
    if found:
        console.print("worth a look (fedalc trains on the data as they are):")
        for finding in found:
            console.print(f"  {finding.as_text()}\n    {finding.do}")
    else:
        console.print("no duplicates, no empty records, no label without training data or on nearly all records")
    console.print(f"train on it with: fedalc train --dataset {shlex.quote(name)}")


def as_json(dataset: Dataset, notes: Sequence[str], checks: Sequence[Check]) -> str:
    """Return what was found as JSON."""
    from fedalc.data.findings import findings

    held = dataset.train.labels.getnnz(axis=0)
    parties = getattr(dataset.train, "parties", None)
    answer: dict[str, Any] = {
        "dataset": dataset.name,
        "records": {name: len(split) for name, split in dataset.splits.items()},
        "features": dataset.feature_count,
        "labels": dataset.label_count,
        "positives": {"least": int(held.min()), "median": float(np.median(held)), "most": int(held.max())},
        "users": None if dataset.users is None else len(set(dataset.users)),
        "parties": None if parties is None else len(set(parties)),
        "notes": [*notes, *dataset.notes],
        "checks": [check._asdict() for check in checks],
        "findings": [asdict(finding) for finding in findings(dataset)],
    }
    return json.dumps(answer, ensure_ascii=False, indent=1)
