"""Scoring instances with a model, and measuring how well it ranks."""

from __future__ import annotations

import copy
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
from fedalc.metrics import mean_average_precision, ranking_metrics, top_labels
from fedalc.model import Model

MAP_LIMIT = 100_000_000  # instances × labels up to which mAP, which ranks every instance for every label, is computed


class Ranking(Protocol):
    """What can be measured: scores of some instances for all labels."""

    def of_labels(self, labels: slice) -> Tensor: ...

    def top(self, k: int) -> tuple[Tensor, Tensor]: ...


class Scorer:
    """Scores of instances under a model: f(x) = W g(x). Labels without a client are out of the running (-inf)."""

    def __init__(self, model: Model, features: csr_matrix | Images, held: np.ndarray) -> None:
        self.W = model.W
        self._absent = torch.from_numpy(~held).to(model.W.device)
        self.encoded = self._encode(model, features, PICTURES_AT_ONCE if isinstance(features, Images) else 2048)

    @torch.no_grad()
    def _encode(self, model: Model, features: csr_matrix | Images, block_rows: int) -> Tensor:
        W = model.W
        blocks = [
            model.encoder(make_batch(part, np.zeros(part.shape[0]), W.dtype, W.device))
            for start in range(0, features.shape[0], block_rows)
            for part in [features[start : start + block_rows]]
        ]
        return torch.cat(blocks) if blocks else W.new_zeros(0, W.shape[1])

    @torch.no_grad()
    def of_instances(self, rows: slice) -> Tensor:
        """Instances × labels, for a block of instances."""
        return (self.encoded[rows] @ self.W.T).masked_fill_(self._absent, -torch.inf)

    @torch.no_grad()
    def of_labels(self, labels: slice) -> Tensor:
        """Instances × labels, for a block of labels."""
        return (self.encoded @ self.W[labels].T).masked_fill_(self._absent[labels], -torch.inf)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best labels and their scores; fewer where fewer labels have a client."""
        present = int((~self._absent).sum())
        return top_labels(self.of_instances, len(self.encoded), len(self.W), min(k, present))


class SharedScorer:
    """The same of several processes together: each encodes and ranks its share of the instances."""

    def __init__(self, model: Model, features: csr_matrix | Images, held: np.ndarray) -> None:
        self._size = int(features.shape[0])
        self._own = Scorer(model, features[distributed.own_range(self._size)], held)
        self._all: Scorer | None = None

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        labels, scores = self._own.top(k)
        return distributed.gather_rows(labels, self._size), distributed.gather_rows(scores, self._size)

    def of_labels(self, labels: slice) -> Tensor:
        if self._all is None:
            self._all = copy.copy(self._own)
            self._all.encoded = distributed.gather_rows(self._own.encoded, self._size)
        return self._all.of_labels(labels)


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
) -> dict[str, float]:
    """All metrics of a model on a split, in percent. mAP where asked for and affordable (`MAP_LIMIT`)."""
    scorer = Scorer if distributed.here().count == 1 else SharedScorer
    return measure(scorer(model, split.features, held), split.labels, inverse_propensity, with_map)


def measure(
    scores: Ranking, truth: csr_matrix, inverse_propensity: np.ndarray | None = None, with_map: bool = False
) -> dict[str, float]:
    """The same of any scoring of the instances whose labels are `truth`."""
    result = ranking_metrics(scores.top(5)[0].numpy(), truth, inverse_propensity)
    if with_map and truth.shape[0] * truth.shape[1] <= MAP_LIMIT:
        result["mAP"] = mean_average_precision(scores.of_labels, truth)
    return result
