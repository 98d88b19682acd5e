"""The geometry of class embeddings: unit rows, initial rows, and measures of collapse."""

from __future__ import annotations

import hashlib
import math
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import ROWS_BUDGET, Hide, hide_places, largest_products, operations
from fedalc.core.progress_events import watched
from fedalc.errors import ConfigError

if TYPE_CHECKING:
    from fedalc.models.model import Model

LOOKED_AT = 10**12
"""Limit of operations for finding the largest cosine: a few seconds."""


def unit_rows(W: Tensor) -> Tensor:
    """Return the rows scaled to length 1. A row of zeros has no direction: it stays zero and gets no gradient."""
    length = W.norm(dim=-1, keepdim=True)
    has_direction = length > 1e-12
    return W * (has_direction / length.where(has_direction, 1.0))


def orthogonal_rows(
    rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype, own: slice | None = None
) -> Tensor:
    """Return random unit rows, exactly orthogonal within each run of `dim` rows (so all of them if rows ≤ dim).

    `own` limits the result to a range of the rows.
    """
    W = _RowRange(rows, dim, dtype, own)
    for start in watched("class embeddings", range(0, rows, dim), rows, lambda start: min(dim, rows - start)):
        drawn = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        if not W.wants(start, start + dim):
            continue
        W.put(start, unit_rows(_orthogonal(drawn).T[: min(dim, rows - start)]))
    return W.rows


def _orthogonal(drawn: Tensor) -> Tensor:
    """Return an orthogonal matrix. It is uniform over all of them if the numbers `drawn` are standard normal."""
    q, r = torch.linalg.qr(drawn)
    return q * r.diagonal().sign()


@lru_cache(maxsize=1)
def secret_rotation(secret: bytes, dim: int) -> Tensor:
    """Return an orthogonal matrix of `dim` × `dim` in double precision, uniform over all of them to who does not know
    `secret`: its numbers come from SHAKE-256. Machines agree on it but for rounding.

    Takes some seconds and 0.5 GB for 4,096 dimensions, so the last one is kept.
    """
    stream = hashlib.shake_256(secret).digest(8 * dim * dim)
    words = np.frombuffer(stream, "<u8") >> np.uint64(11)
    normal = ndtri((words + 0.5) * 2.0**-53)
    return _orthogonal(torch.from_numpy(normal.reshape(dim, dim)))


class _RowRange:
    """A range of many rows, filled piece by piece."""

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
    """Return unit rows in which frequent labels interfere least: each has an axis of its own.

    If rows ≤ dim, every label has its own axis. Otherwise the k most frequent labels have one, as long as a label's
    count times the number of axes left exceeds the sum of all counts left (the condition under which a whole axis
    lowers Σ n_u n_v (w_uᵀw_v)², the sum of squared cross-talk). At least an eighth of the axes remain. The other labels
    share these, in random orthogonal runs in the order of their counts.
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


def simplex_rows(
    rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype, own: slice | None = None
) -> Tensor:
    """Return the corners of a regular simplex, turned at random: the cosine of any two rows is -1/(rows - 1).

    That is the farthest that `rows` unit vectors can be from each other, and needs rows ≤ dim + 1. More rows come in
    runs of dim + 1, each run a simplex of its own (as `orthogonal_rows` has runs of `dim`). `own` limits the result to
    a range of the rows.
    """
    W = _RowRange(rows, dim, dtype, own)
    for start in range(0, rows, dim + 1):
        corners = min(dim + 1, rows - start)
        turn = orthogonal_rows(dim, dim, generator, torch.float64)
        if corners == 1:
            W.put(start, turn[:1])
            continue
        centred = torch.eye(corners, dtype=torch.float64) - 1 / corners
        basis = torch.linalg.eigh(centred).eigenvectors[:, 1:]  # without the direction in which all are equal
        W.put(start, unit_rows(basis @ turn[: corners - 1]))
    return W.rows


ATTEMPTS = 200
"""How often codewords are drawn again before they may be nearer to each other by one place."""


def codeword_rows(
    rows: int,
    dim: int,
    generator: torch.Generator,
    dtype: torch.dtype,
    own: slice | None = None,
    secret: bytes | None = None,
) -> Tensor:
    """Return random codewords of ±1, divided by √dim. Two of them differ in a quarter of the places or more, so their
    cosine is 1/2 at most. (For less, with a warning, if `dim` is so small that no such codewords are found.)

    Row u is a keyed hash (SHAKE-256) of u: who does not know `secret` cannot compute it, even from other rows. Without
    a secret the generator draws one. Rows that are too near are drawn again. If there are too many to compare all
    pairs, chance has to rule out near ones: C²/2 · exp(-dim/8) bounds its probability. `own`: as above.
    """
    if secret is None:
        secret = bytes(torch.randint(256, (32,), generator=generator).tolist())
    signs = torch.stack([_codeword(secret, label, 0, dim) for label in range(rows)])
    if operations(rows, rows, dim) <= LOOKED_AT:
        if 2**dim < rows:
            raise ConfigError(f"there are no {rows} different codewords of {dim} bits", "encoder.dim")
        apart, attempt, wanted = math.ceil(dim / 4), 0, math.ceil(dim / 4)
        while len(near := _too_near(signs, apart)):
            attempt += 1
            apart -= attempt % ATTEMPTS == 0 and apart > 1
            for label in near.tolist():
                signs[label] = _codeword(secret, label, attempt, dim)
        if apart < wanted:
            warnings.warn(
                f"encoder.dim = {dim} is small for {rows} codewords: some differ in only {apart} places", stacklevel=2
            )
    elif 2 * math.log(rows) - math.log(2) - dim / 8 > math.log(1e-9):
        raise ConfigError(f"too small for {rows} codewords: use {math.ceil(16 * math.log(rows) + 160)}", "encoder.dim")
    return (signs[slice(0, rows) if own is None else own].double() / math.sqrt(dim)).to(dtype)


def _codeword(secret: bytes, label: int, attempt: int, dim: int) -> Tensor:
    stream = hashlib.shake_256(secret + f"/{label}/{attempt}".encode()).digest(-(-dim // 8))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8))[:dim]
    return torch.from_numpy(2 * bits.astype(np.int8) - 1)


def _too_near(signs: Tensor, apart: int) -> Tensor:
    """Return the rows that differ from an earlier row in fewer than `apart` places."""
    rows, dim = signs.shape
    numbers, near = signs.float(), torch.zeros(rows, dtype=torch.bool)
    largest = dim - 2 * apart  # the product of two rows that differ in just enough places
    for block in blocks(rows, 4 * rows, DEFAULT_BUDGET):
        products = numbers[block] @ numbers[: block.stop].T
        earlier = torch.ones_like(products, dtype=torch.bool).tril(block.start - 1)
        near[block] = ((products > largest) & earlier).any(1)
    return near.nonzero().squeeze(1)


def random_rows(
    rows: int, dim: int, generator: torch.Generator, dtype: torch.dtype, own: slice | None = None
) -> Tensor:
    """Return independent unit rows, uniform over directions. `own` limits the result to a range of the rows."""
    W = _RowRange(rows, dim, dtype, own)
    at_once = max(16, DEFAULT_BUDGET // (32 * dim) // 16 * 16)  # torch draws in sixteens: multiples give the same rows
    for start in range(0, rows, at_once):
        drawn = torch.randn(min(at_once, rows - start), dim, generator=generator, dtype=torch.float64)
        W.put(start, unit_rows(drawn))
    return W.rows


def collapse_of(model: Model, held: np.ndarray, budget: int = DEFAULT_BUDGET) -> dict[str, float]:
    """Return `collapse` for the labels that have a client, also if W is sharded over processes."""
    labels = torch.from_numpy(np.flatnonzero(held)).to(model.W.device)
    if model.columns is not None:  # labels of a cluster share a row, and have weights of their own
        return _figures(len(labels))
    if model.shard is None:
        return collapse(model.W[:, model.encoder.directions], budget, labels)
    C, W = len(labels), model.W.detach()
    if C < 2:
        return _figures(C)
    total, gram = _moments(W, model.shard.places(labels)[1], budget)
    looked_at = labels[:: _step(C, W.shape[1])].contiguous()
    found = model.shard.nearest(W, 1, looked_at, None if len(held) == C else labels, budget)
    return _figures(C, total, gram, max(similarity.max().item() for _, similarity, _ in found))


def collapse(W: Tensor, budget: int = DEFAULT_BUDGET, labels: Tensor | None = None) -> dict[str, float]:
    """Measure how close the rows (all, or those of `labels`) are to a single point.

    Returns mean and max cosine between different rows, and the effective rank exp(entropy of the normalised singular
    values): 1 if all rows have one direction, up to min(rows, dim) if they spread evenly. With very many rows (31,000
    of 512 numbers) the max compares only every second, third … row with all others, as many as `LOOKED_AT` allows.
    Memory: D² numbers, some 30 bytes per row, and `budget`.
    """
    W = W.detach()
    labels = torch.arange(len(W), device=W.device) if labels is None else labels
    C, D = len(labels), W.shape[1]
    if C < 2 or are_axes(W):
        return _figures(C)
    total, gram = _moments(W, labels[distributed.own_range(C)], budget)
    if C < D:  # the smaller matrix has no eigenvalues that should be zero but are not quite
        rows = unit_rows(W[labels])
        gram = (rows @ rows.T).double().cpu()
    looked_at = labels[:: _step(C, D)]
    looked_at = looked_at[distributed.own_range(len(looked_at))]
    return _figures(C, total, gram, distributed.maximum(_largest_cosine(W, looked_at, labels, budget)))


def are_axes(W: Tensor) -> bool:
    """Whether every row is an axis of its own: a single 1, in another place than in any other row."""
    once = bool((W.count_nonzero(dim=1) == 1).all()) and bool((W.sum(dim=1) == 1).all())
    return once and bool((W.count_nonzero(dim=0) <= 1).all())


def _largest_cosine(W: Tensor, looked_at: Tensor, labels: Tensor, budget: int) -> float:
    """Return the largest cosine between a row of `looked_at` and another row of `labels`.

    Divides products with W by the lengths of its rows and hides other rows, so that W is not copied.
    """
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
    """Return Σ w and Σ w wᵀ of unit rows, summed over all processes; each adds its `own` rows of its W."""
    D = W.shape[1]
    total, gram = torch.zeros(D, dtype=torch.float64), torch.zeros(D, D, dtype=torch.float64)
    for part in blocks(len(own), 32 * D, budget):
        rows = unit_rows(W[own[part]]).double()
        total += rows.sum(0).cpu()
        gram += (rows.T @ rows).cpu()
    distributed.sum_over([total, gram])
    return total, gram


def _step(C: int, D: int) -> int:
    """Return n if every n-th row is to be compared with all others."""
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
