"""The collection as a simulation runs it: what every client would send, made and joined in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedalc.collection.hashing import Hasher, canonical_embeddings, canonical_sparse, embedding_identity
from fedalc.collection.joining import join, set_sizes
from fedalc.collection.keys import Key
from fedalc.collection.messages import make_messages
from fedalc.config import CollectionSettings, EncoderSettings, Identity
from fedalc.encoders import SparseRows, scale_rows, text_encoder
from fedalc.seeds import torch_generator

BLOCK_ROWS = 2048  # instances encoded at a time


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
    hasher = make_hasher(settings)
    rows = [str(row) for row in range(features.shape[0])] if settings.identity == "record" else None
    canonical = list(canonical_instances(features, settings.identity, rows, settings.quantum, encoder))
    sent = make_messages(hasher, identity_name(settings), "all clients", canonical, labels, unambiguous(names))
    joined = join([sent], max_labels=max(1, labels.shape[1]))
    # The simulation plays the clients too, so it knows which pseudonym is whose.
    place = {pseudonym.tobytes(): column for column, pseudonym in enumerate(joined.pseudonyms)}
    own = [place.get(pseudonym.tobytes(), -1) for pseudonym in hasher.labels(unambiguous(names))]
    facts = {
        "algorithm": settings.algorithm,
        "identity": settings.identity,
        "digest_bytes": settings.digest_bytes,
        "messages": len(sent.labels),
        "instances": joined.label_sets.shape[0],
    }
    sizes = set_sizes(joined, hasher.instances(canonical, identity_name(settings)))
    bytes_up = sent.digests.nbytes + sent.labels.nbytes + sent.pseudonyms.nbytes
    return Collection(_columns(joined.label_sets, np.array(own)), sizes, bytes_up, 2 * len(sent), facts)


def make_hasher(settings: CollectionSettings) -> Hasher:
    """With the clients' key file, or else a key that nobody else ever has."""
    key = None
    if settings.algorithm.startswith("hmac-"):
        key = Key.fresh() if settings.key is None else Key.read(settings.key)
    return Hasher(settings.algorithm, key, settings.digest_bytes)


@dataclass(frozen=True)
class SharedEncoder:
    """The encoder all clients start from: what the paper's embedding hash is taken under."""

    settings: EncoderSettings
    seed: int

    @torch.no_grad()
    def embeddings(self, features: csr_matrix) -> np.ndarray:
        encoder = text_encoder(features.shape[1], self.settings, torch_generator(self.seed, "encoder"))
        scaled = scale_rows(features, self.settings.features)
        blocks = []
        for start in range(0, scaled.shape[0], BLOCK_ROWS):
            part = scaled[start : start + BLOCK_ROWS]
            blocks.append(encoder(SparseRows(part, np.arange(part.shape[0]), torch.float32, "cpu")).numpy())
        return np.concatenate(blocks)


def canonical_instances(
    features: csr_matrix, identity: Identity, records: Sequence[str] | None, quantum: float, encoder: SharedEncoder
) -> Iterable[bytes]:
    """The bytes that stand for each instance: the same wherever the same instance is held."""
    if identity == "embedding":
        return canonical_embeddings(encoder.embeddings(features), quantum)
    return canonical_sparse(features, records if identity == "record" else None)


def identity_name(settings: CollectionSettings) -> str:
    """As messages say it: embeddings that are rounded otherwise must not be joined."""
    return embedding_identity(settings.quantum) if settings.identity == "embedding" else settings.identity


def unambiguous(names: Sequence[str]) -> list[str]:
    """Labels are told apart by their names; where two share one, their place is added."""
    often = Counter(names)
    return [name if often[name] == 1 else f"{name}#{place}" for place, name in enumerate(names)]


def _columns(matrix: csr_matrix, wanted: np.ndarray) -> csr_matrix:
    """The matrix with its columns in this order; -1 is an empty one."""
    place = np.full(matrix.shape[1], -1)
    place[wanted[wanted >= 0]] = np.flatnonzero(wanted >= 0)
    ordered = csr_matrix((matrix.data, place[matrix.indices], matrix.indptr), shape=(matrix.shape[0], len(wanted)))
    ordered.sort_indices()
    return ordered
