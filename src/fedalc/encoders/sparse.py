"""Sparse instances as an encoder's input: CSR rows, their transpose for the backward pass, and a key per instance."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor


class SparseRows:
    """A block of instances. `keys` name the instances, so that dropout can be the same wherever one is encoded."""

    def __init__(self, features: csr_matrix, keys: np.ndarray, dtype: torch.dtype, device: torch.device | str) -> None:
        self.shape = features.shape
        self.keys = torch.from_numpy(np.asarray(keys, dtype=np.int64)).to(device)
        self._matrix = _to_torch(features, dtype, device)
        self._source: tuple[csr_matrix, torch.dtype, torch.device | str] | None = (features, dtype, device)
        self._transposed: Tensor | None = None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __matmul__(self, weight: Tensor) -> Tensor:
        return _SparseProduct.apply(self, weight)

    def multiply(self, dense: Tensor) -> Tensor:
        return self._matrix @ dense

    def multiply_transposed(self, dense: Tensor) -> Tensor:
        if self._transposed is None:
            assert self._source is not None
            features, dtype, device = self._source
            self._transposed = _to_torch(features.T.tocsr(), dtype, device)
            self._source = None
        return self._transposed @ dense


class _SparseProduct(torch.autograd.Function):
    """X W with the gradient Xᵀ∇ for W; both products are compiled and use all threads."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: Tensor) -> Tensor:
        ctx.rows = rows
        return rows.multiply(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.rows.multiply_transposed(grads[0])


def _to_torch(matrix: csr_matrix, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")  # torch says so once per process
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        torch.from_numpy(matrix.data).to(dtype),
        size=matrix.shape,
        check_invariants=False,
    ).to(device)


def scale_rows(features: csr_matrix, how: str) -> csr_matrix:
    """Rows of length 1 (`unit`), the average of the rows used (`mean`: divided by how many there are), or `raw`."""
    if how == "raw":
        return features
    if how == "unit":
        size = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    else:
        size = np.diff(features.indptr).astype(np.float64)
    scale = np.divide(1.0, size, out=np.zeros(len(size)), where=size > 0)
    values = features.data * np.repeat(scale, np.diff(features.indptr)).astype(features.dtype)
    return csr_matrix((values, features.indices, features.indptr), shape=features.shape, copy=False)
