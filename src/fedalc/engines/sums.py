"""The sums that clients with a linear encoder and a square loss send, and the θ that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core.sparse_products import WeightedBags
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError

LARGEST_GRAM = 2**26
"""The most numbers of G (8,192 columns, 0.5 GB in double precision) that fedalc solves with unless the user names a
method of one round. Beyond, it takes conjugate gradients."""
RECORDS_AT_ONCE = 64  # records that are multiplied with all others at a time: few, so that they stay in the cache


@dataclass(frozen=True)
class Sums:
    """The sums of all clients. x is what θ is multiplied with, `Encoder.design`: the features, or more columns.

    The objective is tr(θᵀ G θ) - 2 tr(θᵀ B) + constant, G = Σ x xᵀ/m, B = Σ_u a_u (Σ_j x_j) w_uᵀ.
    """

    kept: Tensor | GramOfRecords  # G, `Encoder.width` rows and columns, or the records that it is a sum over
    cross: Tensor  # B, `Encoder.width` × D
    constant: float  # Σ over pairs of a_u²
    pairs: int
    traffic: Ledger

    @property
    def gram(self) -> Tensor:
        """G"""
        if isinstance(self.kept, Tensor):
            return self.kept
        return self.kept @ torch.eye(len(self.cross), dtype=self.cross.dtype, device=self.cross.device)

    def solve(self, ridge: float) -> Tensor:
        """Return the θ that solves (G + ridge·I) θ = B, in double precision."""
        cross = self.cross.double()
        if isinstance(self.kept, GramOfRecords):
            return self.kept.solve(cross, ridge).to(self.cross)
        return _solve(self.kept, cross, ridge).to(self.cross)

    def objective(self, theta: Tensor, ridge: float) -> float:
        """Return the mean loss per pair at θ, including the penalty."""
        quadratic = (theta * (self.kept @ theta)).sum() - 2 * (theta * self.cross).sum() + ridge * theta.square().sum()
        return (quadratic.item() + self.constant) / self.pairs


class GramOfRecords:
    """G = ZᵀZ, kept as Z, whose rows are the records, x/√m. For fewer records than columns: a solution then takes a
    matrix of records × records instead of columns × columns. A simulation has the records; a server does not.

    Memory: Z twice and records × records numbers, and while solving these twice more, all in double precision.
    """

    def __init__(self, features: csr_matrix, columns: Tensor) -> None:
        """`features`: the first columns of Z. `columns`: the others."""
        self._csr, self._columns = features, columns.double()
        self._rows = WeightedBags.from_csr(features, torch.float64, columns.device)
        self._transposed = WeightedBags.from_csr(features.T.tocsr(), torch.float64, columns.device)

    def __matmul__(self, theta: Tensor) -> Tensor:
        return self._back(self._scores(theta.double())).to(theta)

    def solve(self, cross: Tensor, ridge: float) -> Tensor:
        """Return (ZᵀZ + ridge·I)⁻¹ B = (B - Zᵀ (Z Zᵀ + ridge·I)⁻¹ Z B) / ridge."""
        inner = _solve(self._products, self._scores(cross), ridge) if ridge > 0 else _no_solution()
        return cross.sub(self._back(inner)).div_(ridge)

    def _scores(self, theta: Tensor) -> Tensor:
        split = self._csr.shape[1]
        return (self._rows @ theta[:split]).addmm_(self._columns, theta[split:])

    def _back(self, of_records: Tensor) -> Tensor:
        return torch.cat([self._transposed @ of_records, self._columns.T @ of_records])

    @cached_property
    def _products(self) -> Tensor:
        """Z Zᵀ"""
        size = self._csr.shape[0]
        products = self._columns @ self._columns.T
        for start in range(0, size, RECORDS_AT_ONCE):
            some = torch.from_numpy(self._csr[start : start + RECORDS_AT_ONCE].T.toarray(order="C")).to(products)
            products[:, start : start + RECORDS_AT_ONCE] += self._rows @ some
        return products


def _solve(matrix: Tensor, right: Tensor, ridge: float) -> Tensor:
    whole = matrix.to(torch.float64, copy=True)
    whole.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(whole)
    return _no_solution() if failed else torch.cholesky_solve(right, factor)


def _no_solution() -> Tensor:
    raise ConfigError("the equations have no unique solution: use a value above 0", "server.ridge")
