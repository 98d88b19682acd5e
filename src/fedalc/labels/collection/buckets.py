"""Tables of bucket counts: how often a record or a pair occurs at all parties, from sums alone (docs/set-sizes.md).

Each party adds 1 for each of its pairs (record, label) at one bucket of each table. The buckets of a record follow from
its digest under the parties' key. Added up over the parties, a record's bucket holds its number of labels m, plus those
of records that share the bucket. The smallest value over the tables is m, unless the record shares a bucket in all.

A vector has one number per bucket, table after table, without a sign; sums are modulo 2^64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedalc.errors import FedalcError
from fedalc.labels.collection.hashing import Hasher

MOST_TABLES = 8
"""One HMAC-SHA512 has 64 bytes: eight buckets."""
FEWEST_BUCKETS = 4096
"""Of a table: to estimate the number of records to 1 %, and so that none of a few hundred has a wrong set size."""
COUNTERS_PER_WORD = 4
_LARGEST_COUNT = (1 << 16) - 1


@dataclass(frozen=True)
class Tables:
    """How many tables, and how many buckets each of them has."""

    tables: int
    buckets: int

    @classmethod
    def for_records(cls, records: int, collisions: float) -> Tables:
        """Return the fewest buckets in all with which, of this many records, a share of at most `collisions` is
        expected to share a bucket in every table. Small tables cost nothing, so they are made larger.

        >>> Tables.for_records(15_539, 0.005), Tables.for_records(300, 0.005)
        (Tables(tables=8, buckets=21433), Tables(tables=8, buckets=4096))
        """
        choices = [cls(tables, _buckets(records, collisions ** (1 / tables))) for tables in range(1, MOST_TABLES + 1)]
        fewest = min(choices, key=lambda choice: choice.size)
        return max(fewest, cls(MOST_TABLES, FEWEST_BUCKETS), key=lambda choice: choice.size)

    @property
    def size(self) -> int:
        """The numbers in a vector."""
        return self.tables * self.buckets

    def collision_rate(self, records: int) -> float:
        """Return the probability that a record shares a bucket with another one in every table.

        Each of the other records hits a record's bucket with probability 1/buckets, in each table independently.
        """
        alone = math.exp((max(records, 1) - 1) * math.log1p(-1 / self.buckets)) if self.buckets > 1 else records <= 1
        return float((1 - alone) ** self.tables)

    def places(self, hasher: Hasher, purpose: str, contents: Iterable[bytes]) -> np.ndarray:
        """Return where each content is counted in the vector: one place in each table, under the key."""
        numbers = hasher.numbers(f"buckets/{purpose}", contents)[:, : self.tables]
        return (numbers % np.uint64(self.buckets)).astype(np.int64) + self.buckets * np.arange(self.tables)

    def vector(self, places: np.ndarray, amounts: np.ndarray | int = 1) -> np.ndarray:
        """Return what a party adds for its contents: an amount at all places of each."""
        spread = np.broadcast_to(np.asarray(amounts, dtype=np.uint64).reshape(-1, 1), places.shape)
        return totals(places.ravel(), spread.ravel(), self.size)

    def smallest(self, summed: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the smallest of the sums at the places of each content. It is never too small."""
        return np.asarray(summed[places].min(axis=1))

    def records(self, summed: np.ndarray) -> float:
        """Estimate how many different contents were counted, from the share of empty buckets (linear counting).

        The mean over the tables; a table's standard error is about records/√(2·buckets), if most buckets are empty.
        """
        if self.buckets == 1:
            return float((summed > 0).any())
        empty = (summed.reshape(self.tables, self.buckets) == 0).sum(axis=1).clip(min=0.5)
        return float(np.mean(np.log(empty / self.buckets) / math.log1p(-1 / self.buckets)))


def _buckets(records: int, rate: float) -> int:
    """Return the fewest buckets of a table in which a record shares its bucket with probability at most `rate`."""
    if records <= 1:
        return 1
    return max(2, math.ceil(-1 / math.expm1(math.log1p(-rate) / (records - 1)))) if rate < 1 else 1


def totals(places: np.ndarray, amounts: np.ndarray, size: int) -> np.ndarray:
    """Return the vector that has at each place the sum of its amounts."""
    vector = np.zeros(size, dtype=np.uint64)
    np.add.at(vector, places, amounts)
    return vector


def packed(counts: np.ndarray) -> np.ndarray:
    """Return counts in words of 64 bits, four in each: the sum of words is the words of sums, if these are < 2^16."""
    if counts.max(initial=0) > _LARGEST_COUNT:
        raise FedalcError(f"a bucket counts {counts.max()} labels, and at most {_LARGEST_COUNT} fit; use the join")
    counters = np.zeros(-(-len(counts) // COUNTERS_PER_WORD) * COUNTERS_PER_WORD, dtype="<u2")
    counters[: len(counts)] = counts
    return counters.view("<u8").astype(np.uint64)


def unpacked(words: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` counts in these words."""
    return words.astype("<u8").view("<u2")[:size].astype(np.uint64)
