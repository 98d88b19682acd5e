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


FEW = 20
"""Up to this many labels are all listed."""
ENDS = 5  # of more labels, the most and the least frequent


def print_labels(console: Console, dataset: Dataset, every: bool) -> None:
    """Print how many records have each label: all labels if they are few, or `every` is asked for."""
    from fedalc.data.label_counts import label_counts
    from fedalc.report.plain_tables import PlainColumn, plain_table

    hidden = 0 if every or dataset.label_count <= FEW else dataset.label_count - 2 * ENDS
    counts = label_counts(dataset, ENDS if hidden else None)
    rows = [(one.name, *(f"{count:,}" for count in one.numbers)) for one in counts]
    if hidden:
        rows.insert(ENDS, ("…",) * len(rows[0]))
    headings = ("records of the label", *dataset.splits, *(["parties"] if dataset.train.parties is not None else []))
    columns = [
        PlainColumn(heading, cells, right=at > 0, wraps=at == 0)
        for at, (heading, cells) in enumerate(zip(headings, zip(*rows, strict=True), strict=True))
    ]
    console.print(plain_table(columns, console.width))
    if hidden:
        console.print(f"{hidden:,} labels in between; all: --labels")


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


def as_json(dataset: Dataset, notes: Sequence[str], checks: Sequence[Check], with_labels: bool = False) -> str:
    """Return what was found as JSON."""
    from fedalc.data.findings import findings
    from fedalc.data.label_counts import label_counts, shared

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
        "shared": None if (common := shared(dataset)) is None else asdict(common),
        "notes": [*notes, *dataset.notes],
        "checks": [check._asdict() for check in checks],
        "findings": [asdict(finding) for finding in findings(dataset)],
    }
    if with_labels:
        answer["labels_by_records"] = [asdict(one) for one in label_counts(dataset)]
    return json.dumps(answer, ensure_ascii=False, indent=1)
