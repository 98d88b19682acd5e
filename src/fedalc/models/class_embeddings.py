"""The geometry of class embeddings: unit rows, how they start, and how collapsed they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import ROWS_BUDGET, Hide, hide_places, largest_products, operations
from fedalc.core.progress_events import watched

if TYPE_CHECKING:
    from fedalc.models.model import Model

LOOKED_AT = 10**12
"""Operations that the largest cosine is worth: a few seconds."""


def unit_rows(W: Tensor) -> Tensor:
    """Each row scaled to length 1. A row of zeros, which has no direction, stays zero and gets no gradient."""
    length = W.norm(dim=-1, keepdim=True)
    has_direction = length > 1e-12
    return W * (has_direction / length.where(has_direction, 1.0))


def orthogonal_rows(
    rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype, own: slice | None = None
) -> Tensor:
    """Random unit rows, exactly orthogonal within each run of `dim` rows (so all of them, where rows ≤ dim).

    `own`: which of them to give, where not all are wanted here."""
    W = _Kept(rows, dim, dtype, own)
    for start in watched("class embeddings", range(0, rows, dim), rows, lambda start: min(dim, rows - start)):
        drawn = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        if not W.wants(start, start + dim):
            continue
        q, r = torch.linalg.qr(drawn)
        run = (q * r.diagonal().sign()).T[: min(dim, rows - start)]  # signs: uniform over rotations
        W.put(start, unit_rows(run))
    return W.rows


class _Kept:
    """Those of many rows that are wanted, put in piece by piece."""

    def __init__(self, rows: int, dim: int, dtype: torch.dtype, own: slice | None) -> None:
        self.own = slice(0, rows) if own is None else own
        self.rows = torch.empty(self.own.stop - self.own.start, dim, dtype=dtype)

    def wants(self, start: int, stop: int) -> bool:
        return start < self.own.stop and stop > self.own.start

    def put(self, start: int, piece: Tensor) -> None:
        first, last = max(start, self.own.start), min(start + len(piece), self.own.stop)
        if first < last:
            self.rows[first - self.own.start : last - self.own.start] = piece[first - start : last - start]


def frequency_rows(counts: Tensor, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Unit rows that interfere least where it costs most: frequent labels have an axis of their own.

    Where all labels fit (rows ≤ dim) each has one. Otherwise the k commonest have, as long as one's count times the
    axes left is more than all counts that are left (the condition under which giving it a whole axis lowers Σ n_u n_v
    (w_uᵀw_v)², the sum of squared cross-talk); at least an eighth of the axes remain. The others share these, in
    random orthogonal runs in the order of their counts.
    """
    rows = len(counts)
    order = counts.argsort(descending=True, stable=True)
    rest, alone = counts.double().sum().item(), 0
    if rows <= dim:
        alone = rows
    else:
        for count in counts[order].tolist():
            if alone >= dim - max(1, dim // 8) or count * (dim - alone) <= rest:
                break
            rest, alone = rest - count, alone + 1
    W = torch.zeros(rows, dim, dtype=dtype)
    W[order[:alone], torch.arange(alone)] = 1
    if alone < rows:
        W[order[alone:], alone:] = orthogonal_rows(rows - alone, dim - alone, generator, dtype)
    return W


def random_rows(
    rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype, own: slice | None = None
) -> Tensor:
    """Independent unit rows, uniform over directions. `own`: which of them to give."""
    W = _Kept(rows, dim, dtype, own)
    at_once = max(16, DEFAULT_BUDGET // (32 * dim) // 16 * 16)  # torch draws numbers in sixteens: so these are the same
    for start in range(0, rows, at_once):
        drawn = torch.randn(min(at_once, rows - start), dim, generator=generator, dtype=torch.float64)
        W.put(start, unit_rows(drawn))
    return W.rows


def collapse_of(model: Model, held: np.ndarray, budget: int = DEFAULT_BUDGET) -> dict[str, float]:
    """`collapse` of the rows of the labels that have a client, wherever they are."""
    labels = torch.from_numpy(np.flatnonzero(held)).to(model.W.device)
    if model.shard is None:
        return collapse(model.W, budget, labels)
    C, W = len(labels), model.W.detach()
    if C < 2:
        return _figures(C)
    total, gram = _moments(W, model.shard.places(labels)[1], budget)
    looked_at = labels[:: _step(C, W.shape[1])].contiguous()
    found = model.shard.nearest(W, 1, looked_at, None if len(held) == C else labels, budget)
    return _figures(C, total, gram, max(similarity.max().item() for _, similarity, _ in found))


def collapse(W: Tensor, budget: int = DEFAULT_BUDGET, labels: Tensor | None = None) -> dict[str, float]:
    """How close the rows, all or those of `labels`, have come to one point: mean and max cosine between different rows,
    and effective rank.

    The effective rank is exp(entropy of the normalised singular values): 1 when all rows are one direction, up to
    min(rows, dim) when they spread evenly. With very many rows (31,000 of 512 numbers) the max is that of every second,
    third … row with all others, as many as `LOOKED_AT` allows. Memory: D² numbers, some 30 bytes per row, and `budget`.
    """
    W = W.detach()
    labels = torch.arange(len(W), device=W.device) if labels is None else labels
    C, D = len(labels), W.shape[1]
    if C < 2:
        return _figures(C)
    total, gram = _moments(W, labels[distributed.own_range(C)], budget)
    if C < D:  # the smaller one has no zeros that are not quite zero
        rows = unit_rows(W[labels])
        gram = (rows @ rows.T).double().cpu()
    looked_at = labels[:: _step(C, D)]
    looked_at = looked_at[distributed.own_range(len(looked_at))]
    return _figures(C, total, gram, distributed.maximum(_largest_cosine(W, looked_at, labels, budget)))


def _largest_cosine(W: Tensor, looked_at: Tensor, labels: Tensor, budget: int) -> float:
    """Between a row that is looked at and another of `labels`. Products with W as it is are divided by its rows'
    lengths, and those with other rows hidden: no copy of W."""
    length = W.norm(dim=1)
    scale = torch.where(length > 1e-12, 1 / length, 0.0)
    others = torch.ones(len(W), dtype=torch.bool, device=W.device)
    others[labels] = False
    largest = -1.0
    for part in blocks(len(looked_at), 8 * W.shape[1] * W.element_size(), min(budget, ROWS_BUDGET)):
        hide_itself = hide_places(looked_at[part])

        def to_cosines(products: Tensor, columns: slice, hide_itself: Hide = hide_itself) -> None:
            products.mul_(scale[columns]).masked_fill_(others[columns], -torch.inf)
            hide_itself(products, columns)

        best, _ = largest_products(unit_rows(W[looked_at[part]]), W, 1, to_cosines, budget)
        largest = max(largest, best.max().item())
    return largest


def _moments(W: Tensor, own: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """Σ w and Σ w wᵀ of unit rows, over all processes, each of which takes its `own` rows of its W."""
    D = W.shape[1]
    total, gram = torch.zeros(D, dtype=torch.float64), torch.zeros(D, D, dtype=torch.float64)
    for part in blocks(len(own), 32 * D, budget):
        rows = unit_rows(W[own[part]]).double()
        total += rows.sum(0).cpu()
        gram += (rows.T @ rows).cpu()
    distributed.sum_over([total, gram])
    return total, gram


def _step(C: int, D: int) -> int:
    """Each how many-th row is compared with all others."""
    return -(-operations(C, C, D) // LOOKED_AT)


def _figures(C: int, total: Tensor | None = None, gram: Tensor | None = None, largest: float = 0.0) -> dict[str, float]:
    if total is None or gram is None:
        return {"mean_cosine": 0.0, "max_cosine": 0.0, "effective_rank": float(C)}
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = singular / singular.sum()
    entropy = -(share * share.clamp(min=1e-300).log()).sum().item()
    return {
        "mean_cosine": (total.square().sum().item() - C) / (C * (C - 1)),
        "max_cosine": min(largest, 1.0),
        "effective_rank": float(torch.tensor(entropy).exp()),
    }
