"""Regularisers of the class embeddings W, and their exact gradients, without a labels × labels tensor.

Each is a sum over ordered pairs of different classes, Σ a_uv φ(w_uᵀw_v), and is put together from three choices:
what a pair costs (a *potential* φ of the cosine), how much it counts (a *weight* a_uv), and which pairs are taken
(all, or the K nearest of each class). As a_uv need not equal a_vu, the gradient in w_u has a part from the pairs in
which u comes first and one from those in which it comes second:

    ∇_u = Σ_v [ a_uv φ'(s_uv) + a_vu φ'(s_vu) ] w_v

Rows are taken in blocks, so that what a block needs stays within `budget` bytes. Beside that: the gradient (of a sum of
several two), and for the nearest pairs 24 bytes for each. Of several processes each takes its share of the rows u, or
of the pairs.

Each can also say what a single instance's part in the gradient is made of (`slopes`), for those who limit it.
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
    """What a step on W needs."""

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]: ...


@dataclass(frozen=True)
class Sum:
    """Several regularisers, each with its factor."""

    terms: tuple[tuple[float, AllPairs | NearestPairs | Together], ...]

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        for factor, term in self._active:
            part, slope = term.value_and_gradient(W)
            value += factor * part
            gradient.add_(slope, alpha=factor)
            del slope  # before the next term's
        return value, gradient

    def slopes(self, W: Tensor, first: Tensor, second: Tensor) -> PairSlopes:
        if sum(not isinstance(term, Together) for _, term in self._active) > 1:
            raise ConfigError(
                "the gradient of one instance is worked out for one sum over pairs apart, not for several"
            )
        parts = [term.slopes(W, first, second).scaled(factor) for factor, term in self._active]
        none = PairSlopes(torch.zeros_like(W), *(W.new_zeros(len(first)) for _ in range(3)))
        return sum(parts, start=none)

    @property
    def _active(self) -> list[tuple[float, AllPairs | NearestPairs | Together]]:
        return [(factor, term) for factor, term in self.terms if factor]

    @property
    def weight_of_one(self) -> float:
        """That of the heaviest term: 1/N, or 1 as soon as one is weighted by counts."""
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
