"""Sums over all pairs of classes, computed in blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.config.schema import Weighting
from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.sparse_products import products_at
from fedalc.labels.correlations import Correlations
from fedalc.methods.regularizers.potentials import Potential
from fedalc.methods.regularizers.slopes import PairSlopes, weight_of_one


@dataclass(frozen=True)
class AllPairs:
    """Σ_u Σ_{v≠u} a_uv φ(s_uv). The correlations give the weights a; without correlations, a = 1."""

    potential: Potential
    correlations: Correlations | None = None
    weighting: Weighting = "sigma"
    budget: int = DEFAULT_BUDGET

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        # Six values per pair: cosine, gap, cost, slope, and the weight in double precision before the cast.
        process_rows = distributed.own_range(len(W))
        for rows in blocks(len(W), 6 * len(W) * W.element_size(), self.budget, within=process_rows):
            cost, slope = self.potential(W[rows] @ W.T)
            if self.correlations is None:
                for term in (cost, slope):
                    term[torch.arange(len(term)), torch.arange(rows.start, rows.stop)] = 0
            else:
                weight = self.correlations.apart(rows, self.weighting, W)
                cost, slope = cost.mul_(weight), slope.mul_(weight)
            value += cost.sum().item()
            gradient[rows] += slope @ W
            gradient += slope.T @ W[rows]
        distributed.sum_over([gradient])
        return distributed.sum_of(value), gradient

    def slopes(self, W: Tensor, first: Tensor, second: Tensor) -> PairSlopes:
        """Compute A in blocks of columns: each block holds both rows of every pair. C²D + pairs·C operations."""
        pull, apart, shared = torch.zeros_like(W), W.new_zeros(len(first)), W.new_zeros(len(first))
        for columns in blocks(len(W), 4 * len(W) * W.element_size(), self.budget):
            _, slope = self.potential(W @ W[columns].T)
            slope[torch.arange(columns.start, columns.stop), torch.arange(slope.shape[1])] = 0
            pull += slope @ W[columns]
            inside = ((second >= columns.start) & (second < columns.stop)).nonzero().squeeze(1)
            apart[inside] = slope[first[inside], second[inside] - columns.start]
            shared += products_at(slope, slope, first, second)
        return PairSlopes(pull, apart, shared, torch.zeros_like(apart)).scaled(self.weight_of_one)

    @property
    def weight_of_one(self) -> float:
        return weight_of_one(self.correlations, self.weighting)
