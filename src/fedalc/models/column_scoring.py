"""Score instances with a tree of labels (`label_columns`): all labels exactly, or the best ones by a beam."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix
from torch import Tensor

from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.core.progress_events import watched
from fedalc.data.images.images import Images
from fedalc.models.label_columns import log
from fedalc.models.model import Model
from fedalc.models.scoring import Scorer, slices

AT_ONCE = 8192  # instances ranked at a time


def make_scorer(model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET) -> Scorer:
    """Return what scores instances with this model, in one process."""
    return (Scorer if model.columns is None else ColumnScorer)(model, features, held, budget)


class ColumnScorer(Scorer):
    """Scores of a model with `columns`. `top` looks only at labels of the `beam` best clusters of each instance."""

    def __init__(
        self, model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET
    ) -> None:
        super().__init__(model, features, held, budget)
        assert model.columns is not None and not isinstance(features, Images)
        self._held, self._columns = held, model.columns
        self._x = csr_matrix(features).astype(model.columns.weights.cpu().numpy().dtype)
        self._cluster = model.W.argmax(1).cpu().numpy()

    @cached_property
    def _matrices(self) -> tuple[csc_matrix, csc_matrix]:
        return self._columns.matrices(self._x.shape[1])

    def of_labels(self, labels: slice) -> Tensor:
        return self._exact(slice(0, self._x.shape[0]), labels)

    def of_instances(self, rows: slice) -> Tensor:
        return self._exact(rows, slice(0, len(self.W)))

    def _exact(self, rows: slice, labels: slice) -> Tensor:
        weights, means = (matrix[:, labels] for matrix in self._matrices)
        clusters = self._of_clusters(self.encode(rows))[:, self._cluster[labels]]
        numbers = np.arange(len(self.W))[labels]
        return self.masked(clusters + self._within(self._x[rows], weights, means, numbers), labels)

    def _of_clusters(self, encoded: Tensor) -> Tensor:
        return torch.zeros_like(encoded) if encoded.shape[1] == 1 else self._columns.counts.cluster * log(encoded)

    def _within(self, x: csr_matrix, weights: csr_matrix, means: csr_matrix, labels: np.ndarray) -> Tensor:
        """Return the part of the scores that is within clusters, of records x and these labels."""
        scores = log(_product(x, weights)).add_(self._columns.offsets[torch.from_numpy(labels)])
        nearness = self._columns.counts.nearness
        return scores.add_(_product(x, means), alpha=nearness) if nearness else scores

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best labels of the best clusters: of more clusters than `beam` if these have fewer labels."""
        k, count = min(k, int(self._held.sum())), self._x.shape[0]
        index, value = torch.zeros(count, k, dtype=torch.int64), torch.zeros(count, k, dtype=torch.float64)
        parts = slices(slice(0, count), AT_ONCE)
        for rows in watched("instances ranked", parts, count, lambda part: part.stop - part.start):
            value[rows], index[rows] = self._best(rows, k)
        return index, value

    def _best(self, rows: slice, k: int) -> tuple[Tensor, Tensor]:
        x, clusters = self._x[rows], self._of_clusters(self.encode(rows))
        beam = self._beam(k)
        reached, nearest = clusters.topk(beam, dim=1)
        width = max(len(labels) for labels, *_ in self._members)
        scores = reached.new_full((len(reached), beam, width), -torch.inf)
        place = torch.zeros(scores.shape, dtype=torch.int64)
        order = nearest.flatten().argsort(stable=True)
        ends = nearest.flatten().bincount(minlength=len(self._members)).cumsum(0).tolist()
        for (labels, weights, means), start, end in zip(self._members, [0, *ends[:-1]], ends, strict=True):
            instance, at = order[start:end] // beam, order[start:end] % beam
            if len(instance) and len(labels):
                within = self._within(x[instance.numpy()], weights, means, labels)
                scores[instance, at, : len(labels)] = reached[instance, at].unsqueeze(1) + within
                place[instance, at, : len(labels)] = torch.from_numpy(labels)
        best, where = scores.flatten(1).topk(k, dim=1)
        return best, place.flatten(1).gather(1, where)

    @cached_property
    def _members(self) -> list[tuple[np.ndarray, csr_matrix, csr_matrix]]:
        """The labels of each cluster that have a client, their weights and means."""
        order = np.argsort(np.where(self._held, self._cluster, self.W.shape[1]), kind="stable")
        ends = np.bincount(self._cluster[self._held], minlength=self.W.shape[1]).cumsum()
        parts = (order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True))
        weights, means = self._matrices
        return [(labels, weights[:, labels].tocsr(), means[:, labels].tocsr()) for labels in parts]

    def _beam(self, k: int) -> int:
        """How many clusters to look into, so that even the smallest have k labels."""
        sizes = np.cumsum(np.sort([len(labels) for labels, *_ in self._members]))
        return min(len(self._members), max(self._columns.counts.beam, 1 + int(np.searchsorted(sizes, k))))


def _product(x: csr_matrix, columns: csr_matrix) -> Tensor:
    return torch.from_numpy((x @ columns).toarray())
