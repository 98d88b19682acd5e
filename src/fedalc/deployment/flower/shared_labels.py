"""Labels that several parties have: how many parties have each pair of a record and its label.

A pair that h parties have would count h times. The server knows h from the digests, and tells it to these parties, by
pair: each then counts 1/h of it, in exact losses and in hits. Pairs are in the order of digests, then of pseudonyms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.deployment.flower.wire import HOLDERS, BadMessage, unpack
from fedalc.labels.collection.join import distinct, holder_counts
from fedalc.labels.collection.messages import Messages


def holders_by_party(messages: Mapping[int, Messages]) -> dict[int, np.ndarray]:
    """At the server: return, for each party, how many parties have each of its pairs."""
    if not messages:
        return {}
    sent = list(messages.values())
    _, record = distinct(np.concatenate([part.digests for part in sent]))
    _, label_of = distinct(np.concatenate([part.pseudonyms for part in sent]))
    claims = np.cumsum([0, *(len(part.pseudonyms) for part in sent)])
    label = label_of[np.concatenate([first + part.labels for first, part in zip(claims, sent, strict=False)])]
    party = np.repeat(np.arange(len(sent)), [len(part) for part in sent])
    holders = holder_counts(record, label, party).astype(np.uint32)
    found = {}
    for number, name in enumerate(messages):
        own = party == number
        _, first = np.unique(record[own] * len(label_of) + label[own], return_index=True)
        found[name] = holders[own][first]
    return found


def read_holders(content: Mapping[str, object], pairs: int) -> np.ndarray:
    """At a party: return how many parties have each of its `pairs`."""
    if HOLDERS not in content:
        raise BadMessage("does not say how many parties have each record, although parties may have the same labels")
    return unpack(content, HOLDERS, {HOLDERS: ("uint32", (pairs,))})[HOLDERS]  # type: ignore[arg-type]


def record_counts(record: np.ndarray, labels: csr_matrix) -> np.ndarray:
    """Return how many different records have each label. `record`: that of each row of `labels`.

    >>> record_counts(np.array([0, 0, 1]), csr_matrix([[1, 0], [1, 1], [1, 0]])).tolist()
    [2, 1]
    """
    pairs, width = labels.tocoo(), labels.shape[1]
    different = np.unique(record[pairs.row] * width + pairs.col)
    return np.bincount(different % width, minlength=width)


def pairs_of_records(record: np.ndarray, labels: csr_matrix) -> tuple[int, np.ndarray]:
    """Return the number of different (record, label) pairs, and the place of each row's pairs among these. `record`:
    that of each row of `labels`, in the order of digests. Columns of `labels` are in the order of pseudonyms."""
    rows = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
    pairs, place = np.unique(record[rows] * labels.shape[1] + labels.indices, return_inverse=True)
    return len(pairs), place
