"""What the server knows of the labels: how often each occurs, and how often each two occur together.

From `n` and the sparse `c` every weight of the paper follows; neither label sets nor negative pairs are stored.
Memory: one number per label and one per pair of labels that ever occurs together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config import Weighting


@dataclass(frozen=True)
class Correlations:
    """`instances` is N, `counts` n (one per label), `together` c (labels × labels, sparse, symmetric, no diagonal)."""

    instances: int
    counts: np.ndarray
    together: csr_matrix

    @classmethod
    def from_label_sets(cls, labels: csr_matrix) -> Correlations:
        """From Y, one instance per row. Instances without a label are on no client, so the server never hears of them.

        >>> Y = csr_matrix([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
        >>> known = Correlations.from_label_sets(Y)
        >>> known.instances, known.counts.tolist(), known.together.toarray().tolist()
        (2, [2, 1, 0], [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
        """
        Y = csr_matrix(
            (np.ones(labels.nnz, dtype=np.int64), labels.indices, labels.indptr), shape=labels.shape, copy=False
        )
        together = (Y.T @ Y).tocsr()
        together.setdiag(0)
        together.eliminate_zeros()
        together.sort_indices()
        return cls(
            instances=int(np.count_nonzero(np.diff(labels.indptr))),
            counts=np.asarray(Y.sum(axis=0)).ravel(),
            together=together,
        )

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

    def apart_at(self, rows: slice, columns: Tensor, weighting: Weighting, like: Tensor) -> Tensor:
        """The same weights, only at the given columns (one list per row): nothing of size labels is built."""
        wanted = columns.cpu().numpy()
        own = np.repeat(np.arange(rows.start, rows.stop), wanted.shape[1])
        together = np.asarray(self.together[own, wanted.ravel()]).reshape(wanted.shape)
        weight = (self.counts[rows, None] - together) * self._scale(rows, weighting)[:, None]
        return torch.from_numpy(weight).to(like)

    def pairs_together(self, at_once: int, like: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The ordered pairs that occur together, `at_once` at a time: (u, v, c_uv / N)."""
        c = self.together
        first = np.repeat(np.arange(self.label_count), np.diff(c.indptr))
        for start in range(0, c.nnz, at_once):
            part = slice(start, start + at_once)
            yield (
                torch.from_numpy(first[part]).to(like.device),
                torch.from_numpy(c.indices[part].astype(np.int64)).to(like.device),
                torch.from_numpy(c.data[part] / self.instances).to(like),
            )

    def _scale(self, rows: slice, weighting: Weighting) -> np.ndarray:
        if weighting == "gamma":
            return self._gamma_scale[rows]
        if weighting == "conditional":
            return 1.0 / np.maximum(self.counts[rows], 1)
        return np.full(rows.stop - rows.start, 1.0 if weighting == "counts" else 1.0 / max(self.instances, 1))
