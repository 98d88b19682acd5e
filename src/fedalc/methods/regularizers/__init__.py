"""Regularisers of the class embeddings W, and their exact gradients, without a labels × labels tensor.

Each is a sum over ordered pairs of different classes, Σ a_uv φ(w_uᵀw_v), defined by three choices: the cost of a pair
(a *potential* φ of the cosine), the *weight* a_uv of a pair, and the set of pairs (all, or each class with its K
nearest). a_uv may differ from a_vu, so the gradient in w_u has two parts: from pairs with u first, and with u second.

    ∇_u = Σ_v [ a_uv φ'(s_uv) + a_vu φ'(s_vu) ] w_v

The sums run over blocks of rows, and a block needs at most `budget` bytes. Additional memory: the gradient (two for a
`Sum`), and 24 bytes per nearest pair. With several processes, each computes its share of the rows u or of the pairs.

`slopes` returns the terms of a single instance's contribution to the gradient, which `PrivateGradient` clips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedalc.errors import ConfigError
from fedalc.methods.regularizers.all_pairs import AllPairs
from fedalc.methods.regularizers.nearest_pairs import NearestPairs
from fedalc.methods.regularizers.potentials import Potential, attract, repel, repel_within
from fedalc.methods.regularizers.slopes import PairSlopes
from fedalc.methods.regularizers.together import Together


class Objective(Protocol):
    """The interface that a step on W needs."""

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]: ...


@dataclass(frozen=True)
class Sum:
    """A weighted sum of regularisers."""

    terms: tuple[tuple[float, AllPairs | NearestPairs | Together], ...]

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        for factor, term in self._active:
            part, slope = term.value_and_gradient(W)
            value += factor * part
            gradient.add_(slope, alpha=factor)
            del slope  # free it before the next term allocates its own
        return value, gradient

    def slopes(self, W: Tensor, first: Tensor, second: Tensor) -> PairSlopes:
        if sum(not isinstance(term, Together) for _, term in self._active) > 1:
            raise ConfigError(
                "the gradient of one instance can be computed for only one repelling sum over pairs, not for several"
            )
        parts = [term.slopes(W, first, second).scaled(factor) for factor, term in self._active]
        none = PairSlopes(torch.zeros_like(W), *(W.new_zeros(len(first)) for _ in range(3)))
        return sum(parts, start=none)

    @property
    def _active(self) -> list[tuple[float, AllPairs | NearestPairs | Together]]:
        return [(factor, term) for factor, term in self.terms if factor]

    @property
    def weight_of_one(self) -> float:
        """The largest weight among the terms: 1/N, or 1 if a term is weighted by counts."""
        return max((term.weight_of_one for _, term in self._active), default=1.0)


Regularizer = AllPairs | NearestPairs | Together | Sum

__all__ = [
    "AllPairs",
    "NearestPairs",
    "Objective",
    "PairSlopes",
    "Potential",
    "Regularizer",
    "Sum",
    "Together",
    "attract",
    "repel",
    "repel_within",
]
