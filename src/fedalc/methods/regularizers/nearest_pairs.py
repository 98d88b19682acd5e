"""Sums over each class and its nearest classes, with the gradient computed by sparse products."""

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
    """Σ_u Σ_{v ∈ N_K(u)} a_uv φ(s_uv): the sum over the K classes nearest to u, found by `search`.

    `candidates` limits the classes v. `rows` limits the sum to these u, and the gradient is then a sparse tensor.
    With `potential` None (adaptive), φ is max(0, ν_u - d)², where ν_u is the distance from u to its (K+1)-th nearest
    class, treated as a constant. Exactly the K nearest are then active.
    """

    neighbours: int
    potential: Potential | None  # None: adaptive
    correlations: Correlations | None = None
    weighting: Weighting = "sigma"
    candidates: Tensor | None = None
    rows: Tensor | None = None  # ascending
    search: Search = "auto"
    budget: int = DEFAULT_BUDGET
    shard: Shard | None = None  # if set, W and the gradient are this process's rows only

    def value_and_gradient(self, W: Tensor) -> tuple[float, Tensor]:
        if self.shard is not None:
            return self._sharded(W, self.shard)
        total = len(W) if self.rows is None else len(self.rows)
        value, index, slope = self._weighted_pairs(W, distributed.own_range(total))
        value = distributed.sum_of(value)
        index, slope = (distributed.gather_rows(part, total) for part in (index, slope))
        if self.rows is None:
            return value, _pulled(index, slope, W, W, self.budget)
        classes, first, second = _renumbered(self.rows, index)
        return value, _of_rows(classes, _pulled(second, slope, W[classes], W[self.rows], self.budget, first), W)

    def _sharded(self, W: Tensor, shard: Shard) -> tuple[float, Tensor]:
        """As value_and_gradient, with W sharded. All processes find the same neighbours and store 8 bytes for each; the
        gradient is of this process's rows."""
        value, index, slope = self._weighted_pairs(W)
        if self.rows is None:
            return value, _pulled_from_parts(index, slope, W, shard, self.budget)
        classes, first, second = _renumbered(self.rows, index)
        rows = shard.take(W, classes)
        gradient = _pulled(second, slope, rows, rows[first], self.budget, first)
        inside, local_rows = shard.places(classes)
        return value, _of_rows(local_rows, gradient[inside], W)

    def _weighted_pairs(self, W: Tensor, share: slice | None = None) -> tuple[float, Tensor, Tensor]:
        """Return (the sum, the nearest classes of each row, a φ' of each pair) for `share` of the rows, or for all."""
        value, width = 0.0, self._width(W)
        pairs = [(W.new_empty(0, width, dtype=torch.int32), W.new_empty(0, width))]  # a share can be empty
        for rows, index, cost, slope in self._neighbours(W, share):
            if self.correlations is not None:
                weight = self.correlations.apart_at(rows, index, self.weighting, cost)
                cost, slope = cost * weight, slope * weight
            value += cost.sum().item()
            pairs.append((index.int(), slope))
        index, slope = (torch.cat(part) for part in zip(*pairs, strict=True))
        return value, index, slope

    def _neighbours(self, W: Tensor, share: slice | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield blocks of (rows, their nearest classes, φ, φ') without weights. φ and φ' are 0 for inactive pairs.

        `share` limits the rows; it does not change which neighbours a row has."""
        search = self.search
        if self.shard is None:
            rows = torch.arange(len(W), device=W.device) if self.rows is None else self.rows
            if self.candidates is None:
                search = "index" if takes_index(search, len(rows), *W.shape) else "exact"
            rows = rows if share is None else rows[share]
            neighbours, count = nearest(W, self._width(W), rows, self.candidates, search, self.budget), len(rows)
        else:
            neighbours = self.shard.nearest(W, self._width(W), self.rows, self.candidates, self.budget)
            count = self.shard.rows if self.rows is None else len(self.rows)
        for rows, similarity, index in watched("classes", neighbours, count, lambda part: len(part[0])):
            active = similarity.isfinite()  # -inf for the class itself, which fills up a list with too few others
            potential = self.potential
            if potential is None:
                # If there is no (K+1)-th class, the farthest class sets the margin. Its own gap is 0.
                potential = repel_within(1 - similarity.masked_fill(~active, torch.inf).amin(dim=1, keepdim=True))
            cost, slope = potential(similarity.nan_to_num(neginf=0.0))
            yield rows, index, cost * active, slope * active

    def _width(self, W: Tensor) -> int:
        """Return how many neighbours to list per class. The class itself fills up a list with too few others."""
        classes = len(W) if self.shard is None else self.shard.rows
        others = classes if self.candidates is None else len(self.candidates)
        return min(self.neighbours + (self.potential is None), others)

    def slopes(self, W: Tensor, first: Tensor, second: Tensor) -> PairSlopes:
        """A row of A has K entries, so comparing two rows takes K² steps. C·K·D + pairs·K² operations in total."""
        pairs = [(index.int(), slope) for _, index, _, slope in self._neighbours(W)]
        index, slope = (torch.cat(part) for part in zip(*pairs, strict=True))
        del pairs
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
    """Return the sparse matrix with `slope` at the columns `index`. Every row has the same number of entries."""
    starts = torch.arange(0, index.numel() + 1, index.shape[1], dtype=index.dtype, device=index.device)
    return WeightedBags(index.flatten(), starts, slope.flatten())


def _pulled(index: Tensor, slope: Tensor, W: Tensor, first: Tensor, budget: int, rows: Tensor | None = None) -> Tensor:
    """Return S W + Sᵀ F for the sparse matrix S with `slope` at `index`.

    `first` is F, the rows of W that the rows of S belong to; `rows` are their numbers (None: all). Two sparse products
    avoid a tensor of rows × K × D, and S W is computed in blocks, so that only the result has the size of W.
    """
    S = _bags(index, slope)
    matrix = csr_matrix((S.weight.cpu(), S.index.cpu(), S.starts.cpu()), shape=(len(index), len(W)))
    pulled = WeightedBags.from_csr(matrix.T.tocsr(), W.dtype, W.device) @ first
    for block in blocks(len(index), 2 * W.shape[1] * W.element_size(), budget):
        product = _bags(index[block], slope[block]) @ W
        if rows is None:
            pulled[block] += product
        else:
            pulled.index_add_(0, rows[block], product)
    return pulled


def _pulled_from_parts(index: Tensor, slope: Tensor, W: Tensor, shard: Shard, budget: int) -> Tensor:
    """Return this process's rows of (S + Sᵀ) W. The other processes send their rows of W in blocks."""
    count, k = index.shape
    starts = torch.arange(0, count * k + 1, k, dtype=torch.int32)
    S = csr_matrix((slope.flatten().cpu(), index.flatten().cpu(), starts), shape=(count, shard.rows))
    columns = (S[shard.own] + S.T.tocsr()[shard.own]).tocsc()
    gradient = torch.zeros_like(W)
    for labels, rows in shard.blocks(W, min(budget, 2**26)):
        gradient += WeightedBags.from_csr(columns[:, labels].tocsr(), W.dtype, W.device) @ rows
    return gradient


def _renumbered(rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (the classes in `rows` or `index`, the positions of `rows` among them, the positions of `index`)."""
    classes, positions = torch.cat([rows, index.flatten()]).unique(return_inverse=True)
    first, second = positions.split([len(rows), index.numel()])
    return classes, first, second.view_as(index).int()


def _of_rows(rows: Tensor, values: Tensor, W: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, W.shape, is_coalesced=True, check_invariants=False)
