"""How many records have each label, and what parties have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedalc.data.dataset import Dataset
from fedalc.data.records import record_numbers


@dataclass(frozen=True)
class LabelCount:
    """A label's number of records in each split, and of parties that have some of its training records."""

    name: str
    records: Mapping[str, int]
    parties: int | None = None

    @property
    def numbers(self) -> list[int]:
        return [*self.records.values(), *([] if self.parties is None else [self.parties])]


@dataclass(frozen=True)
class Shared:
    """Training records, of all different ones, and labels that several parties have."""

    records: int
    different: int
    labels: tuple[str, ...]


def label_counts(dataset: Dataset, ends: int | None = None) -> list[LabelCount]:
    """Return the counts of all labels, or of the `ends` most and as many least frequent ones; the most frequent in
    train first. A record counts once at each party."""
    counts = {name: split.labels.getnnz(axis=0) for name, split in dataset.splits.items()}
    parties = _parties_of_labels(dataset)
    order = np.argsort(-counts["train"], kind="stable").tolist()
    return [
        LabelCount(
            dataset.label_names[label],
            {name: int(count[label]) for name, count in counts.items()},
            None if parties is None else int(parties[label]),
        )
        for label in (order if ends is None or len(order) <= 2 * ends else order[:ends] + order[-ends:])
    ]


def shared(dataset: Dataset) -> Shared | None:
    """Return what several parties have; None if the dataset has no parties."""
    parties = _parties_of_labels(dataset)
    if parties is None:
        return None
    record, party = record_numbers(dataset.train.features), _party(dataset)
    holders = np.bincount(np.unique(np.stack([record, party]), axis=1)[0])
    labels = tuple(dataset.label_names[label] for label in np.flatnonzero(parties > 1))
    return Shared(int((holders > 1).sum()), int((holders > 0).sum()), labels)


def _party(dataset: Dataset) -> np.ndarray:
    return np.unique(dataset.train.parties or (), return_inverse=True)[1]


def _parties_of_labels(dataset: Dataset) -> np.ndarray | None:
    """Return how many parties have each label."""
    if dataset.train.parties is None:
        return None
    row, label = dataset.train.labels.nonzero()
    held = np.unique(np.stack([_party(dataset)[row], label]), axis=1)[1]
    return np.bincount(held, minlength=dataset.label_count)
