"""What the server knows about the records that parties keep out of training: how many labels of which party each has.

Parties send keyed digests of them, once, before round 1. The joined label sets are reduced to this table at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.roster import Roster
from fedalc.evaluation.metrics import DEEPEST
from fedalc.evaluation.owner_hits import RANKED_BY, most_hits
from fedalc.labels.collection.join import Joined

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
    """`own[j, p]`: how many labels of party p record j has. Records are in the order of their digests, so a party's
    records are in the order in which the party itself sorts them. `bytes_up`: what their collection took."""

    own: csc_matrix
    bytes_up: int

    @classmethod
    def of(cls, joined: Joined, roster: Roster, bytes_up: int) -> HeldOutRecords:
        """Keep the records that carry a label of the roster."""
        label_of = {pseudonym.tobytes(): label for label, pseudonym in enumerate(roster.pseudonyms)}
        labels = np.array([label_of.get(pseudonym.tobytes(), -1) for pseudonym in joined.pseudonyms])
        known = np.flatnonzero(labels >= 0)
        ones = np.ones(len(known), dtype=np.int64)
        owners = csr_matrix((ones, (known, roster.owner[labels[known]])), (len(labels), len(roster.parties)))
        own = joined.label_sets.astype(np.int64) @ owners
        own = own[np.flatnonzero(own.getnnz(axis=1))].tocsc()
        own.sort_indices()
        return cls(own, bytes_up)

    def __len__(self) -> int:
        return int(self.own.shape[0])

    @property
    def parties(self) -> list[int]:
        """The parties that have such records."""
        return np.flatnonzero(np.diff(self.own.indptr)).tolist()

    def told_sizes(self, party: int) -> np.ndarray:
        """Return how many labels each record of the party has, at most 5: what nDCG@5 depends on, and no more."""
        return np.minimum(self._sizes[self._records(party)], DEEPEST).astype(np.uint8)

    def most_hits(self, party: int) -> np.ndarray:
        own = self.own.data[self.own.indptr[party] : self.own.indptr[party + 1]]
        return most_hits(own, self._sizes[self._records(party)])

    def count(self, parties: Collection[int]) -> int:
        """Return the number of records with a label of these parties."""
        return int((self.own[:, sorted(parties)].getnnz(axis=1) > 0).sum())

    def _records(self, party: int) -> np.ndarray:
        records: np.ndarray = self.own.indices[self.own.indptr[party] : self.own.indptr[party + 1]]
        return records

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.asarray(self.own.sum(axis=1)).ravel()

    def tensors(self) -> dict[str, Tensor]:
        parts = {name: getattr(self.own, name) for name in ("data", "indices", "indptr")}
        return {_PREFIX + name: torch.from_numpy(part.astype(np.int64)) for name, part in parts.items()}

    def facts(self) -> dict[str, Any]:
        return {"records": len(self), "bytes_up": self.bytes_up}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> HeldOutRecords:
        data, indices, indptr = (tensors[_PREFIX + name].numpy() for name in ("data", "indices", "indptr"))
        shape = (facts["records"], len(indptr) - 1)
        return cls(csc_matrix((data, indices, indptr), shape=shape), facts["bytes_up"])
