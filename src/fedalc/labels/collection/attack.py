"""Attacks by a curious server: what it can learn from the messages it joins.

The server follows the protocol and keeps everything. It has a dictionary of suspected instances and label names, and
hashes them as the clients do: without a key, or with the true key if a client leaked it. The join itself also tells it
how often labels occur, alone and together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import Algorithm, is_keyed
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.join import Joined
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.messages import Messages
from fedalc.labels.correlations import Correlations


@dataclass(frozen=True)
class Found:
    """How many instances and labels a dictionary attack identified, and how many there were."""

    instances: int
    of_instances: int
    labels: int
    of_labels: int


def dictionary_attack(
    messages: Sequence[Messages], instances: Sequence[bytes], names: Sequence[str], stolen: Key | None = None
) -> Found:
    """Hash every suspected instance and name with the protocol of the messages, and look the digests up.

    `stolen` is the clients' key, if the server has it. Without it the server tries only the plain hash: guessing a
    256-bit key is hopeless.
    """
    protocol = messages[0].protocol
    algorithm: Algorithm = protocol.algorithm if stolen is not None else _plain(protocol.algorithm)
    hasher = Hasher(algorithm, stolen if is_keyed(algorithm) else None, protocol.digest_bytes, protocol.run)
    digests = set(_rows(np.concatenate([sent.digests for sent in messages])))
    pseudonyms = set(_rows(np.concatenate([sent.pseudonyms for sent in messages])))
    found_digests = digests.intersection(_rows(hasher.instances(instances, protocol.identity)))
    found_pseudonyms = pseudonyms.intersection(_rows(hasher.labels(names)))
    return Found(len(found_digests), len(digests), len(found_pseudonyms), len(pseudonyms))


def frequency_attack(joined: Joined, public: csr_matrix) -> int:
    """Return how many pseudonyms the server can name from the label frequencies of a `public` dataset.

    It can name a pseudonym whose count is unique both in the join and in `public`. No key prevents this: the server is
    meant to learn frequencies.
    """
    joined_counts = Counter(np.asarray(joined.label_sets.getnnz(axis=0)).tolist())
    public_counts = Counter(np.asarray(public.getnnz(axis=0)).tolist())
    return sum(1 for count, labels in joined_counts.items() if labels == 1 and public_counts.get(count) == 1)


@dataclass(frozen=True)
class Learnt:
    """What the server knows after the join, with any key."""

    instances: int
    labels: int
    pairs: int  # of labels that occur together
    commonest: tuple[int, ...]  # the largest label counts
    set_sizes: dict[int, int]  # labels per instance → instances
    unique_sets: int  # instances with a label set that no other instance has


def what_the_server_learns(joined: Joined) -> Learnt:
    Y = joined.label_sets
    correlations = Correlations.from_label_sets(Y)
    counts = np.sort(correlations.counts)[::-1]
    sets = Counter(Y.indices[a:b].tobytes() for a, b in zip(Y.indptr, Y.indptr[1:], strict=False))
    sizes = Counter(np.diff(Y.indptr).tolist())
    return Learnt(
        instances=Y.shape[0],
        labels=Y.shape[1],
        pairs=correlations.together.nnz // 2,
        commonest=tuple(counts[:5].tolist()),
        set_sizes=dict(sorted(sizes.items())),
        unique_sets=sum(1 for instances in sets.values() if instances == 1),
    )


def _plain(algorithm: Algorithm) -> Algorithm:
    plain: dict[str, Algorithm] = {"hmac-sha256": "sha256", "hmac-sha512": "sha512", "hmac-md5": "md5"}
    return plain.get(algorithm, algorithm)


def _rows(array: np.ndarray) -> Iterable[bytes]:
    return (row.tobytes() for row in array)
