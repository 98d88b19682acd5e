"""The file of correlations that the server writes: counts of labels and pairs, under pseudonyms.

Anyone with the key can find labels in it by their pseudonyms. Without the key it is a table of numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.container import read_container, write_container
from fedalc.labels.collection.join import Joined
from fedalc.labels.collection.messages import PSEUDONYM_BYTES, Protocol, protocol_from
from fedalc.labels.correlations import Correlations, narrowed

NOISE = "privacy"
"""The fact that says that counts carry noise. Noised counts of earlier versions are not whole numbers."""


@dataclass(frozen=True, eq=False)
class Collected:
    """Correlations whose label u is `pseudonyms[u]`. `facts` holds further facts, such as the noise."""

    correlations: Correlations
    pseudonyms: np.ndarray
    protocol: Protocol
    facts: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""  # of the file it was read from

    def __post_init__(self) -> None:
        known = self.correlations
        if self.pseudonyms.dtype != np.uint8 or self.pseudonyms.shape != (len(known.counts), PSEUDONYM_BYTES):
            raise DataError(f"the pseudonyms do not match the {len(known.counts)} counts")
        if len(_index_of(self.pseudonyms)) != len(self.pseudonyms):
            raise DataError("two labels have the same pseudonym")
        _check_counts(known, noised=NOISE in self.facts)

    @classmethod
    def from_joined(cls, joined: Joined, facts: dict[str, Any] | None = None) -> Collected:
        known = Correlations.from_label_sets(joined.label_sets)
        return cls(known, joined.pseudonyms, joined.protocol, facts or {})

    def for_labels(self, pseudonyms: np.ndarray) -> Correlations:
        """Return the correlations of these labels, in this order.

        A label that no client sent has counts of zero (see `lacks`). Other labels are dropped, but instances that carry
        only those still count in N.
        """
        index_of = _index_of(pseudonyms)
        if len(index_of) != len(pseudonyms):
            raise FedalcError("two labels have the same pseudonym; do they have the same name?")
        if not len(self.pseudonyms):
            raise FedalcError("the file has no labels: none has enough instances to be published with its noise")
        new = np.array([index_of.get(row.tobytes(), -1) for row in self.pseudonyms])
        wanted = new >= 0
        if not wanted.any():
            raise FedalcError(
                "none of these labels was collected: check the key, the run id, the algorithm and the label names"
            )
        known = self.correlations
        counts = np.zeros(len(pseudonyms), dtype=known.counts.dtype)
        counts[new[wanted]] = known.counts[wanted]
        pairs = known.together.tocoo()
        u, v = new[pairs.row], new[pairs.col]
        both = (u >= 0) & (v >= 0)
        shape = (len(pseudonyms), len(pseudonyms))
        together = csr_matrix((pairs.data[both], (u[both], v[both])), shape=shape)
        together.sort_indices()
        return Correlations(known.instances, counts, together)

    def lacks(self, pseudonyms: np.ndarray) -> np.ndarray:
        """Return which of these labels no client sent."""
        collected = _index_of(self.pseudonyms)
        return np.array([row.tobytes() not in collected for row in pseudonyms], dtype=bool)

    def save(self, path: Path | str) -> None:
        known, together = self.correlations, self.correlations.together.copy()
        together.sort_indices()
        facts = {"instances": known.instances, "protocol": asdict(self.protocol), "facts": self.facts}
        arrays = {
            "pseudonyms": self.pseudonyms,
            "counts": known.counts,
            "together_indptr": together.indptr.astype(np.int64),
            "together_indices": together.indices.astype(np.int32),
            "together_data": together.data.astype(known.counts.dtype, copy=False),
        }
        write_container(path, "correlations", facts, arrays)

    @classmethod
    def load(cls, path: Path | str) -> Collected:
        facts, arrays, checksum = read_container(path, "correlations")
        expected = {"pseudonyms", "counts", "together_indptr", "together_indices", "together_data"}
        if set(facts) != {"instances", "protocol", "facts"} or set(arrays) != expected:
            raise DataError("does not have the facts and arrays of a correlations file", path)
        try:
            if not isinstance(facts["facts"], dict):
                raise DataError("its facts are not a table")
            known = Correlations(facts["instances"], arrays["counts"], _together(arrays))
            read = cls(known, arrays["pseudonyms"], protocol_from(facts["protocol"]), facts["facts"], checksum)
            return replace(read, correlations=narrowed(known))
        except DataError as error:
            raise DataError(str(error), path) from None


def _together(arrays: dict[str, np.ndarray]) -> csr_matrix:
    counts, indptr = arrays["counts"], arrays["together_indptr"]
    indices, data = arrays["together_indices"], arrays["together_data"]
    if any(array.ndim != 1 for array in (counts, indptr, indices, data)):
        raise DataError("an array of counts is not one-dimensional")
    if indptr.dtype != np.int64 or indices.dtype != np.int32:
        raise DataError("the positions of the pair counts must be int64 (indptr) and int32 (indices)")
    if len(indptr) != len(counts) + 1 or indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
        raise DataError("the rows of the pair counts do not match the labels")
    if len(indices) != len(data) or (len(indices) and not 0 <= indices.min() <= indices.max() < len(counts)):
        raise DataError("a pair count refers to a label that does not exist")
    if len(indptr) and len(data) < 1 << 31:
        indptr = indptr.astype(np.int32)  # as scipy does, so that a loaded matrix equals a computed one
    together = csr_matrix((data, indices, indptr), shape=(len(counts), len(counts)))
    if not together.has_canonical_format:
        raise DataError("the pair counts are not sorted, or one is repeated")
    return together


def _check_counts(known: Correlations, noised: bool) -> None:
    n, c = known.counts, known.together
    if type(known.instances) is not int or known.instances < 0:
        raise DataError("the number of instances is not a whole number of at least 0")
    if c.shape != (len(n), len(n)):
        raise DataError(f"{len(n)} labels, but {c.shape[0]} × {c.shape[1]} pair counts")
    for array, kinds in ((n, (np.int64, np.float64)), (c.data, (np.int32, np.int64, np.float64))):
        if array.dtype not in kinds:
            raise DataError(f"counts have type {array.dtype}, but should be int64 or float64")
        if not np.isfinite(array).all():
            raise DataError("a count is not a finite number")
    if c.diagonal().any() or (c != c.T).nnz:
        raise DataError("the pair counts are not symmetric, or pair a label with itself")
    if not noised and (n.dtype.kind, c.data.dtype.kind) != ("i", "i"):
        raise DataError("counts without noise must be whole numbers")
    u = np.repeat(np.arange(len(n)), np.diff(c.indptr))
    if (n < 0).any() or (n > known.instances).any() or (c.data < 0).any():
        raise DataError("a count is negative, or larger than the number of instances")
    if (c.data > np.minimum(n[u], n[c.indices])).any():
        raise DataError("two labels occur together more often than one of them alone")


def _index_of(pseudonyms: np.ndarray) -> dict[bytes, int]:
    return {row.tobytes(): index for index, row in enumerate(pseudonyms)}
