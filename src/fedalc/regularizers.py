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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc import distributed
from fedalc.correlations import Correlations
from fedalc.errors import ConfigError
from fedalc.memory import DEFAULT_BUDGET, blocks
from fedalc.neighbours import Search, nearest, takes_index
from fedalc.products import WeightedBags, products_at
from fedalc.settings import Weighting
from fedalc.sharding import Shard
from fedalc.watched import watched

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


class Objective(Protocol):
    """What a step on W needs."""

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]: ...


@dataclass(frozen=True)
class PairSlopes:
    """What one instance's part in the gradient is made of, given at chosen ordered pairs (u, v).

    An instance with labels L adds A_uv for u ∈ L, v ∉ L, and T_uv for u ≠ v both in L, to the slopes of the sum.
    A comes from one regulariser: `shared` is not linear in it. T_uv = T_vu.
    """

    pull: Tensor  # A W, labels × D: where u is pushed if no other label is in L
    apart: Tensor  # A_uv
    shared: Tensor  # (A Aᵀ)_uv
    together: Tensor  # T_uv

    def scaled(self, by: float) -> PairSlopes:
        return PairSlopes(by * self.pull, by * self.apart, by * by * self.shared, by * self.together)

    def __add__(self, other: PairSlopes) -> PairSlopes:
        """Right where one of the two has no A."""
        return PairSlopes(
            self.pull + other.pull,
            self.apart + other.apart,
            self.shared + other.shared,
            self.together + other.together,
        )


def _weight_of_one(term: AllPairs | NearestPairs) -> float:
    """What one instance adds to the weight of a pair: the unit in which its part in the gradient is measured."""
    if term.correlations is None:
        raise ConfigError("this regulariser does not look at label sets, so no instance has a part in its gradient")
    return term.correlations.weight_of_one(term.weighting)


@dataclass(frozen=True)
class AllPairs:
    """Σ_u Σ_{v≠u} a_uv φ(s_uv), with the correlations' weights or, without correlations, a = 1."""

    potential: Potential
    correlations: Correlations | None = None
    weighting: Weighting = "sigma"
    budget: int = DEFAULT_BUDGET
    weight_of_one = property(_weight_of_one)

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        # Cosines, their gap, cost, slope, and the weights in double precision before they are cast: six times a row.
        own = distributed.own_range(len(W))
        for rows in blocks(len(W), 6 * len(W) * W.element_size(), self.budget, within=own):
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
        """A in blocks of columns, so that every pair's rows of A meet in every block: C²D + pairs·C operations."""
        pull, apart, shared = torch.zeros_like(W), W.new_zeros(len(first)), W.new_zeros(len(first))
        for columns in blocks(len(W), 4 * len(W) * W.element_size(), self.budget):
            _, slope = self.potential(W @ W[columns].T)
            slope[torch.arange(columns.start, columns.stop), torch.arange(slope.shape[1])] = 0
            pull += slope @ W[columns]
            inside = ((second >= columns.start) & (second < columns.stop)).nonzero().squeeze(1)
            apart[inside] = slope[first[inside], second[inside] - columns.start]
            shared += products_at(slope, slope, first, second)
        return PairSlopes(pull, apart, shared, torch.zeros_like(apart)).scaled(self.weight_of_one)


@dataclass(frozen=True)
class NearestPairs:
    """Σ_u Σ_{v ∈ N_K(u)} a_uv φ(s_uv): the same sum over the K classes nearest to u, among `candidates` if given, as
    `search` finds them. With `rows`, the sum is over these u only, and the gradient a sparse tensor of the rows in it.

    With `adaptive`, φ is max(0, ν_u - d)² where ν_u is the distance from u to its (K+1)-th nearest class, taken as a
    constant: exactly the K nearest are active.
    """

    neighbours: int
    potential: Potential | None  # None: adaptive
    correlations: Correlations | None = None
    weighting: Weighting = "sigma"
    candidates: Tensor | None = None
    rows: Tensor | None = None  # ascending
    search: Search = "auto"
    budget: int = DEFAULT_BUDGET
    shard: Shard | None = None  # where W is in parts: value_and_gradient takes and gives those of this process
    weight_of_one = property(_weight_of_one)

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        if self.shard is not None:
            return self._of_parts(W, self.shard)
        value = 0.0
        total = len(W) if self.rows is None else len(self.rows)
        width = self._width(len(W))
        found = [(W.new_empty(0, width, dtype=torch.int32), W.new_empty(0, width))]
        for rows, index, cost, slope in self._neighbours(W, distributed.own_range(total)):
            cost, slope = self._weighted(rows, index, cost, slope)
            value += cost.sum().item()
            found.append((index.int(), slope))
        value = distributed.sum_of(value)
        index, slope = (distributed.gather_rows(torch.cat(part), total) for part in zip(*found, strict=True))
        del found
        if self.rows is None:
            return value, _pulled(index, slope, W, W, self.budget)
        taken, own, place = _numbered_anew(self.rows, index)
        return value, _of_rows(taken, _pulled(place, slope, W[taken], W[self.rows], self.budget, own), W)

    def _of_parts(self, W: Tensor, shard: Shard) -> tuple[float, Tensor]:
        """The same where each process has a part of W. All of them find the same neighbours, and keep 8 bytes for each;
        the gradient is of this process's rows."""
        value, found = 0.0, []
        for rows, index, cost, slope in self._neighbours(W):
            cost, slope = self._weighted(rows, index, cost, slope)
            value += cost.sum().item()
            found.append((index.int(), slope))
        index, slope = (torch.cat(part) for part in zip(*found, strict=True))
        del found
        if self.rows is None:
            return value, _pulled_from_parts(index, slope, W, shard, self.budget)
        taken, own, place = _numbered_anew(self.rows, index)
        there = shard.take(W, taken)
        parts = _pulled(place, slope, there, there[own], self.budget, own)
        inside, here = shard.places(taken)
        return value, _of_rows(here, parts[inside], W)

    def _weighted(self, rows: Tensor, index: Tensor, cost: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        if self.correlations is None:
            return cost, slope
        weight = self.correlations.apart_at(rows, index, self.weighting, cost)
        return cost * weight, slope * weight

    def _neighbours(self, W: Tensor, share: slice | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """(rows, their nearest classes, φ, φ') in blocks, before any weight; both are 0 where a pair is not active.

        With `share`, of this part of the rows only, found as they would be for all."""
        search = self.search
        if self.shard is None:
            rows = torch.arange(len(W), device=W.device) if self.rows is None else self.rows
            if self.candidates is None:
                search = "index" if takes_index(search, len(rows), *W.shape) else "exact"
            rows = rows if share is None else rows[share]
            found, count = nearest(W, self._width(len(W)), rows, self.candidates, search, self.budget), len(rows)
        else:
            width, count = self._width(self.shard.rows), self.shard.rows if self.rows is None else len(self.rows)
            found = self.shard.nearest(W, width, self.rows, self.candidates, self.budget)
        for rows, similarity, index in watched("classes", found, count, lambda part: len(part[0])):
            active = similarity.isfinite()  # not so for the class itself, listed where there are no more others
            potential = self.potential
            if potential is None:
                # Where there is no (K+1)-th class, the farthest there is sets the margin. Its own gap is 0.
                potential = repel_within(1 - similarity.masked_fill(~active, torch.inf).amin(dim=1, keepdim=True))
            cost, slope = potential(similarity.nan_to_num(neginf=0.0))
            yield rows, index, cost * active, slope * active

    def _width(self, classes: int) -> int:
        """How many neighbours are listed for each class, of so many: itself too, where there are not enough others."""
        return min(
            self.neighbours + (self.potential is None), classes if self.candidates is None else len(self.candidates)
        )

    def slopes(self, W: Tensor, first: Tensor, second: Tensor) -> PairSlopes:
        """A has K numbers in a row, so two rows of it meet in K² comparisons: C·K·D + pairs·K² operations."""
        found = [(index.int(), slope) for _, index, _, slope in self._neighbours(W)]
        index, slope = (torch.cat(part) for part in zip(*found, strict=True))
        del found
        pull = _bags(index, slope) @ W
        apart, shared = W.new_zeros(len(first)), W.new_zeros(len(first))
        at_once = max(1, min(self.budget, 2**24) // (4 * index.shape[1] ** 2 * W.element_size()))
        for start in range(0, len(first), at_once):
            part = slice(start, start + at_once)
            u, v = first[part], second[part]
            apart[part] = (slope[u] * (index[u] == v.unsqueeze(1))).sum(1)
            same = index[u].unsqueeze(2) == index[v].unsqueeze(1)
            shared[part] = torch.einsum("pk,pkl,pl->p", slope[u], same.to(W), slope[v])
        return PairSlopes(pull, apart, shared, torch.zeros_like(apart)).scaled(self.weight_of_one)


def _bags(index: Tensor, slope: Tensor) -> WeightedBags:
    """The sparse matrix with `slope` at `index`, the same number in each row."""
    starts = torch.arange(0, index.numel() + 1, index.shape[1], dtype=index.dtype, device=index.device)
    return WeightedBags(index.flatten(), starts, slope.flatten())


def _pulled(index: Tensor, slope: Tensor, W: Tensor, first: Tensor, budget: int, own: Tensor | None = None) -> Tensor:
    """S W + Sᵀ F for the sparse matrix S with `slope` at `index`; F are the rows of W, `own` or all, that S's are of.

    Two sparse products, nothing of size rows × K × D; and S W some rows at a time, so that only the sum is of W's size.
    """
    S = _bags(index, slope)
    matrix = csr_matrix((S.weight.cpu(), S.index.cpu(), S.starts.cpu()), shape=(len(index), len(W)))
    pulled = WeightedBags.from_csr(matrix.T.tocsr(), W.dtype, W.device) @ first
    for rows in blocks(len(index), 2 * W.shape[1] * W.element_size(), budget):
        there = _bags(index[rows], slope[rows]) @ W
        if own is None:
            pulled[rows] += there
        else:
            pulled.index_add_(0, own[rows], there)
    return pulled


def _pulled_from_parts(index: Tensor, slope: Tensor, W: Tensor, shard: Shard, budget: int) -> Tensor:
    """This process's rows of (S + Sᵀ) W, the rows of W coming from the processes that have them, some at a time."""
    count, k = index.shape
    starts = torch.arange(0, count * k + 1, k, dtype=torch.int32)
    S = csr_matrix((slope.flatten().cpu(), index.flatten().cpu(), starts), shape=(count, shard.rows))
    columns = (S[shard.own] + S.T.tocsr()[shard.own]).tocsc()
    gradient = torch.zeros_like(W)
    for labels, rows in shard.blocks(W, min(budget, 2**26)):
        gradient += WeightedBags.from_csr(columns[:, labels].tocsr(), W.dtype, W.device) @ rows
    return gradient


def _numbered_anew(rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(the classes in either, where `rows` are among them, where `index` is): as if there were no other classes."""
    taken, place = torch.cat([rows, index.flatten()]).unique(return_inverse=True)
    own, place = place.split([len(rows), index.numel()])
    return taken, own, place.view_as(index).int()


def _of_rows(rows: Tensor, values: Tensor, W: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, W.shape, is_coalesced=True, check_invariants=False)


@dataclass(frozen=True)
class Together:
    """Σ_{u≠v} (c_uv / N) φ(s_uv): over the pairs that occur together only, so it costs what `c` holds."""

    potential: Potential
    correlations: Correlations
    budget: int = DEFAULT_BUDGET

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.0, torch.zeros_like(W)
        # Of each pair its two rows of W, their product or that with the slope, one to spare; and a few numbers.
        pairs_at_once = max(1, self.budget // (4 * W.shape[1] * W.element_size() + 64))
        own = distributed.own_range(self.correlations.together.nnz)
        for u, v, share in self.correlations.pairs_together(pairs_at_once, W, own):
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
