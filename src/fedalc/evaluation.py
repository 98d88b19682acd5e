"""Scoring instances with a model, and measuring how well it ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc import distributed
from fedalc.data.dataset import Split
from fedalc.data.images import Images
from fedalc.encoders import PICTURES_AT_ONCE, make_batch
from fedalc.errors import ConfigError
from fedalc.memory import DEFAULT_BUDGET
from fedalc.metrics import mean_average_precision, ranking_metrics, top_labels
from fedalc.model import Model

MAP_LIMIT = 100_000_000  # instances × labels up to which mAP, which ranks every instance for every label, is computed


class Ranking(Protocol):
    """What can be measured: scores of some instances for all labels."""

    def of_labels(self, labels: slice) -> Tensor: ...

    def top(self, k: int) -> tuple[Tensor, Tensor]: ...


class Scorer:
    """Scores of instances under a model: f(x) = W g(x). Labels without a client are out of the running (-inf).

    Memory: `budget` for a block of scores; and for `of_labels` the embeddings of all instances.
    """

    def __init__(
        self, model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET
    ) -> None:
        self.model, self.W = model, model.W
        self._features, self._budget = features, budget
        self._absent = torch.from_numpy(~held).to(model.W.device)

    @cached_property
    def encoded(self) -> Tensor:
        return self._encode(slice(None))

    @torch.no_grad()
    def _encode(self, rows: slice) -> Tensor:
        W, features = self.W, self._features[rows]
        at_once = PICTURES_AT_ONCE if isinstance(features, Images) else 2048
        parts = [
            self.model.encoder(make_batch(part, np.zeros(part.shape[0]), W.dtype, W.device))
            for start in range(0, features.shape[0], at_once)
            for part in [features[start : start + at_once]]
        ]
        return torch.cat(parts) if parts else W.new_zeros(0, W.shape[1])

    @torch.no_grad()
    def of_instances(self, rows: slice) -> Tensor:
        """Instances × labels, for a block of instances."""
        scores = (self.encoded[rows] if self._keeps else self._encode(rows)) @ self.W.T
        return scores.masked_fill_(self._absent, -torch.inf) if self._absent.any() else scores

    @property
    def _keeps(self) -> bool:
        """Whether the embeddings of all instances are few enough to be worked out once."""
        return self._features.shape[0] * self.W.shape[1] * self.W.element_size() <= self._budget

    @torch.no_grad()
    def of_labels(self, labels: slice) -> Tensor:
        """Instances × labels, for a block of labels."""
        return (self.encoded @ self.W[labels].T).masked_fill_(self._absent[labels], -torch.inf)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best labels and their scores; fewer where fewer labels have a client."""
        present = int((~self._absent).sum())
        return top_labels(self.of_instances, self._features.shape[0], len(self.W), min(k, present), self._budget)


class SharedScorer:
    """The same of several processes together: each encodes and ranks its share of the instances."""

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
        """The embeddings are gathered now, by all processes: not all of them may have labels to score."""
        scorer = copy.copy(self._own)
        scorer.encoded = distributed.gather_rows(self._own.encoded, self._size)
        return scorer.of_labels


def check_map_affordable(truth: csr_matrix) -> None:
    if truth.shape[0] * truth.shape[1] > MAP_LIMIT:
        raise ConfigError(
            f"mAP ranks each instance for each label, and {truth.shape[0]} × {truth.shape[1]} are more than "
            f"{MAP_LIMIT:,}; choose by another",
            "selection.metric",
        )


def evaluate(
    model: Model,
    split: Split,
    held: np.ndarray,
    inverse_propensity: np.ndarray | None = None,
    with_map: bool = False,
    budget: int = DEFAULT_BUDGET,
) -> dict[str, float]:
    """All metrics of a model on a split, in percent. mAP where asked for and affordable (`MAP_LIMIT`)."""
    scorer = Scorer if distributed.here().count == 1 else SharedScorer
    return measure(scorer(model, split.features, held, budget), split.labels, inverse_propensity, with_map)


def measure(
    scores: Ranking, truth: csr_matrix, inverse_propensity: np.ndarray | None = None, with_map: bool = False
) -> dict[str, float]:
    """The same of any scoring of the instances whose labels are `truth`."""
    result = ranking_metrics(scores.top(5)[0].numpy(), truth, inverse_propensity)
    if with_map and truth.shape[0] * truth.shape[1] <= MAP_LIMIT:
        result["mAP"] = mean_average_precision(scores.of_labels, truth)
    return result
