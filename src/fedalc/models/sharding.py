"""Class embeddings too large for one process: each process holds a range of W's rows.

A round gathers the rows of its participants in every process. The other rows stay where they are: the process that
holds them compares them, block by block. All processes must call the methods of a `Shard` together and with the same
arguments, except for W, which holds the process's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import method_facts
from fedalc.config.neighbour_search import searched
from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.distributed import Process
from fedalc.core.nearest import (
    AFFORDABLE,
    ROWS_BUDGET,
    Found,
    Hide,
    hide_places,
    largest_products,
    operations,
)
from fedalc.errors import ConfigError

LARGE = 2 * 10**9
"""With `shard_rows = "auto"`, a W of more bytes than this is sharded over the processes."""


@dataclass(frozen=True)
class Shard:
    """Says which process holds which of W's `rows` rows: each has its `own_range`."""

    rows: int

    @property
    def own(self) -> slice:
        return distributed.own_range(self.rows)

    def take(self, W: Tensor, labels: Tensor) -> Tensor:
        """Return the rows of these labels in every process: each adds its own rows, and zeros for the others."""
        inside, local_rows = self.places(labels)
        taken = W.new_zeros(len(labels), W.shape[1])
        taken[inside] = W[local_rows]
        distributed.sum_over([taken])
        return taken

    def put(self, W: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Replace the rows of these labels. Each process stores its own."""
        inside, local_rows = self.places(labels)
        W[local_rows] = rows[inside]

    def places(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of the labels that this process holds, and their rows in its part of W."""
        own = self.own
        inside = ((labels >= own.start) & (labels < own.stop)).nonzero().squeeze(1)
        return inside, labels[inside] - own.start

    def blocks(self, W: Tensor, budget: int = ROWS_BUDGET) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows in order, in blocks and in every process, as (labels, rows). The holder sends them."""
        here = distributed.here()
        for rank in range(here.count):
            sender = distributed.own_range(self.rows, Process(rank, here.count))
            for labels in blocks(self.rows, W.shape[1] * W.element_size(), budget, within=sender):
                size = labels.stop - labels.start
                start = labels.start - sender.start
                part = W[start : start + size].clone() if rank == here.rank else W.new_empty(size, W.shape[1])
                distributed.broadcast(part, rank)
                yield labels, part

    def whole(self, W: Tensor) -> Tensor:
        """Return all rows in the first process, in main memory. The other processes get their own part back."""
        if not distributed.is_first():
            for _ in self.blocks(W):
                pass
            return W
        whole = torch.empty(self.rows, W.shape[1], dtype=W.dtype)
        for labels, part in self.blocks(W):
            whole[labels] = part
        return whole

    def nearest(
        self,
        W: Tensor,
        k: int,
        rows: Tensor | None = None,
        candidates: Tensor | None = None,
        budget: int = DEFAULT_BUDGET,
    ) -> Iterator[Found]:
        """Find nearest classes exactly, like `core.nearest.nearest`. Each process compares the rows with its own
        classes, and all processes get the best over all of them."""
        rows = torch.arange(self.rows, device=W.device) if rows is None else rows
        among, numbers, classes = W, torch.arange(self.own.start, self.own.stop, device=W.device), self.rows
        out: Tensor | None = None
        if candidates is not None:
            inside, local_rows = self.places(candidates)
            classes = len(candidates)
            if 2 * classes < self.rows:
                among, numbers = W[local_rows], candidates[inside]
            else:  # a copy of most rows would be almost as large as W
                out = torch.ones(len(W), dtype=torch.bool, device=W.device)
                out[local_rows] = False
        for part in blocks(len(rows), 8 * W.shape[1] * W.element_size(), min(budget, ROWS_BUDGET)):
            block = rows[part]
            themselves = torch.where(torch.isin(block, numbers), torch.searchsorted(numbers, block), -1)
            hide = _hide_too(hide_places(themselves), out)
            value, position = largest_products(self.take(W, block), among, min(k, classes), hide, budget)
            number = numbers[position] if len(numbers) else block.unsqueeze(1).expand_as(position)
            yield block, *best_of_all(value, number)


def _hide_too(hide: Hide, out: Tensor | None) -> Hide:
    """Return a function that hides what `hide` hides, and the columns marked in `out`."""
    if out is None:
        return hide

    def both(scores: Tensor, columns: slice) -> None:
        hide(scores, columns)
        scores.masked_fill_(out[columns], -torch.inf)

    return both


def best_of_all(value: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row over all processes, largest first, and their numbers.

    Returns as many columns as each process has."""
    value, number = (torch.cat(distributed.gather_equal(part.contiguous()), dim=1) for part in (value, number))
    value, column = value.topk(value.shape[1] // distributed.here().count, dim=1)
    return value, number.gather(1, column)


def shard_of(settings: Experiment, labels: int) -> Shard | None:
    """Return how W is sharded over the connected processes, or None if it is not: with `shard_rows = "off"`, or with
    `auto` unless W is `LARGE` and the settings allow it."""
    count = distributed.here().count
    if count == 1 or settings.shard_rows == "off":
        return None
    number = 8 if settings.dtype == "float64" else 4
    if settings.shard_rows == "auto" and labels * settings.encoder.dim * number <= LARGE:
        return None
    reason = _needs_all_rows(settings, labels)
    if reason is None:
        return Shard(labels)
    if settings.shard_rows == "on":
        raise ConfigError(f"every process needs all class embeddings: {reason}; use auto, or off", "shard_rows")
    return None


def _needs_index(settings: Experiment, labels: int) -> bool:
    """Return whether an exact search would take more operations than all processes together can afford."""
    request = searched(settings, labels)
    if request is None:
        return False
    rows, search, _ = request
    return search == "auto" and operations(rows, labels, settings.encoder.dim) > AFFORDABLE * distributed.here().count


def _needs_all_rows(settings: Experiment, labels: int) -> str | None:
    facts = method_facts(settings.method)
    regularized = facts.compares_classes == "regularizer"
    reasons = (
        (not facts.shards_rows, f"method {settings.method}"),
        (settings.server.participation == 1, "server.participation = 1, a round of all clients"),
        (settings.embeddings.start == "by-frequency", 'embeddings.start = "by-frequency"'),
        (regularized and settings.regularizer.form == "full", 'regularizer.form = "full"'),
        (regularized and settings.regularizer.search == "index", 'regularizer.search = "index"'),
        (settings.privacy.mechanism == "gradients", 'privacy.mechanism = "gradients"'),
        (settings.client.loss not in ("hinge", "square"), f'client.loss = "{settings.client.loss}"'),
        (labels < distributed.here().count, "there are fewer labels than processes"),
        (
            _needs_index(settings, labels),
            "with this many classes, the search for neighbours uses an index of all of them",
        ),
    )
    return next((reason for so, reason in reasons if so), None)
