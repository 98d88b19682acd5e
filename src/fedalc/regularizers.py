"""Regularisers of the class embeddings W, and their exact gradients, without a labels × labels tensor.

Each is a sum over ordered pairs of different classes, Σ a_uv φ(w_uᵀw_v), and is put together from three choices:
what a pair costs (a *potential* φ of the cosine), how much it counts (a *weight* a_uv), and which pairs are taken
(all, or the K nearest of each class). As a_uv need not equal a_vu, the gradient in w_u has a part from the pairs in
which u comes first and one from those in which it comes second:

    ∇_u = Σ_v [ a_uv φ'(s_uv) + a_vu φ'(s_vu) ] w_v

Rows are taken in blocks, so that what a block needs stays within `budget` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.config import Weighting
from fedalc.correlations import Correlations
from fedalc.geometry import DEFAULT_BUDGET, nearest_classes, row_blocks

Potential = Callable[[Tensor], tuple[Tensor, Tensor]]  # cosine → (φ, φ')


def repel_within(margin: float | Tensor) -> Potential:
    """φ = max(0, ν - d)², d = 1 - s: pairs nearer than the margin are pushed apart."""

    def potential(s: Tensor) -> tuple[Tensor, Tensor]:
        gap = (s + (margin - 1.0)).clamp(min=0)
        return gap.square(), 2 * gap

    return potential


def repel(s: Tensor) -> tuple[Tensor, Tensor]:
    """φ = -d²: pushed apart however far they are."""
    d = 1 - s
    return -d.square(), 2 * d


def attract(s: Tensor) -> tuple[Tensor, Tensor]:
    """φ = d²: pulled together."""
    d = 1 - s
    return d.square(), -2 * d


@dataclass(frozen=True)
class AllPairs:
    """Σ_u Σ_{v≠u} a_uv φ(s_uv), with the correlations' weights or, without correlations, a = 1."""

    potential: Potential
    correlations: Correlations | None = None
    weighting: Weighting = "sigma"
    budget: int = DEFAULT_BUDGET

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        # Cosines, their gap, cost, slope, and the weights in double precision before they are cast: six times a row.
        for rows in row_blocks(W, self.budget, per_row=6 * len(W)):
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
        return value, gradient


@dataclass(frozen=True)
class NearestPairs:
    """Σ_u Σ_{v ∈ N_K(u)} a_uv φ(s_uv): the same sum over the K classes nearest to u, among `candidates` if given.

    With `adaptive`, φ is max(0, ν_u - d)² where ν_u is the distance from u to its (K+1)-th nearest class, taken as a
    constant: exactly the K nearest are active.
    """

    neighbours: int
    potential: Potential | None  # None: adaptive
    correlations: Correlations | None = None
    weighting: Weighting = "sigma"
    candidates: Tensor | None = None
    budget: int = DEFAULT_BUDGET

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        adaptive = self.potential is None
        for rows in row_blocks(W, self.budget, per_row=self.neighbours * W.shape[1]):
            similarity, index = nearest_classes(W, rows, self.neighbours + adaptive, self.candidates)
            active = similarity.isfinite()  # not so for the class itself, listed where there are no more others
            potential = self.potential
            if potential is None:
                # Where there is no (K+1)-th class, the farthest there is sets the margin. Its own gap is 0.
                potential = repel_within(1 - similarity.masked_fill(~active, torch.inf).amin(dim=1, keepdim=True))
            cost, slope = potential(similarity.nan_to_num(neginf=0.0))
            if self.correlations is not None:
                weight = self.correlations.apart_at(rows, index, self.weighting, W)
                cost, slope = cost * weight, slope * weight
            cost, slope = cost * active, slope * active
            value += cost.sum().item()
            gradient[rows] += torch.einsum("uk,ukd->ud", slope, W[index])
            second = slope.unsqueeze(2) * W[rows].unsqueeze(1)
            gradient.index_add_(0, index.flatten(), second.flatten(0, 1))
        return value, gradient


@dataclass(frozen=True)
class Together:
    """Σ_{u≠v} (c_uv / N) φ(s_uv): over the pairs that occur together only, so it costs what `c` holds."""

    potential: Potential
    correlations: Correlations
    budget: int = DEFAULT_BUDGET

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        pairs_at_once = max(1, self.budget // (W.shape[1] * W.element_size()))
        for u, v, share in self.correlations.pairs_together(pairs_at_once, W):
            first, second = W[u], W[v]
            cost, slope = self.potential((first * second).sum(1))
            value += (share * cost).sum().item()
            slope = (share * slope).unsqueeze(1)
            gradient.index_add_(0, u, slope * second)
            gradient.index_add_(0, v, slope * first)
        return value, gradient


@dataclass(frozen=True)
class Sum:
    """Several regularisers, each with its factor."""

    terms: tuple[tuple[float, AllPairs | NearestPairs | Together], ...]

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        for factor, term in self.terms:
            if factor:
                part, slope = term.value_and_gradient(W)
                value += factor * part
                gradient += factor * slope
        return value, gradient


Regularizer = AllPairs | NearestPairs | Together | Sum
