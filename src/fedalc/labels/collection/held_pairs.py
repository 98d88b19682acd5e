"""The pairs of a record and a label that parties count, their places in tables of buckets, and parts of shared pairs.

For the collection by sums (docs/set-sizes.md): a simulation has the pairs of all parties, a real party its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.labels.collection.buckets import Tables
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.join import distinct

_MOST_EXACT_HOLDERS = 24  # lcm(1, …, 24) is below 2^33, so that n up to 2^31 fits


@dataclass(frozen=True)
class Held:
    """The different (record, label) pairs of each sender, by sender. `digests`: of each record; `record`, `label` and
    `sender`: of each pair; `entry`: the pair of each entry of the label matrix."""

    digests: np.ndarray
    record: np.ndarray
    label: np.ndarray
    sender: np.ndarray
    entry: np.ndarray
    row_record: np.ndarray  # of each instance
    row_sender: np.ndarray | None

    @classmethod
    def of(cls, digests: np.ndarray, labels: csr_matrix, senders: np.ndarray | None) -> Held:
        """`senders`: the sender of each instance, if several may have the same label. Otherwise each label has one, and
        their vectors are made together: the sum is the same."""
        rows = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
        different, row_record = distinct(digests)
        sender = np.zeros(len(rows), dtype=np.int64) if senders is None else senders[rows]
        pairs = (sender * len(different) + row_record[rows]) * labels.shape[1] + labels.indices
        pairs, entry = np.unique(pairs, return_inverse=True)
        held, label = np.divmod(pairs, labels.shape[1])
        sender, record = np.divmod(held, len(different))
        return cls(different, record, label, sender, entry, row_record, senders)

    @cached_property
    def by_sender(self) -> list[slice]:
        starts = np.flatnonzero(np.diff(self.sender, prepend=-1))
        return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(self.sender)], strict=True)]

    @property
    def fewest_labels(self) -> np.ndarray:
        """How many labels of each instance its own sender has: m cannot be less."""
        if self.row_sender is None:
            return np.ones(len(self.row_record), dtype=np.int64)
        own, counts = np.unique(self.sender * len(self.digests) + self.record, return_counts=True)
        row = self.row_sender * len(self.digests) + self.row_record
        place = np.searchsorted(own, row).clip(max=len(own) - 1)
        return np.where(own[place] == row, counts[place], 1)


def record_places(tables: Tables, hasher: Hasher, digests: np.ndarray) -> np.ndarray:
    """Return where records are counted."""
    return tables.places(hasher, "records", map(bytes, digests))


def pair_places(tables: Tables, hasher: Hasher, digests: np.ndarray, pseudonyms: np.ndarray) -> np.ndarray:
    """Return where pairs are counted: the digest of each one's record, the pseudonym of its label."""
    pairs = zip(digests, pseudonyms, strict=True)
    return tables.places(hasher, "pairs", (bytes(digest) + bytes(label) for digest, label in pairs))


def units(parties: int) -> int:
    """Return in how many units a pair is counted, so that each of its holders can count an equal part of it.

    >>> units(3), units(1)
    (6, 1)
    """
    return math.lcm(*range(1, min(parties, _MOST_EXACT_HOLDERS) + 1))


def whole_parts(holders: np.ndarray, unit: int) -> np.ndarray:
    """Return what each of the holders of a pair counts of it, in units."""
    return ((unit + holders // 2) // holders).astype(np.uint64)
