"""The labels that the inversion is tried on: some with one record, some with two, three and ten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Split
from fedalc.errors import DataError

SIZES = (1, 2, 3, 10)
EACH = 2  # labels of each size


@dataclass(frozen=True)
class Target:
    """A label with few records. `had`: how many it has in the data; the audit keeps only `records`."""

    label: int
    name: str
    records: np.ndarray  # row numbers
    had: int


def choose_targets(
    split: Split, names: Sequence[str], sizes: Sequence[int] = SIZES, each: int = EACH, seed: int = 0
) -> tuple[Split, list[Target]]:
    """Return the data in which some labels have these numbers of records, and these labels.

    Labels that have exactly that number come first, then those with the fewest more, of which all but so many records
    lose the label. A record without a feature is not chosen: there is nothing to find.
    """
    random = numpy_generator(seed, "audit targets")
    by_label, has_features = split.labels.tocsc(), np.diff(split.features.indptr) > 0
    held = {label: _held(by_label, label)[has_features[_held(by_label, label)]] for label in range(by_label.shape[1])}
    order = sorted(held, key=lambda label: (len(held[label]), label))
    targets: list[Target] = []
    for size in sorted(sizes, reverse=True):  # the largest first: any label with more can become a smaller one
        taken = {target.label for target in targets}
        for label in [label for label in order if len(held[label]) >= size and label not in taken][:each]:
            kept = np.sort(random.choice(held[label], size, replace=False))
            targets.append(Target(label, str(names[label]), kept, len(_held(by_label, label))))
    if not targets:
        raise DataError("no label has a record with a feature, so there is nothing to invert")
    return _cut(split, targets), sorted(targets, key=lambda target: (len(target.records), target.label))


def _held(by_label: csr_matrix, label: int) -> np.ndarray:
    return np.asarray(by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]])


def _cut(split: Split, targets: Sequence[Target]) -> Split:
    """Return the data in which only these records have the targets' labels."""
    pairs, kept = split.labels.tocoo(), np.ones(split.labels.nnz, dtype=bool)
    for target in targets:
        kept &= (pairs.col != target.label) | np.isin(pairs.row, target.records)
    labels = csr_matrix((pairs.data[kept], (pairs.row[kept], pairs.col[kept])), shape=split.labels.shape)
    return Split(split.features, labels)
