"""Helpers for the tests of the label collection."""

from __future__ import annotations

import hashlib

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.labels.collection.hashing import Hasher, canonical_sparse
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import Messages, Protocol, make_messages
from fedalc.labels.correlations import Correlations

KEY = Key(hashlib.sha256(b"the key of the tests").digest())
OTHER_KEY = Key(hashlib.sha256(b"another key").digest())
PLAIN = Protocol("sha256", "content", 16, "")


def rows_of(*names: str) -> np.ndarray:
    """Return 16 bytes for each name by a plain hash, as a digest or pseudonym."""
    return np.array([list(hashlib.sha256(name.encode()).digest()[:16]) for name in names], dtype=np.uint8).reshape(
        -1, 16
    )


def sent(client: str, held: dict[str, str], protocol: Protocol = PLAIN) -> Messages:
    """Return messages given as {"label": "instances, one letter each"}."""
    labels = np.repeat(np.arange(len(held), dtype=np.uint32), [len(instances) for instances in held.values()])
    return Messages(protocol, client, rows_of(*held), rows_of(*"".join(held.values())), labels)


def client_per_label(Y: csr_matrix, X: csr_matrix, names: list[str], hasher: Hasher, identity: str) -> list[Messages]:
    """Return the messages of the paper's clients: each holds the instances of one label."""
    messages = []
    for label in range(Y.shape[1]):
        rows = Y[:, label].nonzero()[0]
        if len(rows) == 0:
            continue
        records = [str(row) for row in rows] if identity == "record" else None
        canonical = canonical_sparse(X[rows], records)
        own = Y[rows][:, [label]]
        messages.append(make_messages(hasher, identity, f"client {label}", canonical, own, [names[label]]))
    return messages


def assert_same(one: Correlations, other: Correlations) -> None:
    """Assert equality bit by bit, including types."""
    assert one.instances == other.instances
    for a, b in (
        (one.counts, other.counts),
        (one.together.data, other.together.data),
        (one.together.indices, other.together.indices),
        (one.together.indptr, other.together.indptr),
    ):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
