"""Labels that several clients claim: decide which clients to refuse and which labels to leave out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

_CROWD = 1000
"""A label that more clients claim than this is left out but counts as no conflict. This bounds the number of pairs."""


def settle(
    label: np.ndarray, claimant: np.ndarray, pseudonyms: np.ndarray, clients: list[str]
) -> tuple[np.ndarray, list[str]]:
    """Return which claims stand, as a mask, and notes on the others.

    Claim i says that client `claimant[i]` holds `label[i]`; claims may be repeated. A client that conflicts with two or
    more others, and with more clients than each of these does, is refused with all its labels. Labels that are still
    contested are left out; the other labels of their claimants stay.
    """
    shape = (len(clients), len(pseudonyms))
    claims = csr_matrix((np.ones(len(label), dtype=np.int32), (claimant, label)), shape=shape)
    claims.data[:] = 1  # csr_matrix sums repeated claims: a client may send its messages in several parts
    claimants = claims.getnnz(axis=0)
    if claimants.max() <= 1:
        return np.ones(len(label), dtype=bool), []
    conflicts = _conflicts(claims[:, (claimants > 1) & (claimants <= _CROWD)])
    refused = _odd_ones_out(conflicts)
    standing = claims.multiply(~refused[:, None]).tocsc()
    standing.eliminate_zeros()
    contested = standing.getnnz(axis=0) > 1
    notes = []
    for client in np.flatnonzero(refused):
        opponents = listed([clients[other] for other in conflicts[client].indices])
        notes.append(f"client {clients[client]} claims labels of {opponents}: all its messages are refused")
    labels_of: dict[tuple[int, ...], list[str]] = {}
    for u in np.flatnonzero(contested):
        rivals = tuple(sorted(standing.indices[standing.indptr[u] : standing.indptr[u + 1]].tolist()))
        labels_of.setdefault(rivals, []).append(pseudonyms[u].tobytes().hex()[:8])
    for rivals, labels in sorted(labels_of.items()):
        count = f"{len(labels)} labels" if len(labels) > 1 else "1 label"
        names = listed([clients[client] for client in rivals])
        notes.append(f"{count} ({listed(labels)}) left out: claimed by {names}")
    return ~refused[claimant] & ~contested[label], notes


def _conflicts(claims: csr_matrix) -> csr_matrix:
    """Return a matrix of clients × clients with an entry where two claim the same label."""
    conflicts = (claims @ claims.T).tocsr()
    conflicts.setdiag(0)
    conflicts.eliminate_zeros()
    conflicts.sort_indices()
    return conflicts


def _odd_ones_out(conflicts: csr_matrix) -> np.ndarray:
    """Return which clients to refuse.

    Refusing a client only lowers the conflict counts of its opponents, which were below its own. So a client that was
    to be refused still is, and the outcome does not depend on the order.
    """
    refused = np.zeros(conflicts.shape[0], dtype=bool)
    first = np.repeat(np.arange(conflicts.shape[0]), np.diff(conflicts.indptr))
    second = conflicts.indices
    while True:
        present = ~(refused[first] | refused[second])
        first, second = first[present], second[present]
        opponents = np.bincount(first, minlength=len(refused))
        largest = np.zeros(len(refused), dtype=opponents.dtype)
        np.maximum.at(largest, first, opponents[second])
        odd = (opponents >= 2) & (opponents > largest)
        if not odd.any():
            return refused
        refused |= odd


def listed(names: Sequence[str], at_most: int = 5) -> str:
    """Return the first names as text, and how many more there are."""
    shown, more = list(names[:at_most]), len(names) - at_most
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
