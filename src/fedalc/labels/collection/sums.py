"""Simulate the collection by sums: n and m from vectors that are added up over the parties (docs/set-sizes.md).

The server never has a label set, or a digest. It learns the sums, which it sends to the parties; with
`set_size = "expected"` it keeps them, and tells the parties one mean.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import CollectionSettings
from fedalc.labels.collection.buckets import FEWEST_BUCKETS, Tables, packed, totals, unpacked
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.held_pairs import Held, pair_places, record_places, units, whole_parts
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.simulate import hashed

SetSize = Literal["exact", "expected", "ignored"]
Sum = Callable[[Iterable[np.ndarray]], np.ndarray]
"""Adds up the parties' vectors, modulo 2^64. All that the server sees of them is the result."""


def plain_sum(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """Add up vectors in one process, without masks."""
    total: np.ndarray | None = None
    for vector in vectors:
        total = vector if total is None else total + vector
    assert total is not None
    return total


@dataclass(frozen=True)
class Counted:
    """`set_sizes`: m of every instance, in the order of the data, if parties learn it. `holders`: how many parties have
    each (instance, label) pair, if several may. `mean_set_size`: Σ n / N, if the server tells it."""

    counts: np.ndarray
    set_sizes: np.ndarray | None
    holders: np.ndarray | None
    mean_set_size: float | None
    bytes_up: int
    bytes_down: int
    facts: dict[str, Any]


@dataclass
class Exchange:
    """Adds up the senders' vectors, and counts the numbers that each sender sends and receives."""

    add: Sum = plain_sum
    sent: int = 0
    received: int = 0

    def sum(self, vectors: Iterable[np.ndarray], told: bool = False) -> np.ndarray:
        """Return the sum. `told`: the server sends it to the senders."""
        total = self.add(vectors)
        self.sent, self.received = self.sent + len(total), self.received + len(total) * told
        return total


def count(
    settings: CollectionSettings,
    features: csr_matrix,
    labels: csr_matrix,
    names: Sequence[str],
    encoder: SharedEncoder,
    set_size: SetSize,
    senders: np.ndarray | None = None,
    add: Sum = plain_sum,
    hasher: Hasher | None = None,
) -> Counted:
    """Return what sums tell the server and the parties. `set_size`: as in the settings, or "ignored" if no loss uses m.

    `senders`: the number of each instance's sender, if several senders may have the same label. `hasher`: the clients',
    if they have one.
    """
    hasher, exchange = hasher or simulated_hasher(settings, encoder.seed), Exchange(add)
    digests, kind = hashed(settings, hasher, features, encoder)
    held = Held.of(digests, labels, senders)
    facts: dict[str, Any] = {
        "by": "sums",
        "algorithm": settings.algorithm,
        "identity": kind,
        "digest_bytes": settings.digest_bytes,
    }
    holders, sizes, mean, unit = None, None, None, 1
    amounts = np.ones(len(held.label), dtype=np.uint64)
    if senders is not None and set_size == "exact":  # each of the h holders of a pair counts 1/h of it, in whole units
        holders = _holders(settings, held, hasher, names, exchange)
        unit = units(len(held.by_sender))
        amounts = whole_parts(holders, unit)
    n = exchange.sum(totals(held.label[own], amounts[own], labels.shape[1]) for own in held.by_sender)
    counts = np.rint(n / unit).astype(np.int64)
    if set_size != "ignored":
        tables = record_tables(settings, len(held.label), set_size)
        places = record_places(tables, hasher, held.digests)
        summed = added(tables, places[held.record], amounts, unit, held, exchange, told=set_size == "exact")
        records = tables.records(summed)
        facts |= {"tables": tables.tables, "buckets": tables.buckets, "records": round(records)}
        if set_size == "exact":
            facts["collisions"] = tables.collision_rate(round(records))
            if problem := too_many(settings, records, facts["collisions"]):
                warnings.warn(problem, stacklevel=2)
            smallest = np.rint(tables.smallest(summed, places) / unit).astype(np.int64)
            sizes = np.maximum(smallest[held.row_record], held.fewest_labels)
        else:
            mean = mean_size(counts, records)
    sending = int((counts > 0).sum()) if senders is None else len(held.by_sender)
    up, down = 8 * exchange.sent * sending, 8 * exchange.received * sending
    return Counted(counts, sizes, None if holders is None else holders[held.entry], mean, up, down, facts)


def simulated_hasher(settings: CollectionSettings, seed: int) -> Hasher:
    """Return the clients' hasher. Without a key file the key follows from the seed, and so do collisions: a run with
    the same settings has the same result."""
    if settings.key is not None:
        key = Key.read(settings.key)
    else:
        key = Key(hashlib.sha512(f"the clients of a simulation, {seed}".encode()).digest())
    return Hasher(settings.algorithm, key, settings.digest_bytes)


def _holders(
    settings: CollectionSettings, held: Held, hasher: Hasher, names: Sequence[str], exchange: Exchange
) -> np.ndarray:
    """Return how many senders have each pair."""
    tables = Tables.for_records(len(held.label), settings.collisions)
    places = pair_places(tables, hasher, held.digests[held.record], hasher.labels(names)[held.label])
    ones = np.ones(len(places), dtype=np.uint64)
    summed = added(tables, places, ones, 1, held, exchange, told=True)
    return tables.smallest(summed, places).clip(1, len(held.by_sender)).astype(np.int64)


def record_tables(settings: CollectionSettings, pairs: int, set_size: SetSize) -> Tables:
    """Return the size of the tables of records. For the mean one will do: nothing is looked up."""
    bound = settings.records or pairs
    if set_size == "expected":
        return Tables(1, max(bound, FEWEST_BUCKETS))
    return Tables.for_records(bound, settings.collisions)


def added(
    tables: Tables,
    places: np.ndarray,
    amounts: np.ndarray,
    unit: int,
    held: Held,
    exchange: Exchange,
    told: bool = False,
) -> np.ndarray:
    """Return the sum of the senders' vectors. Counts are packed; amounts in parts of a unit do not fit."""
    vectors = (tables.vector(places[own], amounts[own]) for own in held.by_sender)
    if unit > 1:
        return exchange.sum(vectors, told)
    return unpacked(exchange.sum(map(packed, vectors), told), tables.size)


def mean_size(counts: np.ndarray, records: float) -> float:
    """Return the mean number of labels of a record, from n and the estimated number of records."""
    return max(1.0, float(counts.sum()) / max(records, 1.0))


def too_many(settings: CollectionSettings, records: float, rate: float) -> str:
    """Return what is wrong if there are more records than the settings say; "" if there are not."""
    if settings.records is None or records <= 1.1 * settings.records:
        return ""
    return (
        f"collection.records is {settings.records:,}, and there are about {records:,.0f} records: {100 * rate:.1f} % "
        "of the set sizes are too large"
    )
