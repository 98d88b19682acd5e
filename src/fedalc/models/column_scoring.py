"""Score instances with trees of labels (`label_columns`): all labels exactly, or the best ones by a beam."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Scores of a model with `columns`. `top` looks only at labels of the first tree's `beam` best clusters of each
    instance, in its last level."""

    def __init__(
        self, model: Model, features: csr_matrix | Images, held: np.ndarray, budget: int = DEFAULT_BUDGET
    ) -> None:
        super().__init__(model, features, held, budget)
        assert model.columns is not None and not isinstance(features, Images)
        self._held, self._columns = held, model.columns
        self._x = csr_matrix(features).astype(model.columns.weights.cpu().numpy().dtype)
        self._sizes = model.columns.sizes
        levels = model.W.split(self._sizes * len(model.columns.weights), dim=1)
        starts = np.cumsum([0, *self._sizes * len(model.columns.weights)])
        self._nodes = torch.stack([level.argmax(1).cpu() + start for level, start in zip(levels, starts, strict=False)])
        self._cluster = self._nodes[len(self._sizes) - 1].numpy() - starts[len(self._sizes) - 1]

    @cached_property
    def _matrices(self) -> list[csc_matrix]:
        return self._columns.matrices(self._x.shape[1])

    def of_labels(self, labels: slice) -> Tensor:
        return self._exact(slice(0, self._x.shape[0]), labels)

    def of_instances(self, rows: slice) -> Tensor:
        return self._exact(rows, slice(0, len(self.W)))

    def _exact(self, rows: slice, labels: slice) -> Tensor:
        matrices, numbers = [matrix[:, labels] for matrix in self._matrices], np.arange(len(self.W))[labels]
        clusters = self._of_clusters(self.encode(rows))
        return self.masked(
            self._scores(self._x[rows], clusters, torch.arange(len(clusters)), matrices, numbers), labels
        )

    def _of_clusters(self, encoded: Tensor) -> Tensor:
        """Return what each cluster adds to the scores of its labels."""
        weight = self._columns.counts.cluster / len(self._columns.weights)
        return torch.zeros_like(encoded) if self._sizes == [1] else log(encoded).mul_(weight)

    def _scores(
        self, x: csr_matrix, clusters: Tensor, rows: Tensor, matrices: Sequence[csc_matrix], labels: np.ndarray
    ) -> Tensor:
        """Return the scores of records x, which are these rows of `clusters`, and of labels with these columns."""
        *trees, means = matrices
        scores = self._columns.offsets[torch.from_numpy(labels)].expand(x.shape[0], -1).clone()
        for nodes in self._nodes[:, labels]:
            scores += clusters[rows.unsqueeze(1), nodes]
        for weights in trees:
            scores.add_(log(_product(x, weights)), alpha=1 / len(trees))
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
        beam, (count, width) = self._beam(k), self._shape
        nearest = self._of_last_level(clusters).topk(beam, dim=1).indices
        scores = clusters.new_full((len(nearest), beam, width), -torch.inf)
        place = torch.zeros(scores.shape, dtype=torch.int64)
        order = nearest.flatten().argsort(stable=True)
        ends = nearest.flatten().bincount(minlength=count).cumsum(0).tolist()
        for (labels, matrices), start, end in zip(self._members, [0, *ends[:-1]], ends, strict=True):
            instance, at = order[start:end] // beam, order[start:end] % beam
            if len(instance) and len(labels):
                found = self._scores(x[instance.numpy()], clusters, instance, matrices, labels)
                scores[instance, at, : len(labels)] = found
                place[instance, at, : len(labels)] = torch.from_numpy(labels)
        best, where = scores.flatten(1).topk(k, dim=1)
        return best, place.flatten(1).gather(1, where)

    def _of_last_level(self, clusters: Tensor) -> Tensor:
        """Return the score of each cluster in the first tree's last level: its own and those that it is within."""
        last = self._sizes[-1]
        own = clusters[:, : sum(self._sizes)].split(self._sizes, dim=1)
        return torch.stack([part.repeat_interleave(last // part.shape[1], dim=1) for part in own]).sum(0)

    @cached_property
    def _members(self) -> list[tuple[np.ndarray, list[csr_matrix]]]:
        """The labels of each cluster that have a client, and their columns."""
        count = self._sizes[-1]
        order = np.argsort(np.where(self._held, self._cluster, count), kind="stable")
        ends = np.bincount(self._cluster[self._held], minlength=count).cumsum()
        parts = (order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True))
        return [(labels, [matrix[:, labels].tocsr() for matrix in self._matrices]) for labels in parts]

    @property
    def _shape(self) -> tuple[int, int]:
        """The number of clusters, and of labels in the largest."""
        return len(self._members), max(len(labels) for labels, _ in self._members)

    def _beam(self, k: int) -> int:
        """How many clusters to look into, so that even the smallest have k labels."""
        sizes = np.cumsum(np.sort([len(labels) for labels, _ in self._members]))
        return min(len(self._members), max(self._columns.counts.beam, 1 + int(np.searchsorted(sizes, k))))


def _product(x: csr_matrix, columns: csr_matrix) -> Tensor:
    return torch.from_numpy((x @ columns).toarray())
