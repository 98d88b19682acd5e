"""Simulate the collection: make the messages of all clients and join them in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import CollectionSettings
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.identity import Identity, SharedEncoder, make_hasher
from fedalc.labels.collection.join import distinct, holder_counts, join, set_sizes
from fedalc.labels.collection.messages import messages_with


@dataclass(frozen=True)
class Collection:
    """The label sets that the server joined, one anonymous instance per row, and their traffic."""

    label_sets: csr_matrix  # columns in the order of the labels
    set_sizes: np.ndarray  # m of every instance, in the order of the data: the server's answer to its owners
    bytes_up: int
    bytes_down: int  # the answers, if clients ask for them: two bytes per message and, with `holders`, two more
    facts: dict[str, Any]
    holders: np.ndarray | None = None  # how many parties have each (instance, label) pair, in the order of the data


def collect(
    settings: CollectionSettings,
    features: csr_matrix,
    labels: csr_matrix,
    names: Sequence[str],
    encoder: SharedEncoder,
    parties: np.ndarray | None = None,
) -> Collection:
    """Hash the instances and labels of every client and join them. The server learns nothing else about Y.

    `parties`: the number of each instance's party, if parties may have the same label.
    """
    hasher = make_hasher(settings)
    digests, kind = hashed(settings, hasher, features, encoder)
    sent = messages_with(hasher, kind, "all clients", digests, labels, names)
    joined = join([sent], max_labels=max(1, labels.shape[1]))
    # The simulation has the key, so it knows which label a pseudonym stands for.
    column_of = {pseudonym.tobytes(): column for column, pseudonym in enumerate(joined.pseudonyms)}
    columns = np.array([column_of[pseudonym.tobytes()] for pseudonym in hasher.labels(names)])
    facts = {
        "algorithm": settings.algorithm,
        "identity": settings.identity,
        "digest_bytes": settings.digest_bytes,
        "messages": len(sent),
        "instances": joined.label_sets.shape[0],
    }
    sizes, holders, messages = set_sizes(joined, digests), None, len(sent)
    bytes_up = sent.digests.nbytes + sent.labels.nbytes + sent.pseudonyms.nbytes
    bytes_down = 2 * messages
    if parties is not None:
        rows = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
        record, label = distinct(digests)[1][rows], labels.indices.astype(np.int64)
        holders = holder_counts(record, label, parties[rows])
        claim = parties[rows] * labels.shape[1] + label  # a party's label
        facts["messages"] = messages = len(np.unique(claim * len(digests) + record))
        bytes_up = messages * (digests.shape[1] + sent.labels.itemsize)
        bytes_up += len(np.unique(claim)) * sent.pseudonyms.shape[1]
        bytes_down = 4 * messages
    return Collection(_with_columns(joined.label_sets, columns), sizes, bytes_up, bytes_down, facts, holders)


def hashed(
    settings: CollectionSettings, hasher: Hasher, features: csr_matrix, encoder: SharedEncoder
) -> tuple[np.ndarray, str]:
    """Return the digest of every instance, and the name of the identity."""
    identity = Identity(settings, encoder)
    kind, records = identity.name(features), [str(row) for row in range(features.shape[0])]
    return hasher.instances(identity.canonical(features, records), kind), kind


def _with_columns(matrix: csr_matrix, columns: np.ndarray) -> csr_matrix:
    """Return the matrix with its columns in this order."""
    new_column = np.empty(len(columns), dtype=matrix.indices.dtype)
    new_column[columns] = np.arange(len(columns))
    ordered = csr_matrix((matrix.data, new_column[matrix.indices], matrix.indptr), shape=matrix.shape)
    ordered.sort_indices()
    return ordered
