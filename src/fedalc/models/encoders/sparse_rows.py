"""Sparse instances as an encoder's input: CSR rows, their transpose for the backward pass, and a key per instance."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse
from torch import Tensor

from fedalc.core.sparse_products import WeightedBags


class SparseRows:
    """A block of instances. `keys` name the instances, so that dropout can be the same wherever one is encoded.

    The transpose, as large as the rows, is made when the first gradient asks for it. It has rows for the features that
    occur only (`present`): a gradient costs what the block holds, however many features there are. Where half of all
    values or more are there, the block is a dense matrix instead, which is then smaller than the two sparse ones.
    """

    def __init__(self, features: csr_matrix, keys: np.ndarray, dtype: torch.dtype, device: torch.device | str) -> None:
        self.keys = torch.from_numpy(np.asarray(keys, dtype=np.int64)).to(device)
        self._transposed: tuple[Tensor, WeightedBags] | None = None
        self._features: csr_matrix | None = None
        self._dense: Tensor | None = None
        self._feature_count = features.shape[1]
        if 2 * features.nnz >= features.shape[0] * features.shape[1] > 0:
            self._dense = torch.from_numpy(features.toarray()).to(dtype).to(device)
        else:
            self._features, self.rows = features, WeightedBags.from_csr(features, dtype, device)

    def __len__(self) -> int:
        return len(self.keys)

    def prefetch(self) -> None:
        """They are in memory."""

    def __matmul__(self, weight: Tensor) -> Tensor:
        return _SparseProduct.apply(self, weight) if self._dense is None else self._dense @ weight

    def dense(self) -> Tensor:
        """Instances × features, for encoders that are not ours. Not kept."""
        if self._dense is not None:
            return self._dense
        size = (len(self), self._feature_count)
        rows = torch.repeat_interleave(torch.arange(len(self), device=self.keys.device), self.rows.starts.diff())
        return self.rows.weight.new_zeros(size).index_put_((rows, self.rows.index.long()), self.rows.weight)

    @property
    def transposed(self) -> tuple[Tensor, WeightedBags]:
        """(present, their rows)."""
        if self._transposed is None:
            assert self._features is not None
            present, rows = _without_empty_rows(self._features.T.tocsr())
            device = self.rows.weight.device
            bags = WeightedBags.from_csr(rows, self.rows.weight.dtype, device)
            self._transposed = torch.from_numpy(present).to(device), bags
            self._features = None
        return self._transposed


class _SparseProduct(torch.autograd.Function):
    """X W, with the gradient Xᵀ∇ for W.

    Where W has a gradient already, to be added to, that is done here and in its place: to hand over a matrix of W's
    size for each block would cost more than the product, where features are many."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: Tensor) -> Tensor:
        ctx.sparse_rows, ctx.weight = rows, weight
        return rows.rows @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None]:
        weight = ctx.weight
        present, bags = ctx.sparse_rows.transposed
        part = bags @ grads[0].contiguous()
        if weight.is_leaf and weight.grad is not None:
            weight.grad[present] += part
            return None, None
        return None, torch.zeros_like(weight).index_copy_(0, present, part)


def _without_empty_rows(matrix: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """Which rows are not empty, and these."""
    kept = np.flatnonzero(np.diff(matrix.indptr))
    starts = np.append(matrix.indptr[kept], matrix.indptr[-1])
    return kept, csr_matrix((matrix.data, matrix.indices, starts), shape=(len(kept), matrix.shape[1]))


def scale_rows(features: csr_matrix, how: str) -> csr_matrix:
    """Rows of length 1 (`unit`), the average of the rows used (`mean`: divided by how many there are), or `raw`."""
    if how == "raw" or not issparse(features):  # a picture has a scale of its own
        return features
    if how == "unit":
        features = _squarable(features, _lengths(features))
        size = _lengths(features)
    else:
        size = np.diff(features.indptr).astype(np.float64)
    scale = np.divide(1.0, size, out=np.zeros(len(size)), where=size > 0)
    values = features.data * np.repeat(scale, np.diff(features.indptr)).astype(features.dtype)
    return csr_matrix((values, features.indices, features.indptr), shape=features.shape, copy=False)


def _lengths(features: csr_matrix) -> np.ndarray:
    return np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())


def _squarable(features: csr_matrix, lengths: np.ndarray) -> csr_matrix:
    """Rows whose squares are beyond 32 bits divided by their largest value: they would become all zeros otherwise."""
    odd = ~np.isfinite(lengths) | ((lengths == 0) & (np.diff(features.indptr) > 0))
    if not odd.any():
        return features
    counts = np.diff(features.indptr)
    entries = np.repeat(odd, counts)
    largest = abs(features).max(axis=1).toarray().ravel().astype(np.float64)
    largest[largest == 0] = 1
    values = features.data.copy()
    values[entries] = features.data[entries] / np.repeat(largest, counts)[entries]
    return csr_matrix((values, features.indices, features.indptr), shape=features.shape)
