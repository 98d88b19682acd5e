"""Trees of labels: clusters, clusters within these, and within the last a sparse column of weights for each label.

The encoder scores clusters, W says which clusters a label is in, and the score of a label is

    mean over trees (weight · Σ log P(cluster) + log P(label | cluster)) + offset + nearness · cosine to label's mean

with a cluster of each level. P is the value of a regression on zeros and ones, which is not quite a probability: below
`FLOOR` the logarithm goes on as a straight line. With a single cluster there is no P(cluster).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csc_matrix
from torch import Tensor

from fedalc.core.saved_parts import numbers, places

FLOOR = 0.01
PREFIX = "columns."


class Entries(NamedTuple):
    """Numbers of a sparse matrix, features × labels: where they are, the weights, and the label's mean direction."""

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    means: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        return cls(*(np.concatenate(part) for part in zip(*parts, strict=True)))


class Weights(NamedTuple):
    """What the parts of a score count, and how many clusters are looked into."""

    cluster: float
    nearness: float
    beam: int


@dataclass(frozen=True)
class LabelColumns:
    """The numbers of label u in tree t are `weights[t, starts[u] : starts[u + 1]]`; `features` says of which features,
    and `means` has the label's mean direction there. `sizes`: the number of clusters in each level of a tree."""

    weights: Tensor
    means: Tensor
    features: Tensor
    starts: Tensor
    offsets: Tensor
    counts: Weights
    sizes: list[int]

    @classmethod
    def of(
        cls, trees: Sequence[Entries], shape: tuple[int, int], offsets: Tensor, counts: Weights, sizes: list[int]
    ) -> LabelColumns:
        """`shape`: features × labels. The trees have numbers of the same features and labels, in any order."""
        orders = [np.lexsort((entries.features, entries.labels)) for entries in trees]
        weights = np.stack([entries.weights[order] for entries, order in zip(trees, orders, strict=True)])
        (first, *_), (order, *_) = trees, orders
        ends = np.concatenate([[0], np.bincount(first.labels, minlength=shape[1]).cumsum()])
        arrays = (weights, first.means[order], first.features[order].astype(np.int64), ends)
        columns, means, features, starts = map(torch.from_numpy, arrays)
        return cls(columns, means, features, starts, offsets, counts, sizes)

    def matrices(self, feature_count: int) -> list[csc_matrix]:
        """Return the weights of each tree, and the means, features × labels."""
        features, starts = self.features.cpu().numpy(), self.starts.cpu().numpy()
        return [
            csc_matrix((part.cpu().numpy(), features, starts), shape=(feature_count, len(starts) - 1))
            for part in (*self.weights, self.means)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays to save, together with `facts`."""
        return {PREFIX + name: getattr(self, name) for name in ("weights", "means", "features", "starts", "offsets")}

    def facts(self) -> dict[str, Any]:
        return {**self.counts._asdict(), "sizes": self.sizes}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], shape: tuple[int, int]) -> LabelColumns:
        """Return what was saved. Raises an error of `DAMAGE` if parts do not fit together."""
        wanted = (("weights", 2), ("means", 1), ("offsets", 1))
        weights, means, offsets = (numbers(tensors, PREFIX + name, dimensions) for name, dimensions in wanted)
        sizes, nodes = facts["sizes"], tensors["W"].shape[1]
        features = places(tensors, PREFIX + "features", shape[0])
        starts = places(tensors, PREFIX + "starts", len(means) + 1)
        ends = len(starts) == shape[1] + 1 and int(starts[0]) == 0 and int(starts[-1]) == weights.shape[1]
        if not ends or bool((starts.diff() < 0).any()) or not weights.shape[1] == len(means) == len(features):
            raise ValueError(f"columns of {len(starts) - 1} labels with {len(features)} numbers")
        if len(offsets) != shape[1]:
            raise ValueError(f"{len(offsets)} offsets of {shape[1]} labels")
        if any(type(size) is not int or size < 1 for size in sizes) or nodes != len(weights) * sum(sizes):
            raise ValueError(f"{len(weights)} trees of {sizes!r:.50} clusters, but W has {nodes} columns")
        cluster, nearness, beam = float(facts["cluster"]), float(facts["nearness"]), facts["beam"]
        if type(beam) is not int or beam < 1 or not (math.isfinite(cluster) and math.isfinite(nearness)):
            raise ValueError(f"weights {cluster!r} and {nearness!r}, beam {beam!r}")
        return cls(weights, means, features, starts, offsets, Weights(cluster, nearness, beam), sizes)


def log(values: Tensor) -> Tensor:
    """Return the logarithm; from `FLOOR` down its tangent, so that numbers of any sign keep their order."""
    return torch.where(values > FLOOR, values.clamp(min=FLOOR).log(), values / FLOOR + (np.log(FLOOR) - 1))
