"""Score instances with a model: in one process, in several, or with W sharded over processes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.core.nearest import largest_products
from fedalc.core.progress_events import watched
from fedalc.data.images.images import Images
from fedalc.models.class_embeddings import are_axes
from fedalc.models.encoders import PICTURES_AT_ONCE, make_batch
from fedalc.models.model import Model
from fedalc.models.sharding import best_of_all

AT_ONCE = 2048  # instances encoded and scored at a time; pictures are encoded in smaller batches


class Scorer:
    """Computes scores of instances: f(x) = W g(x). Labels without a client get -inf.

    Memory of `top`: half of `budget` for a block of scores, and a quarter for the embeddings of all instances, if they
    fit. `of_labels` always keeps the embeddings.
    """

    def __init__(
        self, model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET
    ) -> None:
        self.model, self.W = model, model.W
        self._features, self._budget = features, budget
        self._at_once = PICTURES_AT_ONCE if isinstance(features, Images) else AT_ONCE
        self._absent = torch.from_numpy(~held).to(model.W.device)
        self._absent_count = int((~held).sum())

    @cached_property
    def encoded(self) -> Tensor:
        everything = slice(0, self._features.shape[0])
        return self._encode(everything, _portions("instances encoded", everything, self._at_once))

    def encode(self, rows: slice) -> Tensor:
        return self._encode(rows, slices(rows, self._at_once))

    @torch.no_grad()
    def _encode(self, rows: slice, parts: Iterable[slice]) -> Tensor:
        encoded = self.W.new_empty(rows.stop - rows.start, self.W.shape[1])
        for part in parts:
            features = self._features[part]
            batch = make_batch(features, np.zeros(features.shape[0]), self.W.dtype, self.W.device)
            encoded[part.start - rows.start : part.stop - rows.start] = self.model.encoder(batch)
        return encoded

    @torch.no_grad()
    def of_labels(self, labels: slice) -> Tensor:
        """Return scores, instances × labels, for a block of labels."""
        return self.masked(self.encoded @ self.W[labels].T, labels)

    @torch.no_grad()
    def of_instances(self, rows: slice) -> Tensor:
        """Return scores, instances × labels, for a block of instances."""
        encoded = self.encoded[rows] if self._keeps else self.encode(rows)
        scores = encoded @ self.W.T if self._axes is None else encoded[:, self._axes]
        return self.masked(scores, slice(0, len(self.W)))

    @cached_property
    def _axes(self) -> Tensor | None:
        """The axis of each label, if W has one for each: then a score is a coordinate, and there is no product."""
        return self.W.argmax(1) if are_axes(self.W) else None

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best labels and their scores, or fewer if fewer labels have a client."""
        k, count = min(k, len(self.W) - self._absent_count), self._features.shape[0]
        index, value = torch.zeros(count, k, dtype=torch.int64), torch.zeros(count, k, dtype=torch.float64)
        encode = self.encoded.__getitem__ if self._keeps else self.encode
        for rows in _portions("instances ranked", slice(0, count), AT_ONCE):
            value[rows], index[rows] = largest_products(encode(rows), self.W, k, self.masked, self._budget // 2)
        return index, value

    def masked(self, scores: Tensor, labels: slice) -> Tensor:
        """Set the scores of labels without a client to -inf."""
        return scores.masked_fill_(self._absent[labels], -torch.inf) if self._absent_count else scores

    @property
    def _keeps(self) -> bool:
        """Whether the embeddings of all instances fit into memory, so that they are computed once."""
        return self._features.shape[0] * self.W.shape[1] * self.W.element_size() <= self._budget // 4


class SharedScorer:
    """A scorer for several processes: each encodes and ranks its share of the instances."""

    def __init__(
        self, model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET
    ) -> None:
        self._size = int(features.shape[0])
        self._own = Scorer(model, features[distributed.own_range(self._size)], held, budget)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        labels, scores = self._own.top(k)
        return distributed.gather_rows(labels, self._size), distributed.gather_rows(scores, self._size)

    @property
    def of_labels(self) -> Callable[[slice], Tensor]:
        """Return the scoring function. All processes must take part: it gathers the embeddings at once."""
        scorer = copy.copy(self._own)
        scorer.encoded = distributed.gather_rows(self._own.encoded, self._size)
        return scorer.of_labels


class ShardedScorer:
    """A scorer for a sharded W: each process scores all instances, block by block, for its own labels."""

    def __init__(
        self, model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET
    ) -> None:
        assert model.shard is not None
        self._own, self._present = model.shard.own, int(held.sum())
        self._size, self._budget = int(features.shape[0]), budget
        self._scorer = Scorer(model, features, held[self._own], budget)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        k, scorer = min(k, self._present), self._scorer
        index, value = torch.zeros(self._size, k, dtype=torch.int64), torch.zeros(self._size, k, dtype=torch.float64)
        for rows in _portions("instances ranked", slice(0, self._size), AT_ONCE):
            best, place = largest_products(self._encoded(rows), scorer.W, k, scorer.masked, self._budget // 2)
            value[rows], index[rows] = best_of_all(best, place + self._own.start)
        return index, value

    @property
    def of_labels(self) -> Callable[[slice], Tensor]:
        """Return the scoring function for this process's labels. All processes must call it."""
        scorer, start = copy.copy(self._scorer), self._own.start
        scorer.encoded = self._encoded(slice(0, self._size))
        return lambda labels: scorer.of_labels(slice(labels.start - start, labels.stop - start))

    def _encoded(self, rows: slice) -> Tensor:
        """Return the embeddings of these instances. Each process encodes a share."""
        size = rows.stop - rows.start
        own = distributed.own_range(size)
        return distributed.gather_rows(self._scorer.encode(slice(rows.start + own.start, rows.start + own.stop)), size)


def slices(rows: slice, at_once: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, at_once):
        yield slice(start, min(start + at_once, rows.stop))


def _portions(what: str, rows: slice, at_once: int) -> Iterator[slice]:
    """Yield slices of `rows`, and report progress."""
    return watched(what, slices(rows, at_once), rows.stop - rows.start, lambda part: part.stop - part.start)
