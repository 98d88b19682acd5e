"""Multiply sparse and dense matrices at the speed of memory, without large intermediate results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedalc.core.blocks import blocks

_CACHED = 2**21  # bytes that fit into the processor's cache


@dataclass(frozen=True)
class WeightedBags:
    """A sparse matrix as bags of weighted rows: its product with a dense matrix is a weighted embedding bag.

    This kernel is two to three times as fast as torch's sparse product, and runs on every device. A matrix of which
    half or more is not zero, as the outputs of a network are, is a dense one instead.
    """

    index: Tensor
    starts: Tensor
    weight: Tensor
    dense: Tensor | None = None

    @classmethod
    def from_csr(cls, matrix: csr_matrix, dtype: torch.dtype, device: torch.device | str) -> WeightedBags:
        if is_dense(matrix):
            nothing = torch.empty(0, dtype=dtype, device=device)
            return cls(nothing, nothing, nothing, torch.from_numpy(matrix.toarray()).to(dtype).to(device))
        return cls(
            torch.from_numpy(matrix.indices.astype(np.int32)).to(device),
            torch.from_numpy(matrix.indptr.astype(np.int32)).to(device),
            torch.from_numpy(matrix.data).to(dtype).to(device),
        )

    def __matmul__(self, dense: Tensor) -> Tensor:
        with torch.no_grad():
            if self.dense is not None:
                return self.dense @ dense
            return embedding_bag(
                self.index, dense, self.starts, mode="sum", per_sample_weights=self.weight, include_last_offset=True
            )


def is_dense(matrix: csr_matrix) -> bool:
    """Return whether half or more of a matrix is not zero: it is then smaller and faster as a dense one."""
    return 2 * matrix.nnz >= matrix.shape[0] * matrix.shape[1] > 0


def weighted_gram(matrix: csr_matrix, weights: np.ndarray) -> np.ndarray:
    """Return Xᵀ diag(weights) X. Of a sparse matrix a few rows at a time: in sparse form they are larger. Memory: the
    result, and a block of it or of X."""
    gram = np.zeros((matrix.shape[1], matrix.shape[1]), dtype=matrix.dtype)
    if is_dense(matrix):
        for rows in blocks(matrix.shape[0], matrix.dtype.itemsize * 2 * matrix.shape[1]):
            block = matrix[rows].toarray()
            gram += block.T @ (block * weights[rows, None].astype(matrix.dtype))
        return gram
    weighted = matrix.multiply(weights[:, None]).T.tocsr()
    for rows in blocks(len(gram), 12 * len(gram)):
        gram[rows] = (weighted[rows] @ matrix).toarray()
    return gram


def products_at(X: Tensor, Z: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return X[u]ᵀZ[v] for the pairs (u, v) only, a few MB at a time: larger blocks are not faster."""
    at_once = max(1, _CACHED // (X.shape[1] * X.element_size()))
    out = X.new_empty(len(first))
    for start in range(0, len(first), at_once):
        part = slice(start, start + at_once)
        out[part] = torch.linalg.vecdot(X[first[part]], Z[second[part]])
    return out
