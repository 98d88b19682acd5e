"""Sparse instances as the input of an encoder: CSR rows, their transpose for the backward pass, a key per instance."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core.sparse_products import WeightedBags, is_dense

ColumnsOf = Callable[["SparseRows"], Sequence[Tensor]]
"""Computes dense columns for instances, as matrices with a row for each instance."""


class SparseRows:
    """A block of instances. `keys` identify the instances, so that dropout is the same wherever one is encoded.

    The first gradient builds the transpose, which is as large as the rows. It has rows only for features that occur
    (`present`), so the cost of a gradient depends on the values in the block and not on the number of features. If half
    or more of all values are nonzero, the block is a dense matrix, which is smaller than the two sparse ones.
    """

    def __init__(self, features: csr_matrix, keys: np.ndarray, dtype: torch.dtype, device: torch.device | str) -> None:
        self.keys = torch.from_numpy(np.asarray(keys, dtype=np.int64)).to(device)
        self.dtype = dtype
        self._transposed: tuple[Tensor, WeightedBags] | None = None
        self._features: csr_matrix | None = None
        self._dense: Tensor | None = None
        self.feature_count = features.shape[1]
        if is_dense(features):
            self._dense = torch.from_numpy(features.toarray()).to(dtype).to(device)
        else:
            self._features, self.rows = features, WeightedBags.from_csr(features, dtype, device)

    @classmethod
    def of_dense(cls, features: Tensor) -> SparseRows:
        """Return the rows of a dense tensor, which is not copied or looked into: it may be traced."""
        rows = cls.__new__(cls)
        rows.keys = torch.zeros(features.shape[0], dtype=torch.int64, device=features.device)
        rows.dtype, rows.feature_count = features.dtype, features.shape[1]
        rows._transposed, rows._features, rows._dense = None, None, features
        return rows

    def __len__(self) -> int:
        return len(self.keys)

    def prefetch(self) -> None:
        """Do nothing: the rows are in memory."""

    def __matmul__(self, weight: Tensor) -> Tensor:
        return self.product(weight)

    def product(self, weight: Tensor, columns: Tensor | None = None) -> Tensor:
        """Return [X, columns] W. `columns`: dense, with no gradient of their own."""
        if self._dense is None:
            return _SparseProduct.apply(self, weight, columns)
        return (self._dense if columns is None else torch.cat([self._dense, columns], dim=1)) @ weight

    def beside(self, columns_of: ColumnsOf, with_features: bool = True) -> SparseRows | Design:
        """Return these rows and, to their right, dense columns, if there are any; without the rows if `with_features`
        is false."""
        columns = columns_of(self)
        return Design(self if with_features else None, torch.cat(list(columns), dim=1)) if columns else self

    def times(self, factors: Callable[[Tensor, Tensor], Tensor]) -> SparseRows:
        """Return the rows with every stored value multiplied by factors(instances, columns)."""
        device, columns = self.keys.device, self.feature_count
        if self._dense is not None:
            part = copy.copy(self)
            instance, column = (torch.arange(size, device=device) for size in (len(self), columns))
            part._dense = self._dense * factors(instance.unsqueeze(1), column)
            return part
        index, starts = self.rows.index, self.rows.starts
        instance = torch.repeat_interleave(torch.arange(len(self), device=device), starts.diff())
        values = self.rows.weight * factors(instance, index.long())
        arrays = tuple(tensor.cpu().numpy() for tensor in (values, index, starts))
        return SparseRows(csr_matrix(arrays, (len(self), columns)), self.keys.cpu().numpy(), self.dtype, device)

    def nothing(self) -> SparseRows:
        """Return one instance without any feature."""
        empty = csr_matrix((1, self.feature_count), dtype=np.float32)
        return SparseRows(empty, np.zeros(1), self.dtype, self.keys.device)

    @property
    def is_dense(self) -> bool:
        return self._dense is not None

    def dense(self) -> Tensor:
        """Return instances × features as a dense tensor, for users' encoders. Not cached."""
        if self._dense is not None:
            return self._dense
        size = (len(self), self.feature_count)
        rows = torch.repeat_interleave(torch.arange(len(self), device=self.keys.device), self.rows.starts.diff())
        return self.rows.weight.new_zeros(size).index_put_((rows, self.rows.index.long()), self.rows.weight)

    @property
    def transposed(self) -> tuple[Tensor, WeightedBags]:
        """(features that occur, their rows of the transpose)."""
        if self._transposed is None:
            assert self._features is not None
            present, rows = _without_empty_rows(self._features.T.tocsr())
            device = self.rows.weight.device
            bags = WeightedBags.from_csr(rows, self.rows.weight.dtype, device)
            self._transposed = torch.from_numpy(present).to(device), bags
            self._features = None
        return self._transposed


class Design:
    """Sparse features, or none, and dense columns to their right: what an encoder that is linear in θ multiplies with
    θ. It is a constant: no gradient flows into it."""

    def __init__(self, rows: SparseRows | None, columns: Tensor) -> None:
        self.rows, self.columns = rows, columns

    def __matmul__(self, weight: Tensor) -> Tensor:
        return self.columns @ weight if self.rows is None else self.rows.product(weight, self.columns)

    def dense(self) -> Tensor:
        """Return instances × rows of θ."""
        return self.columns if self.rows is None else torch.cat([self.rows.dense(), self.columns], dim=1)


class _SparseProduct(torch.autograd.Function):
    """[X, columns] W, with the gradient [X, columns]ᵀ∇ for W.

    If W already has a gradient, add to it in place: with many features, returning a matrix of W's size for each block
    would cost more than the product."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: Tensor, columns: Tensor | None) -> Tensor:
        ctx.sparse_rows, ctx.weight, ctx.columns = rows, weight, columns
        product = rows.rows @ weight  # X has no values for the rows of the columns
        return product if columns is None else product.addmm_(columns, weight[rows.feature_count :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        weight, columns, slope = ctx.weight, ctx.columns, grads[0].contiguous()
        present, bags = ctx.sparse_rows.transposed
        in_place = weight.is_leaf and weight.grad is not None
        total = weight.grad if in_place else torch.zeros_like(weight)
        total.index_add_(0, present, bags @ slope)
        if columns is not None:
            total[ctx.sparse_rows.feature_count :].addmm_(columns.T, slope)
        return None, None if in_place else total, None


def _without_empty_rows(matrix: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """Return the numbers of the rows that are not empty, and these rows."""
    present = np.flatnonzero(np.diff(matrix.indptr))
    starts = np.append(matrix.indptr[present], matrix.indptr[-1])
    return present, csr_matrix((matrix.data, matrix.indices, starts), shape=(len(present), matrix.shape[1]))
