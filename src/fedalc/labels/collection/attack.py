"""The curious server: what it can find out from the messages it joins, by trying.

It follows the protocol and keeps everything. Its weapon is a dictionary: instances and label names it suspects, which
it hashes as the clients do, with no key, or with the true key where a client has passed it on. Beyond that it has what
the join tells it in any case: how often labels occur, alone and together.
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
    """What a dictionary attack has identified, of how many there were."""

    instances: int
    of_instances: int
    labels: int
    of_labels: int


def dictionary_attack(
    messages: Sequence[Messages], instances: Sequence[bytes], names: Sequence[str], stolen: Key | None = None
) -> Found:
    """Hash every suspected instance and name as the clients' header says, and look the digests up.

    Without `stolen`, the clients' key, the server tries the plain hash only: its own guess at a 256-bit key is not
    worth the electricity.
    """
    protocol = messages[0].protocol
    algorithm: Algorithm = protocol.algorithm if stolen is not None else _plain(protocol.algorithm)
    hasher = Hasher(algorithm, stolen if is_keyed(algorithm) else None, protocol.digest_bytes, protocol.run)
    seen = set(_rows(np.concatenate([sent.digests for sent in messages])))
    claimed = set(_rows(np.concatenate([sent.pseudonyms for sent in messages])))
    guessed = set(_rows(hasher.instances(instances, protocol.identity)))
    named = set(_rows(hasher.labels(names)))
    return Found(len(seen & guessed), len(seen), len(claimed & named), len(claimed))


def frequency_attack(joined: Joined, public: csr_matrix) -> int:
    """How many pseudonyms a server names that has label sets from elsewhere: those whose count is unique in both.

    No key helps against this: frequencies are what the server is meant to learn.
    """
    counts = Counter(np.asarray(joined.label_sets.getnnz(axis=0)).tolist())
    known = Counter(np.asarray(public.getnnz(axis=0)).tolist())
    return sum(1 for count, often in counts.items() if often == 1 and known.get(count) == 1)


@dataclass(frozen=True)
class Learnt:
    """What the server knows after the join, whatever the key."""

    instances: int
    labels: int
    pairs: int  # of labels that occur together
    commonest: tuple[int, ...]  # the largest label counts
    set_sizes: dict[int, int]  # labels per instance → instances
    unique_sets: int  # instances whose set of labels no other has


def what_the_server_learns(joined: Joined) -> Learnt:
    Y = joined.label_sets
    known = Correlations.from_label_sets(Y)
    counts = np.sort(known.counts)[::-1]
    sets = Counter(Y.indices[a:b].tobytes() for a, b in zip(Y.indptr, Y.indptr[1:], strict=False))
    sizes = Counter(np.diff(Y.indptr).tolist())
    return Learnt(
        instances=Y.shape[0],
        labels=Y.shape[1],
        pairs=known.together.nnz // 2,
        commonest=tuple(counts[:5].tolist()),
        set_sizes=dict(sorted(sizes.items())),
        unique_sets=sum(1 for often in sets.values() if often == 1),
    )


def _plain(algorithm: Algorithm) -> Algorithm:
    plain: dict[str, Algorithm] = {"hmac-sha256": "sha256", "hmac-sha512": "sha512", "hmac-md5": "md5"}
    return plain.get(algorithm, algorithm)


def _rows(array: np.ndarray) -> Iterable[bytes]:
    return (row.tobytes() for row in array)
