"""Attacks on the collection by sums: what a curious server finds out from bucket counts, and who has the key too.

The server has the sums of all clients, or, if nothing masks them, the counts of each. A client has the sums and the
key: it can look up records that it does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import CollectionSettings
from fedalc.data.dataset import Split
from fedalc.labels.collection.buckets import Tables
from fedalc.labels.collection.hashing import Hasher, canonical_features, features_identity
from fedalc.labels.collection.join import join
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import make_messages

MOST_LOOKUPS = 500_000  # of pairs
LabelSets = Counter[bytes]
"""How many instances have each label set. A set is the bytes of its label numbers, ascending."""


@dataclass(frozen=True)
class Attempt:
    """What an attacker who sees `seen` and has `weapon` finds: "x of y", or "" for what it does not try."""

    seen: str
    weapon: str
    label_sets: str = ""
    instances: str = ""


def attack_sums(split: Split, names: Sequence[str]) -> Iterator[Attempt]:
    """Collect the candidates by sums and attack. For guesses of instances, only every second candidate is collected."""
    key = Key.fresh()
    hasher, stranger = Hasher("hmac-sha256", key), Hasher("hmac-sha256", Key.fresh())
    kind = features_identity("content", split.features)
    messages = make_messages(hasher, kind, "all clients", canonical_features(split.features), split.labels, names)
    joined = join([messages], max_labels=len(names))
    digests, Y = list(map(bytes, joined.digests)), joined.label_sets
    tables = Tables.for_records(Y.nnz, CollectionSettings().collisions)
    places = tables.places(hasher, "records", digests)
    truth = label_sets(Y)
    found = shared(sets_from_clients(tables, places, Y), truth)
    yield Attempt("each client's counts", "nothing", _of(found, len(digests)))
    summed = tables.vector(places, np.diff(Y.indptr))
    found = shared(sets_from_sums(tables, summed, Y.getnnz(axis=0)), truth)
    yield Attempt("sums", "nothing (it guesses common labels)", _of(found, len(digests)))
    held = np.arange(len(digests)) % 2 == 0
    summed = tables.vector(places[held], np.diff(Y.indptr)[held])
    for weapon, guessing in (("a dictionary", stranger), ("a dictionary, a client's key", hasher)):
        says = tables.smallest(summed, tables.places(guessing, "records", digests)) > 0
        yield Attempt("sums", weapon, instances=_of(int((says == held).sum()), len(held)))
    some = max(1, MOST_LOOKUPS // len(names))  # the first ones, as if there were no others
    found = pairs_found(hasher, joined.pseudonyms, digests[:some], Y[:some])
    yield Attempt("sums of pairs (clients = parties)", "a dictionary, a client's key", _of(found, len(digests[:some])))


def label_sets(Y: csr_matrix) -> LabelSets:
    Y = Y.sorted_indices()
    return Counter(Y.indices[a:b].astype(np.int64).tobytes() for a, b in pairwise(Y.indptr) if b > a)


def shared(claimed: LabelSets, truth: LabelSets) -> int:
    """Return for how many instances the claimed label sets are right."""
    return (claimed & truth).total()


def sets_from_clients(tables: Tables, places: np.ndarray, Y: csr_matrix) -> LabelSets:
    """Join the clients' counts by bucket: labels in the same bucket are one instance's, unless instances share it.

    An instance is alone in its bucket in a known share of the tables; sets of two instances that share one are rare.
    """
    rows, each = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr)), Counter[bytes]()
    for table in range(tables.tables):
        bucket = places[rows, table] - table * tables.buckets
        counts = csr_matrix((np.ones(len(rows)), (bucket, Y.indices)), shape=(tables.buckets, Y.shape[1]))
        each += label_sets(counts)
    records = round(tables.records(tables.vector(places)))
    alone = tables.tables * (1 - Tables(1, tables.buckets).collision_rate(records))
    return Counter({labels: round(often / alone) for labels, often in each.items()})


def sets_from_sums(tables: Tables, summed: np.ndarray, counts: np.ndarray) -> LabelSets:
    """Guess label sets from the sums of the first table and n: a sum of m is an instance with the m commonest labels.
    Which labels share a bucket, sums do not say."""
    commonest = np.argsort(-counts, kind="stable")
    sizes = Counter(summed[: tables.buckets].tolist())
    return Counter({np.sort(commonest[:size]).tobytes(): often for size, often in sizes.items() if size > 0})


def pairs_found(hasher: Hasher, pseudonyms: np.ndarray, digests: Sequence[bytes], Y: csr_matrix) -> int:
    """Look up every label with every instance, in the table of pairs that parties with the same labels get. Return for
    how many instances the label set found is right.

    Some pairs are in the table by collision only. A pair that alone explains a bucket is there in truth. Take it out,
    and others that it collided with become empty, or alone.
    """
    tables, labels = Tables.for_records(Y.nnz, CollectionSettings().collisions), list(map(bytes, pseudonyms))
    row = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    pairs = (digests[record] + labels[label] for record, label in zip(row, Y.indices, strict=True))
    left = tables.vector(tables.places(hasher, "pairs", pairs)).astype(np.int64)
    hits, places = [], []
    for number, digest in enumerate(digests):
        at = tables.places(hasher, "pairs", (digest + label for label in labels))
        hit = np.flatnonzero(tables.smallest(left, at) > 0)
        hits.append(number * len(labels) + hit)
        places.append(at[hit])
    pair, place, known = np.concatenate(hits), np.concatenate(places), np.zeros(0, dtype=np.int64)
    while True:
        possible = tables.smallest(left, place) > 0
        pair, place = pair[possible], place[possible]
        explained_by = np.bincount(place.ravel(), minlength=tables.size)
        certain = (explained_by[place] == 1).any(axis=1)
        if not certain.any():
            break
        np.subtract.at(left, place[certain].ravel(), 1)
        known = np.append(known, pair[certain])
        pair, place = pair[~certain], place[~certain]
    said = np.append(known, pair)  # those that stay undecided too
    record, label = np.divmod(np.sort(said), len(labels))
    shape = (len(digests), len(labels))
    wrong = (csr_matrix((np.ones(len(said)), (record, label)), shape=shape) != (Y > 0)).getnnz(axis=1) > 0
    return int((~wrong).sum())


def _of(found: int, total: int) -> str:
    return f"{found:,} of {total:,}"
