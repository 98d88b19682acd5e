"""Sums over the nearest pairs of classes alone, and their gradient as sparse products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.schema import Weighting
from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import Search, nearest, takes_index
from fedalc.core.progress_events import watched
from fedalc.core.sparse_products import WeightedBags
from fedalc.labels.correlations import Correlations
from fedalc.methods.regularizers.potentials import Potential, repel_within
from fedalc.methods.regularizers.slopes import PairSlopes, weight_of_one
from fedalc.models.sharding import Shard


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

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        if self.shard is not None:
            return self._of_parts(W, self.shard)
        total = len(W) if self.rows is None else len(self.rows)
        value, index, slope = self._found(W, distributed.own_range(total))
        value = distributed.sum_of(value)
        index, slope = (distributed.gather_rows(part, total) for part in (index, slope))
        if self.rows is None:
            return value, _pulled(index, slope, W, W, self.budget)
        taken, own, place = _numbered_anew(self.rows, index)
        return value, _of_rows(taken, _pulled(place, slope, W[taken], W[self.rows], self.budget, own), W)

    def _of_parts(self, W: Tensor, shard: Shard) -> tuple[float, Tensor]:
        """The same where each process has a part of W. All of them find the same neighbours, and keep 8 bytes for each;
        the gradient is of this process's rows."""
        value, index, slope = self._found(W)
        if self.rows is None:
            return value, _pulled_from_parts(index, slope, W, shard, self.budget)
        taken, own, place = _numbered_anew(self.rows, index)
        there = shard.take(W, taken)
        parts = _pulled(place, slope, there, there[own], self.budget, own)
        inside, here = shard.places(taken)
        return value, _of_rows(here, parts[inside], W)

    def _found(self, W: Tensor, share: slice | None = None) -> tuple[float, Tensor, Tensor]:
        """(the sum, the rows' nearest classes, a φ' of each): of `share`, or of all rows."""
        value, width = 0.0, self._width(W)
        found = [(W.new_empty(0, width, dtype=torch.int32), W.new_empty(0, width))]  # a share can be empty
        for rows, index, cost, slope in self._neighbours(W, share):
            if self.correlations is not None:
                weight = self.correlations.apart_at(rows, index, self.weighting, cost)
                cost, slope = cost * weight, slope * weight
            value += cost.sum().item()
            found.append((index.int(), slope))
        index, slope = (torch.cat(part) for part in zip(*found, strict=True))
        return value, index, slope

    def _neighbours(self, W: Tensor, share: slice | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """(rows, their nearest classes, φ, φ') in blocks, before any weight; both are 0 where a pair is not active.

        With `share`, of this part of the rows only, found as they would be for all."""
        search = self.search
        if self.shard is None:
            rows = torch.arange(len(W), device=W.device) if self.rows is None else self.rows
            if self.candidates is None:
                search = "index" if takes_index(search, len(rows), *W.shape) else "exact"
            rows = rows if share is None else rows[share]
            found, count = nearest(W, self._width(W), rows, self.candidates, search, self.budget), len(rows)
        else:
            found = self.shard.nearest(W, self._width(W), self.rows, self.candidates, self.budget)
            count = self.shard.rows if self.rows is None else len(self.rows)
        for rows, similarity, index in watched("classes", found, count, lambda part: len(part[0])):
            active = similarity.isfinite()  # not so for the class itself, listed where there are no more others
            potential = self.potential
            if potential is None:
                # Where there is no (K+1)-th class, the farthest there is sets the margin. Its own gap is 0.
                potential = repel_within(1 - similarity.masked_fill(~active, torch.inf).amin(dim=1, keepdim=True))
            cost, slope = potential(similarity.nan_to_num(neginf=0.0))
            yield rows, index, cost * active, slope * active

    def _width(self, W: Tensor) -> int:
        """How many neighbours are listed for each class: itself too, where there are not enough others."""
        classes = len(W) if self.shard is None else self.shard.rows
        others = classes if self.candidates is None else len(self.candidates)
        return min(self.neighbours + (self.potential is None), others)

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

    @property
    def weight_of_one(self) -> float:
        return weight_of_one(self.correlations, self.weighting)


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
