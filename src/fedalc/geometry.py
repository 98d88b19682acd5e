"""The geometry of class embeddings: unit rows, cosine similarity, nearest classes, and how collapsed they are.

Nothing here holds a labels × labels matrix: rows are taken in blocks whose similarities fit into a memory budget.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedalc import distributed

DEFAULT_BUDGET = 256 * 2**20  # bytes for one block of similarities


def unit_rows(W: Tensor) -> Tensor:
    """Each row scaled to length 1. A row of zeros, which has no direction, stays zero and gets no gradient."""
    length = W.norm(dim=-1, keepdim=True)
    has_direction = length > 1e-12
    return W * (has_direction / length.where(has_direction, 1.0))


def row_blocks(
    W: Tensor, budget: int = DEFAULT_BUDGET, per_row: int = 0, within: slice | None = None
) -> Iterator[slice]:
    """Slices of rows whose similarities to all rows take at most `budget` bytes (at least one row each).

    `per_row`: how many numbers a row needs, where that is more than its similarities. `within`: of these rows only.
    """
    rows = max(1, budget // max(1, max(len(W), per_row) * W.element_size()))
    first, last = (0, len(W)) if within is None else (within.start, within.stop)
    for start in range(first, last, rows):
        yield slice(start, min(start + rows, last))


def nearest_classes(W: Tensor, rows: slice, k: int, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k classes nearest to each of `rows`, nearest first, never the class itself: (similarities, class indices).

    With `candidates` (sorted class indices) only those are looked at. Memory: len(rows) × candidates numbers.
    """
    among = W if candidates is None else W[candidates]
    similarity = W[rows] @ among.T
    own = torch.arange(rows.start, rows.stop, device=W.device)
    if candidates is None:
        similarity[torch.arange(len(own), device=W.device), own] = -torch.inf
    else:
        place = torch.searchsorted(candidates, own).clamp(max=len(candidates) - 1)
        present = (candidates[place] == own).nonzero().squeeze(1)
        similarity[present, place[present]] = -torch.inf
    value, index = similarity.topk(min(k, similarity.shape[1]), dim=1)
    return value, index if candidates is None else candidates[index]


def orthogonal_rows(rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Random unit rows, exactly orthogonal within each run of `dim` rows (so all of them, where rows ≤ dim)."""
    blocks = []
    for start in range(0, rows, dim):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        blocks.append((q * r.diagonal().sign()).T[: min(dim, rows - start)])  # signs: uniform over rotations
    return unit_rows(torch.cat(blocks)).to(dtype)


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


def random_rows(rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Independent unit rows, uniform over directions."""
    return unit_rows(torch.randn(rows, dim, generator=generator, dtype=torch.float64)).to(dtype)


def collapse(W: Tensor, budget: int = DEFAULT_BUDGET) -> dict[str, float]:
    """How close the rows have come to one point: mean and max cosine between different rows, and effective rank.

    The effective rank is exp(entropy of the normalised singular values): 1 when all rows are one direction, up to
    min(rows, dim) when they spread evenly.
    """
    W = unit_rows(W.detach())
    C = len(W)
    if C < 2:
        return {"mean_cosine": 0.0, "max_cosine": 0.0, "effective_rank": float(C)}
    mean = (W.sum(0).double().square().sum().item() - C) / (C * (C - 1))
    blocks = row_blocks(W, budget, within=distributed.own_range(C))
    largest = distributed.largest(max((nearest_classes(W, rows, 1)[0].max().item() for rows in blocks), default=-1.0))
    gram = W.T.double() @ W.double() if W.shape[1] < C else W.double() @ W.T.double()
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = singular / singular.sum()
    entropy = -(share * share.clamp(min=1e-300).log()).sum().item()
    return {
        "mean_cosine": mean,
        "max_cosine": min(largest, 1.0),
        "effective_rank": float(torch.tensor(entropy).exp()),
    }
