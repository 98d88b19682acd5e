"""What the server knows of the labels: how often each occurs, and how often each two occur together.

From `n` and the sparse `c` every weight of the paper follows; neither label sets nor negative pairs are stored.
Memory: one number per label and one per pair of labels that ever occurs together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix
from torch import Tensor

from fedalc.errors import ConfigError
from fedalc.settings import Weighting

PAIRS_AT_ONCE = 1 << 23  # pairs of labels counted at a time: bounds memory, changes no result


@dataclass(frozen=True)
class Correlations:
    """`instances` is N, `counts` n (one per label), `together` c (labels × labels, sparse, symmetric, no diagonal)."""

    instances: int
    counts: np.ndarray
    together: csr_matrix

    @classmethod
    def from_label_sets(cls, labels: csr_matrix, weights: np.ndarray | None = None) -> Correlations:
        """From Y, one instance per row. Instances without a label are on no client, so the server never hears of them.

        With `weights`, instance j counts weights[j] times in n and c. N does not change.

        >>> Y = csr_matrix([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
        >>> known = Correlations.from_label_sets(Y)
        >>> known.instances, known.counts.tolist(), known.together.toarray().tolist()
        (2, [2, 1, 0], [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
        """
        sizes = np.diff(labels.indptr)
        weight = np.ones(len(sizes), dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.float64)
        counts = np.bincount(labels.indices, np.repeat(weight, sizes), minlength=labels.shape[1]).astype(weight.dtype)
        upper = csr_matrix((labels.shape[1], labels.shape[1]), dtype=weight.dtype)
        for u, v, counted in _pairs(labels, weight):
            upper = upper + coo_matrix((counted, (u, v)), shape=upper.shape).tocsr()
        together = (upper + upper.T).tocsr()
        together.eliminate_zeros()
        together.sort_indices()
        return cls(int(np.count_nonzero(sizes)), counts, together)

    def tensors(self) -> dict[str, Tensor]:
        """For a file of tensors, with `instances` beside them."""
        c = self.together
        arrays = {"counts": self.counts, "indptr": c.indptr, "indices": c.indices, "together": c.data}
        return {f"labels.{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], instances: int) -> Correlations:
        array = {name: tensors[f"labels.{name}"].numpy() for name in ("counts", "indptr", "indices", "together")}
        size = len(array["counts"])
        together = csr_matrix((array["together"], array["indices"], array["indptr"]), shape=(size, size))
        return cls(instances, array["counts"], together)

    @property
    def label_count(self) -> int:
        return len(self.counts)

    @cached_property
    def _gamma_scale(self) -> np.ndarray:
        """1 / Σ_{v≠u} (n_u - c_uv); 0 for a label that occurs with all others always, or never."""
        total = (self.label_count - 1) * self.counts - np.asarray(self.together.sum(axis=1)).ravel()
        return np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)

    def apart(self, rows: slice, weighting: Weighting, like: Tensor) -> Tensor:
        """Rows of the weights of negative pairs, (n_u - c_uv) times a scale per row, zero on the diagonal.

        The scale makes it σ (1/N), γ (1 over the row's sum), the share of u's instances that lack v (`conditional`,
        1/n_u: between 0 and 1 whatever the dataset's size) or the plain counts (1). Dense, for a block of rows only;
        type and device are those of `like`.
        """
        weight = np.repeat(self.counts[rows, None].astype(np.float64), self.label_count, axis=1)
        block = self.together[rows].tocoo()
        weight[block.row, block.col] -= block.data
        weight[np.arange(len(weight)), np.arange(rows.start, rows.stop)] = 0.0
        weight *= self._scale(rows, weighting)[:, None]
        return torch.from_numpy(weight).to(like)

    def apart_at(self, rows: Tensor, columns: Tensor, weighting: Weighting, like: Tensor) -> Tensor:
        """The same weights, only at the given columns (one list per row): nothing of size labels is built."""
        own, wanted = rows.cpu().numpy(), columns.cpu().numpy()
        together = np.asarray(self.together[np.repeat(own, wanted.shape[1]), wanted.ravel()]).reshape(wanted.shape)
        weight = (self.counts[own, None] - together) * self._scale(own, weighting)[:, None]
        return torch.from_numpy(weight).to(like)

    def pairs_together(
        self, at_once: int, like: Tensor, within: slice | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The ordered pairs that occur together, `at_once` at a time: (u, v, c_uv / N). `within`: of these only."""
        c = self.together
        first = np.repeat(np.arange(self.label_count), np.diff(c.indptr))
        begin, end = (0, c.nnz) if within is None else (within.start, within.stop)
        for start in range(begin, end, at_once):
            part = slice(start, min(start + at_once, end))
            yield (
                torch.from_numpy(first[part]).to(like.device),
                torch.from_numpy(c.indices[part].astype(np.int64)).to(like.device),
                torch.from_numpy(c.data[part] / self.instances).to(like),
            )

    def weight_of_one(self, weighting: Weighting) -> float:
        """What one more instance with u and without v adds to the weight of the pair (u, v), whatever the others are.

        γ and `conditional` have no such number: they divide by counts, which every other instance moves as well.
        """
        if weighting not in ("sigma", "counts"):
            raise ConfigError(
                f"the gradient of one instance needs weighting 'sigma' or 'counts': {weighting!r} divides by counts "
                "that are private themselves"
            )
        return 1.0 if weighting == "counts" else 1.0 / max(self.instances, 1)

    def _scale(self, rows: slice | np.ndarray, weighting: Weighting) -> np.ndarray:
        if weighting == "gamma":
            return self._gamma_scale[rows]
        if weighting == "conditional":
            return 1.0 / np.maximum(self.counts[rows], 1)
        return np.full(len(self.counts[rows]), self.weight_of_one(weighting))


def _pairs(labels: csr_matrix, weight: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All pairs u < v of labels of one instance, with the instance's weight: some millions at a time.

    Instances with equally many labels are taken together. Faster than the product YᵀY, which makes each pair twice.
    """
    if not labels.has_sorted_indices:
        labels = labels.sorted_indices()
    sizes = np.diff(labels.indptr)
    for size in np.unique(sizes[sizes > 1]):
        first, second = np.triu_indices(int(size), k=1)
        instances = np.flatnonzero(sizes == size)
        at_once = max(1, PAIRS_AT_ONCE // len(first))
        for start in range(0, len(instances), at_once):
            block = instances[start : start + at_once]
            own = labels.indices[labels.indptr[block, None] + np.arange(size)]
            yield own[:, first].ravel(), own[:, second].ravel(), np.repeat(weight[block], len(first))
