"""What the server knows about the records that parties keep out of training: how many labels of which party each has.

Parties send keyed digests of them, once, before round 1. The joined label sets are reduced to this table at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from scipy.sparse import csc_matrix, csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.shared_labels import holders_by_party
from fedalc.deployment.flower.wire import HOLDERS, pack
from fedalc.evaluation.metrics import DEEPEST
from fedalc.evaluation.owner_hits import RANKED_BY, most_hits
from fedalc.labels.collection.join import Joined, distinct
from fedalc.labels.collection.messages import Messages

_PREFIX = "held_out_records."


def ranked_by(settings: Experiment) -> str | None:
    """Return the metric by which rounds are compared at the parties, or None if they cannot measure it.

    Without set sizes (`client.set_size` other than "exact") parties cannot measure nDCG@k; then it is P@k.
    """
    metric = settings.selection.metric
    if metric not in RANKED_BY:
        return None
    return metric if tells_sizes(settings) else metric.replace("nDCG", "P")


def tells_sizes(settings: Experiment) -> bool:
    """Return whether parties learn how many labels, up to 5, their held-out records have. nDCG needs it."""
    return settings.client.set_size == "exact"


@dataclass(frozen=True, eq=False)
class HeldOutRecords:
    """`own[j, p]`: how many labels record j has at party p. Records are in the order of their digests, so a party's
    records are in the order in which the party itself sorts them. `sizes`: how many labels each record has.
    `bytes_up`: what their collection took. `holders`: if parties may have the same labels, for each party how many
    parties have each of its pairs of a record and a label."""

    own: csc_matrix
    sizes: np.ndarray
    bytes_up: int
    holders: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls, joined: Joined, roster: Roster, bytes_up: int, sent: Mapping[int, Messages] | None = None
    ) -> HeldOutRecords:
        """Keep the records that carry a label of the roster. `sent`: the parties' messages, if parties may have the
        same labels."""
        label_of = {pseudonym.tobytes(): label for label, pseudonym in enumerate(roster.pseudonyms)}
        labels = np.array([label_of.get(pseudonym.tobytes(), -1) for pseudonym in joined.pseudonyms])
        known = np.flatnonzero(labels >= 0)
        sizes = joined.label_sets[:, known].getnnz(axis=1)
        if sent is None:
            ones = np.ones(len(known), dtype=np.int64)
            owners = csr_matrix((ones, (known, roster.owner[labels[known]])), (len(labels), len(roster.parties)))
            own = joined.label_sets.astype(np.int64) @ owners
        else:
            own = _own_counts(joined, sent, len(roster.parties))
        kept = np.flatnonzero(sizes)
        own = own[kept].tocsc()
        own.sort_indices()
        return cls(own, sizes[kept], bytes_up, {} if sent is None else holders_by_party(sent))

    def __len__(self) -> int:
        return int(self.own.shape[0])

    @property
    def parties(self) -> list[int]:
        """The parties that have such records."""
        return np.flatnonzero(np.diff(self.own.indptr)).tolist()

    def told_sizes(self, party: int) -> np.ndarray:
        """Return how many labels each record of the party has, at most 5: what nDCG@5 depends on, and no more."""
        return np.minimum(self.sizes[self._records(party)], DEEPEST).astype(np.uint8)

    def whole_sizes(self, party: int) -> np.ndarray:
        """Return how many labels each record of the party has, all of them."""
        return self.sizes[self._records(party)].astype(np.uint32)

    def told_to(self, party: int, with_sizes: bool) -> dict[str, ArrayRecord]:
        """Return what the server sends a party about its own records."""
        told = {"sizes": pack({"sizes": self.told_sizes(party)})} if with_sizes else {}
        holders = self.holders.get(party)
        return told if holders is None else told | {HOLDERS: pack({HOLDERS: holders})}

    def told_to_all(self) -> dict[str, ArrayRecord]:
        return {}

    def records_of(self, total: np.ndarray, survivors: list[int]) -> float:
        """Return how many records the summed hits of these parties are of."""
        return self.count(survivors)

    def most_hits(self, party: int) -> np.ndarray:
        own = self.own.data[self.own.indptr[party] : self.own.indptr[party + 1]]
        return most_hits(own, self.sizes[self._records(party)])

    def count(self, parties: Collection[int]) -> int:
        """Return the number of records with a label of these parties."""
        return int((self.own[:, sorted(parties)].getnnz(axis=1) > 0).sum())

    def _records(self, party: int) -> np.ndarray:
        records: np.ndarray = self.own.indices[self.own.indptr[party] : self.own.indptr[party + 1]]
        return records

    def tensors(self) -> dict[str, Tensor]:
        parts = {name: getattr(self.own, name) for name in ("data", "indices", "indptr")} | {"sizes": self.sizes}
        parts |= {f"holders.{party}": holders for party, holders in self.holders.items()}
        return {_PREFIX + name: torch.from_numpy(part.astype(np.int64)) for name, part in parts.items()}

    def facts(self) -> dict[str, Any]:
        return {"records": len(self), "bytes_up": self.bytes_up}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> HeldOutRecords:
        data, indices, indptr = (tensors[_PREFIX + name].numpy() for name in ("data", "indices", "indptr"))
        own = csc_matrix((data, indices, indptr), shape=(facts["records"], len(indptr) - 1))
        sizes = tensors.get(f"{_PREFIX}sizes", torch.from_numpy(np.asarray(own.sum(axis=1)).ravel()))  # early versions
        return cls(own, sizes.numpy(), facts["bytes_up"], restored_holders(tensors, _PREFIX))


def restored_holders(tensors: Mapping[str, Tensor], before: str = "") -> dict[int, np.ndarray]:
    """Return the numbers of holders that were saved under names that begin with `before`."""
    prefix = f"{before}holders."
    found = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
    return {int(party): holders.numpy().astype(np.uint32) for party, holders in found.items()}


def _own_counts(joined: Joined, sent: Mapping[int, Messages], parties: int) -> csr_matrix:
    """Return how many labels each record has at each party."""
    _, which = distinct(np.concatenate([joined.digests, *(part.digests for part in sent.values())]))
    row_of = np.empty(which.max() + 1, dtype=np.int64)
    row_of[which[: len(joined.digests)]] = np.arange(len(joined.digests))
    record = row_of[which[len(joined.digests) :]]
    party = np.repeat(list(sent), [len(part) for part in sent.values()])
    own = csr_matrix((np.ones(len(record), dtype=np.int64), (record, party)), (len(joined.digests), parties))
    own.sum_duplicates()
    return own
