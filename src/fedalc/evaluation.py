"""Scoring instances with a model, and measuring how well it ranks."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.data.dataset import Split
from fedalc.data.images import Images
from fedalc.encoders import PICTURES_AT_ONCE, make_batch
from fedalc.errors import ConfigError
from fedalc.memory import DEFAULT_BUDGET
from fedalc.metrics import mean_average_precision, ranking_metrics
from fedalc.model import Model
from fedalc.neighbours import largest_products

MAP_LIMIT = 100_000_000  # instances × labels up to which mAP, which ranks every instance for every label, is computed
AT_ONCE = 2048  # instances encoded and scored at a time; pictures are encoded fewer at a time


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
        self._absent_count = int((~held).sum())

    @cached_property
    def encoded(self) -> Tensor:
        return self._encode(slice(None))

    @torch.no_grad()
    def _encode(self, rows: slice) -> Tensor:
        W, features = self.W, self._features[rows]
        at_once = PICTURES_AT_ONCE if isinstance(features, Images) else AT_ONCE
        parts = [
            self.model.encoder(make_batch(part, np.zeros(part.shape[0]), W.dtype, W.device))
            for start in range(0, features.shape[0], at_once)
            for part in [features[start : start + at_once]]
        ]
        return torch.cat(parts) if parts else W.new_zeros(0, W.shape[1])

    @torch.no_grad()
    def of_labels(self, labels: slice) -> Tensor:
        """Instances × labels, for a block of labels."""
        return self._masked(self.encoded @ self.W[labels].T, labels)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best labels and their scores; fewer where fewer labels have a client."""
        k, count = min(k, len(self.W) - self._absent_count), self._features.shape[0]
        index, value = torch.zeros(count, k, dtype=torch.int64), torch.zeros(count, k, dtype=torch.float64)
        for start in range(0, count, AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            encoded = self.encoded[rows] if self._keeps else self._encode(rows)
            value[rows], index[rows] = largest_products(encoded, self.W, k, self._masked, self._budget)
        return index, value

    def _masked(self, scores: Tensor, labels: slice) -> Tensor:
        return scores.masked_fill_(self._absent[labels], -torch.inf) if self._absent_count else scores

    @property
    def _keeps(self) -> bool:
        """Whether the embeddings of all instances are few enough to be worked out once."""
        return self._features.shape[0] * self.W.shape[1] * self.W.element_size() <= self._budget


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
    return measure(Scorer(model, split.features, held, budget), split.labels, inverse_propensity, with_map)


def measure(
    scores: Ranking, truth: csr_matrix, inverse_propensity: np.ndarray | None = None, with_map: bool = False
) -> dict[str, float]:
    """The same of any scoring of the instances whose labels are `truth`."""
    result = ranking_metrics(scores.top(5)[0].numpy(), truth, inverse_propensity)
    if with_map and truth.shape[0] * truth.shape[1] <= MAP_LIMIT:
        result["mAP"] = mean_average_precision(scores.of_labels, truth)
    return result
