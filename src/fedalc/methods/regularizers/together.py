"""Sums over the pairs of classes that occur together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.core.sparse_products import products_at
from fedalc.labels.correlations import Correlations
from fedalc.methods.regularizers.potentials import Potential
from fedalc.methods.regularizers.slopes import PairSlopes


@dataclass(frozen=True)
class Together:
    """Σ_{u≠v} (c_uv / N) φ(s_uv). Only pairs that occur together count, so the cost grows with the entries of c."""

    potential: Potential
    correlations: Correlations
    budget: int = DEFAULT_BUDGET

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        # Per pair: two rows of W, a product of them or with the slope, a temporary, and a few numbers.
        pairs_at_once = max(1, self.budget // (4 * W.shape[1] * W.element_size() + 64))
        process_pairs = distributed.own_range(self.correlations.together.nnz)
        for u, v, share in self.correlations.pairs_together(pairs_at_once, W, process_pairs):
            first, second = W[u], W[v]
            cost, slope = self.potential((first * second).sum(1))
            value += (share * cost).sum().item()
            slope = (share * slope).unsqueeze(1)
            gradient.index_add_(0, u, slope * second)
            gradient.index_add_(0, v, slope * first)
        distributed.sum_over([gradient])
        return distributed.sum_of(value), gradient

    def slopes(self, W: Tensor, first: Tensor, second: Tensor) -> PairSlopes:
        _, slope = self.potential(products_at(W, W, first, second))
        none = torch.zeros_like(slope)
        return PairSlopes(torch.zeros_like(W), none, none, slope * (first != second)).scaled(self.weight_of_one)

    @property
    def weight_of_one(self) -> float:
        return self.correlations.weight_of_one("sigma")
