"""A tree of labels: clusters, and within each cluster a sparse column of weights for each label.

The encoder scores clusters, W says which cluster a label is in, and the score of a label is

    weight · log P(cluster) + log P(label | cluster) + offset of the label + nearness · cosine to the label's mean

where P is the value of a regression on zeros and ones, which is not quite a probability: below `FLOOR` the logarithm
goes on as a straight line. With a single cluster only the last three parts are left.
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
    """The numbers of label u are `weights[starts[u] : starts[u + 1]]`; `features` says of which features, and `means`
    has the label's mean direction there."""

    weights: Tensor
    means: Tensor
    features: Tensor
    starts: Tensor
    offsets: Tensor
    counts: Weights

    @classmethod
    def of(cls, entries: Entries, shape: tuple[int, int], offsets: Tensor, counts: Weights) -> LabelColumns:
        """`shape`: features × labels."""
        order = np.lexsort((entries.features, entries.labels))
        starts = np.concatenate([[0], np.bincount(entries.labels, minlength=shape[1]).cumsum()])
        arrays = (entries.weights[order], entries.means[order], entries.features[order].astype(np.int64), starts)
        weights, means, features, ends = map(torch.from_numpy, arrays)
        return cls(weights, means, features, ends, offsets, counts)

    def matrices(self, feature_count: int) -> tuple[csc_matrix, csc_matrix]:
        """Return weights and means, features × labels."""
        features, starts = self.features.cpu().numpy(), self.starts.cpu().numpy()
        both = (
            csc_matrix((part.cpu().numpy(), features, starts), shape=(feature_count, len(starts) - 1))
            for part in (self.weights, self.means)
        )
        weights, means = both
        return weights, means

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays to save, together with `facts`."""
        return {PREFIX + name: getattr(self, name) for name in ("weights", "means", "features", "starts", "offsets")}

    def facts(self) -> dict[str, Any]:
        return self.counts._asdict()

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], shape: tuple[int, int]) -> LabelColumns:
        """Return what was saved. Raises an error of `DAMAGE` if parts do not fit together."""
        weights, means, offsets = (numbers(tensors, PREFIX + name, 1) for name in ("weights", "means", "offsets"))
        features = places(tensors, PREFIX + "features", shape[0])
        starts = places(tensors, PREFIX + "starts", len(weights) + 1)
        ends = len(starts) == shape[1] + 1 and int(starts[0]) == 0 and int(starts[-1]) == len(weights)
        if not ends or bool((starts.diff() < 0).any()) or not len(weights) == len(means) == len(features):
            raise ValueError(f"columns of {len(starts) - 1} labels with {len(features)} numbers")
        if len(offsets) != shape[1]:
            raise ValueError(f"{len(offsets)} offsets of {shape[1]} labels")
        cluster, nearness, beam = float(facts["cluster"]), float(facts["nearness"]), facts["beam"]
        if type(beam) is not int or beam < 1 or not (math.isfinite(cluster) and math.isfinite(nearness)):
            raise ValueError(f"weights {cluster!r} and {nearness!r}, beam {beam!r}")
        return cls(weights, means, features, starts, offsets, Weights(cluster, nearness, beam))


def log(values: Tensor) -> Tensor:
    """Return the logarithm; from `FLOOR` down its tangent, so that numbers of any sign keep their order."""
    return torch.where(values > FLOOR, values.clamp(min=FLOOR).log(), values / FLOOR + (np.log(FLOOR) - 1))
