"""Parties with files of their own, which share some labels and some records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedalc.data.dataset import Split
from fedalc.deployment.local import write_party
from tests.problems import random_split

NAMES = [f"label {u}" for u in range(7)]
HELD = {"east": [0, 1, 4], "north": [0, 1, 2, 3], "south": [2, 3, 5, 6]}  # party → labels; 0 to 3 are shared


def union(records: int = 60) -> Split:
    """Return the records of all parties, all different and each with a label."""
    split = random_split(records, 20, 7, seed=11)
    return split.rows(np.flatnonzero((split.labels.getnnz(axis=1) > 0) & (split.features.getnnz(axis=1) > 0)))


def rows_at(records: int, party: int) -> np.ndarray:
    """Return a party's records: two of each three, so that two parties have a third of them in common."""
    return np.flatnonzero(np.arange(records) % 3 != party)


def write_clinics(folder: Path, train: Split, held: Mapping[str, Sequence[int]] = HELD) -> Path:
    for number, (party, labels) in enumerate(held.items()):
        write_party(folder / party, train.rows(rows_at(len(train), number)), labels, [NAMES[u] for u in labels])
    return folder
