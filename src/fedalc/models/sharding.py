"""Class embeddings too large for every process: each of several holds a range of W's rows.

What a round needs of them, the rows of its participants, is brought together in each process; the rest of W is only
ever compared with, block by block, by the process that holds it. Whoever has a `Shard` calls its methods together with
the other processes, and with the same arguments but for W, the rows of its own.
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
"""Bytes of W above which its rows are spread over the processes, unless `shard_rows` says otherwise."""


@dataclass(frozen=True)
class Shard:
    """Which of W's `rows` rows are where: each process has its `own_range` of them."""

    rows: int

    @property
    def own(self) -> slice:
        return distributed.own_range(self.rows)

    def take(self, W: Tensor, labels: Tensor) -> Tensor:
        """The rows of these labels, in every process: each gives its own, and zeros for the others'."""
        inside, place = self.places(labels)
        taken = W.new_zeros(len(labels), W.shape[1])
        taken[inside] = W[place]
        distributed.sum_over([taken])
        return taken

    def put(self, W: Tensor, labels: Tensor, rows: Tensor) -> None:
        """New rows of these labels: each process keeps its own."""
        inside, place = self.places(labels)
        W[place] = rows[inside]

    def places(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the labels are here, and their places in W."""
        own = self.own
        inside = ((labels >= own.start) & (labels < own.stop)).nonzero().squeeze(1)
        return inside, labels[inside] - own.start

    def blocks(self, W: Tensor, budget: int = ROWS_BUDGET) -> Iterator[tuple[slice, Tensor]]:
        """All rows in order, some at a time, in every process: (labels, rows), sent by the one that has them."""
        here = distributed.here()
        for rank in range(here.count):
            held = distributed.own_range(self.rows, Process(rank, here.count))
            for labels in blocks(self.rows, W.shape[1] * W.element_size(), budget, within=held):
                size = labels.stop - labels.start
                own = labels.start - held.start
                part = W[own : own + size].clone() if rank == here.rank else W.new_empty(size, W.shape[1])
                distributed.broadcast(part, rank)
                yield labels, part

    def whole(self, W: Tensor) -> Tensor:
        """All rows, in the first process and in main memory; the others get back what they have."""
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
        """As `neighbours.nearest`, exactly: each process compares the rows asked for with its own classes, and the best
        of all are kept. All processes get the same."""
        rows = torch.arange(self.rows, device=W.device) if rows is None else rows
        among, numbers, classes = W, torch.arange(self.own.start, self.own.stop, device=W.device), self.rows
        out: Tensor | None = None
        if candidates is not None:
            inside, place = self.places(candidates)
            classes = len(candidates)
            if 2 * classes < self.rows:
                among, numbers = W[place], candidates[inside]
            else:  # a copy of most rows would be another W
                out = torch.ones(len(W), dtype=torch.bool, device=W.device)
                out[place] = False
        for part in blocks(len(rows), 8 * W.shape[1] * W.element_size(), min(budget, ROWS_BUDGET)):
            asked = rows[part]
            own = torch.where(torch.isin(asked, numbers), torch.searchsorted(numbers, asked), -1)
            hide = _hide_too(hide_places(own), out)
            value, place = largest_products(self.take(W, asked), among, min(k, classes), hide, budget)
            number = numbers[place] if len(numbers) else asked.unsqueeze(1).expand_as(place)
            yield asked, *best_of_all(value, number)


def _hide_too(hide: Hide, out: Tensor | None) -> Hide:
    """What `hide` hides, and the columns that are `out`."""
    if out is None:
        return hide

    def both(scores: Tensor, columns: slice) -> None:
        hide(scores, columns)
        scores.masked_fill_(out[columns], -torch.inf)

    return both


def best_of_all(value: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row over all processes, largest first, and their numbers: as many as each process has."""
    value, number = (torch.cat(distributed.gather_equal(part.contiguous()), dim=1) for part in (value, number))
    value, place = value.topk(value.shape[1] // distributed.here().count, dim=1)
    return value, number.gather(1, place)


def shard_of(settings: Experiment, labels: int) -> Shard | None:
    """How W is spread over the processes that have met, if it is: where `shard_rows` asks for it, or, left to `auto`,
    where W is `LARGE` and the settings allow it."""
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
    """Whether an exact search would take more operations than all processes together can afford."""
    asked = searched(settings, labels)
    if asked is None:
        return False
    rows, search, _ = asked
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
        (labels < distributed.here().count, "there are fewer labels than processes"),
        (
            _needs_index(settings, labels),
            "neighbours of so many classes are found by an index, which is of all of them",
        ),
    )
    return next((reason for so, reason in reasons if so), None)
