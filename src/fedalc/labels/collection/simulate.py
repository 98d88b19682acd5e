"""The collection as a simulation runs it: what every client would send, made and joined in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import CollectionSettings
from fedalc.labels.collection.identity import Identity, SharedEncoder, make_hasher
from fedalc.labels.collection.join import join, set_sizes
from fedalc.labels.collection.messages import messages_with


@dataclass(frozen=True)
class Collection:
    """The label sets the server has joined, one anonymous instance per row, and what that took."""

    label_sets: csr_matrix  # columns in the order of the labels
    set_sizes: np.ndarray  # m of every instance, in the order of the data: what the server answers its owners
    bytes_up: int
    bytes_down: int  # the answers, where they are asked for: two bytes a message
    facts: dict[str, Any]


def collect(
    settings: CollectionSettings, features: csr_matrix, labels: csr_matrix, names: Sequence[str], encoder: SharedEncoder
) -> Collection:
    """Every client hashes its instances and its label, the server joins. Nothing of Y reaches it in another way."""
    hasher, identity = make_hasher(settings), Identity(settings, encoder)
    kind = identity.name(features)
    records = [str(row) for row in range(features.shape[0])]
    digests = hasher.instances(identity.canonical(features, records), kind)
    sent = messages_with(hasher, kind, "all clients", digests, labels, names)
    joined = join([sent], max_labels=max(1, labels.shape[1]))
    # The simulation plays the clients too, so it knows which pseudonym is whose.
    place = {pseudonym.tobytes(): column for column, pseudonym in enumerate(joined.pseudonyms)}
    own = np.array([place[pseudonym.tobytes()] for pseudonym in hasher.labels(names)])
    facts = {
        "algorithm": settings.algorithm,
        "identity": settings.identity,
        "digest_bytes": settings.digest_bytes,
        "messages": len(sent),
        "instances": joined.label_sets.shape[0],
    }
    sizes = set_sizes(joined, digests)
    bytes_up = sent.digests.nbytes + sent.labels.nbytes + sent.pseudonyms.nbytes
    return Collection(_columns(joined.label_sets, own), sizes, bytes_up, 2 * len(sent), facts)


def _columns(matrix: csr_matrix, wanted: np.ndarray) -> csr_matrix:
    """The matrix with its columns in this order."""
    place = np.empty(len(wanted), dtype=matrix.indices.dtype)
    place[wanted] = np.arange(len(wanted))
    ordered = csr_matrix((matrix.data, place[matrix.indices], matrix.indptr), shape=matrix.shape)
    ordered.sort_indices()
    return ordered
