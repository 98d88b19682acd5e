"""Find the nearest classes of a class by cosine: exactly, in blocks; among a sample of classes; or with an index.

Comparing R rows with C classes of D numbers takes 2·R·C·D operations. With `search = "auto"` the search is exact up to
`AFFORDABLE` operations, and beyond that uses an index of cells, which compares a class only with those in the nearest
cells. `candidates` limits the search to a sample of classes, as FedAwS does. docs/scale.md has the recall of each.

Memory: `budget` for a block of similarities, and for an index a copy of W in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.errors import ConfigError

Search = Literal["auto", "exact", "index"]
AFFORDABLE = 4 * 10**12
"""Operations: 20 seconds on two cores, one on a GPU. All of 62,000 classes with 512 numbers, or 5,800 of 670,091."""
PROBED = 16  # cells that the index searches for a class
_GROUP = 64  # see `largest`

ROWS_BUDGET = 16 * 2**20  # a thousand rows of 512 numbers at a time

Hide = Callable[[Tensor, slice], object]
Found = tuple[Tensor, Tensor, Tensor]
"""Numbers of some rows of W, the similarities of their nearest classes (nearest first), and the numbers of these."""


def operations(rows: int, classes: int, dim: int) -> int:
    return 2 * rows * classes * dim


def nearest(
    W: Tensor,
    k: int,
    rows: Tensor | None = None,
    candidates: Tensor | None = None,
    search: Search = "auto",
    budget: int = DEFAULT_BUDGET,
) -> Iterator[Found]:
    """Yield the k classes nearest to each of `rows` (default: all), without the class itself, block by block.

    With `candidates` (class numbers, ascending) only those are searched. If there are fewer than k other classes, the
    remaining similarities are -inf.
    """
    rows = torch.arange(len(W), device=W.device) if rows is None else rows
    if candidates is None and takes_index(search, len(rows), *W.shape):
        yield from _by_index(W, k, rows, budget)
        return
    among = W if candidates is None else W[candidates]
    numbers = torch.arange(len(W), device=W.device) if candidates is None else candidates
    for part in blocks(len(rows), 8 * W.shape[1] * W.element_size(), min(budget, ROWS_BUDGET)):
        queries = rows[part]
        itself = torch.searchsorted(numbers, queries).clamp(max=len(numbers) - 1)
        itself = torch.where(numbers[itself] == queries, itself, -1)
        value, index = largest_products(W[queries], among, min(k, len(among)), hide_places(itself), budget)
        yield queries, value, numbers[index]


def hide_places(column: Tensor) -> Hide:
    """Return a function that hides column[i] in row i: the class itself."""

    def hide(scores: Tensor, columns: slice) -> None:
        inside = ((column >= columns.start) & (column < columns.stop)).nonzero().squeeze(1)
        scores[inside, column[inside] - columns.start] = -torch.inf

    return hide


def largest_products(A: Tensor, W: Tensor, k: int, hide: Hide, budget: int = DEFAULT_BUDGET) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row of A Wᵀ, largest first, and their columns. `hide` sets excluded ones to -inf.

    Works by columns, so that a block has many rows and many columns, which multiply fast, and reads W once. The blocks
    share their memory: allocating it each time took a fifth of the time with 131,072 classes.
    """
    value = A.new_full((len(A), k), -torch.inf)
    index = torch.zeros(len(A), k, dtype=torch.int64, device=A.device)
    parts = list(blocks(len(W), 2 * len(A) * A.element_size(), budget))
    buffer = A.new_empty(len(A) * max((part.stop - part.start for part in parts), default=0))
    for columns in parts:
        count = columns.stop - columns.start
        scores = torch.mm(A, W[columns].T, out=buffer[: len(A) * count].view(len(A), count))
        hide(scores, columns)
        block_value, block_index = largest(scores, min(k, scores.shape[1]))
        value, best = torch.cat([value, block_value], dim=1).topk(k, dim=1)
        index = torch.cat([index, block_index + columns.start], dim=1).gather(1, best)
    return value, index


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row, largest first, and their columns.

    In long rows the k largest are in the k groups with the largest maxima. Maxima are found at the speed of memory,
    much faster than sorting.
    """
    length = scores.shape[1]
    groups = length // _GROUP
    if groups < 4 * k:
        return scores.topk(k, dim=1)
    whole = groups * _GROUP
    best = scores[:, :whole].unflatten(1, (groups, _GROUP)).amax(2).topk(k, dim=1).indices
    inside = torch.arange(_GROUP, device=scores.device)
    columns = (best.unsqueeze(2) * _GROUP + inside).flatten(1)
    rest = torch.arange(whole, length, device=scores.device).expand(len(scores), -1)
    columns = torch.cat([columns, rest], dim=1)
    value, index = scores.gather(1, columns).topk(k, dim=1)
    return value, columns.gather(1, index)


def takes_index(search: Search, rows: int, classes: int, dim: int, section: str = "regularizer") -> bool:
    """Return whether to search with an index. `section` is the section of the setting `search`, for errors."""
    cost = operations(rows, classes, dim)
    if search == "exact" or (search == "auto" and cost <= AFFORDABLE):
        return False
    try:
        import faiss  # noqa: F401
    except ImportError:
        if search == "index":
            raise ConfigError('needs faiss: pip install "fedalc[scale]"', f"{section}.search") from None
        fewer = 'set regularizer.candidates, regularizer.rows = "participants", or ' if section == "regularizer" else ""
        raise ConfigError(
            f"finding the nearest of {classes:,} classes for {rows:,} of them takes {cost:.1e} operations, more than "
            f'the limit of {AFFORDABLE:.0e} for an exact search; install an index (pip install "fedalc[scale]"), or '
            f'{fewer}set {section}.search = "exact" and wait',
            f"{section}.search",
        ) from None
    return True


def _by_index(W: Tensor, k: int, rows: Tensor, budget: int) -> Iterator[Found]:
    """Search with an index, in single precision on the CPU. It has 4·√C cells, from ten rounds of k-means on a part."""
    import faiss

    values = np.ascontiguousarray(W.detach().to("cpu", torch.float32).numpy())
    index: Any = faiss.index_factory(W.shape[1], f"IVF{_cells(len(W))},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.max_points_per_centroid, index.cp.seed = 10, 64, 1
    index.train(values)
    index.add(values)
    index.nprobe = PROBED
    queries = rows.cpu().numpy()
    for part in blocks(len(queries), 4 * (W.shape[1] + 8 * k), min(budget, ROWS_BUDGET)):
        similarity, found = (torch.from_numpy(a).to(W.device) for a in index.search(values[queries[part]], k + 1))
        itself = rows[part].unsqueeze(1)
        excluded = (found < 0) | (found == itself)
        value, best = similarity.to(W.dtype).masked_fill(excluded, -torch.inf).topk(k, dim=1)
        yield rows[part], value, torch.where(excluded, itself, found).gather(1, best)


def _cells(classes: int) -> int:
    return max(1, min(round(4 * classes**0.5), classes // 40))  # k-means needs about forty points per cell
