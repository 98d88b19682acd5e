"""What a method is: the client's loss, the clients' weights, how W starts, and the server's step on W.

A method knows nothing of where it runs. An engine asks it for these four things and has no `if method == …`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import MethodFacts, parsed_options
from fedalc.config.schema import Settings
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import Search
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.labels.privacy import PrivateLabelSets
from fedalc.methods.private_gradient import PrivateGradient
from fedalc.methods.regularizers import NearestPairs, Objective, Potential, Regularizer
from fedalc.models.class_embeddings import frequency_rows, orthogonal_rows, random_rows, unit_rows
from fedalc.models.sharding import Shard, shard_of


@dataclass(frozen=True)
class Told:
    """What clients are told for the square loss, where they are apart from the server that knows the labels."""

    label_weights: np.ndarray  # a_u of each label
    shares: np.ndarray  # 1/m of each instance (`set_size` exact) or label (expected)


@dataclass(frozen=True)
class Method(MethodFacts, ABC):
    """Built once per training. `knowledge` is what the server learned from the label collection, for methods that use
    it. In a deployment each party builds one for its own labels, with what the server `told` it instead.

    A method declares its facts as class attributes (`MethodFacts`) and overrides what it does differently.
    """

    settings: Experiment
    label_count: int
    knowledge: LabelKnowledge | None = None
    told: Told | None = None

    @property
    def parts(self) -> list[slice]:
        """The columns of each sub-model. A pair's loss is the sum of its losses in all of them."""
        dim = self.settings.encoder.dim
        return [slice(place * dim, (place + 1) * dim) for place in range(self.sub_models(self.settings))]

    @cached_property
    def options(self) -> Settings | None:
        """The method's own settings, from [options]: an object of its `Options`."""
        return parsed_options(self.settings)

    def start(self, generator: torch.Generator) -> Tensor:
        """W before round 1: spread out, one unit row per label, or those of this process's `shard`."""
        if self.settings.embeddings.start == "by-frequency":
            dim, dtype = self.settings.encoder.dim, getattr(torch, self.settings.dtype)
            return frequency_rows(torch.from_numpy(self._counts), dim, generator, dtype)
        return self.spread_out(self.label_count, generator)

    def spread_out(self, rows: int, generator: torch.Generator) -> Tensor:
        draw = orthogonal_rows if self.settings.embeddings.start == "orthogonal" else random_rows
        own = None if self.shard is None else self.shard.own
        return draw(rows, self.settings.encoder.dim, generator, getattr(torch, self.settings.dtype), own)

    @cached_property
    def shard(self) -> Shard | None:
        """Where W's rows are, if they are spread over processes."""
        return shard_of(self.settings, self.label_count)

    def loss(self, scores: Tensor, lengths: Tensor, labels: Tensor, instances: Tensor) -> Tensor:
        """Losses of positive pairs, from s = g(x)ᵀw_u and ‖g(x)‖² of each (in one sub-model, where there are several).

        hinge: max(0, margin - s)², the margin 0.9 in the paper. square: ‖g‖²/m - 2 a_u s + a_u², of which the sum over
        an instance's m owners is ‖g - Σ a_u w_u‖² where W is orthonormal: the centralised loss (docs/exact.md).
        """
        if self.settings.client.loss == "hinge":
            return (self.settings.client.margin - scores).clamp(min=0).square()
        weight = self.label_weights[labels]
        return self.share(labels, instances) * lengths - 2 * weight * scores + weight.square()

    def share(self, labels: Tensor, instances: Tensor) -> Tensor:
        """The part of ‖g(x)‖² that is one owner's, 1/m: as `set_size` says what it knows of m."""
        told = self.settings.client.set_size
        if told == "exact":
            return self._per_instance[instances]
        return self._per_label[labels] if told == "expected" else torch.ones_like(self.label_weights)[labels]

    @cached_property
    def label_weights(self) -> Tensor:
        """a_u: rare labels count more, so that their scores hold their own against those of common ones."""
        client = self.settings.client
        if self.told is not None:
            return self._tensor(self.told.label_weights)
        if client.label_power == 0:
            return self._tensor(np.ones(self.label_count))
        weight = (np.maximum(self._counts, 1) + client.label_offset) ** -client.label_power
        return self._tensor(weight / weight.max())

    def tell(self, labels: np.ndarray, set_sizes: np.ndarray | None) -> Told:
        """What a party of its own needs to know for its labels; `set_sizes` are those of its instances, if exact."""
        if self.settings.client.set_size == "exact":
            assert set_sizes is not None
            shares = 1 / set_sizes
        else:
            expected = self.settings.client.set_size == "expected"
            shares = self._per_label.double().cpu().numpy()[labels] if expected else np.empty(0)
        return Told(self.label_weights.double().cpu().numpy()[labels], shares)

    @cached_property
    def _per_instance(self) -> Tensor:
        if self.told is not None:
            return self._tensor(self.told.shares)
        assert self.knowledge is not None and self.knowledge.set_sizes is not None
        return self._tensor(1 / self.knowledge.set_sizes)

    @cached_property
    def _per_label(self) -> Tensor:
        """1 / E[m | u], E[m | u] = 1 + Σ_v c_uv / n_u: the mean size of the label sets that u is in."""
        if self.told is not None:
            return self._tensor(self.told.shares)
        known = self._correlations
        return self._tensor(1 / (1 + np.asarray(known.together.sum(axis=1)).ravel() / np.maximum(known.counts, 1)))

    @property
    def _counts(self) -> np.ndarray:
        return self._correlations.counts.astype(np.float64)

    @property
    def _correlations(self) -> Correlations:
        assert self.knowledge is not None and isinstance(self.knowledge.labels, Correlations)
        return self.knowledge.labels

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(dtype=getattr(torch, self.settings.dtype), device=self.settings.device)

    def weights(self, counts: Tensor, labels: np.ndarray) -> Tensor:
        """p_u of the clients taking part, from how many instances each holds, and of which label. They sum to 1."""
        if self.settings.server.weights == "uniform":
            return torch.full_like(counts, 1 / len(counts))
        return counts / counts.sum()

    @abstractmethod
    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """W after the server's own step, from the rows as the clients left them: those of `labels` took part.

        It may be W itself, changed."""

    # --- for server steps ---

    def from_labels(self, build: Callable[[Correlations], Regularizer]) -> Objective:
        """Return what `build` makes of the label correlations, or its private stand-in if each step is private."""
        assert self.knowledge is not None
        labels = self.knowledge.labels
        return PrivateGradient.of(labels, build) if isinstance(labels, PrivateLabelSets) else build(labels)

    def nearest_pairs(
        self, potential: Potential | None, W: Tensor, labels: Tensor, generator: torch.Generator
    ) -> NearestPairs:
        """Return the pairs of each class with its K nearest, as [regularizer] says, without correlations."""
        settings = self.settings.regularizer
        return NearestPairs(
            settings.neighbours,
            potential,
            candidates=self._candidates(W, generator),
            rows=labels if settings.rows == "participants" else None,
            search=self.searching(settings.search),
            budget=self.settings.memory_budget,
            shard=self.shard,
        )

    def searching(self, search: Search) -> Search:
        """Return how to find neighbours: exactly if each step is private, as norms and gradient need the same ones."""
        return "exact" if self.settings.privacy.mechanism == "gradients" else search

    def _candidates(self, W: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw the classes among which this round looks for neighbours. None: all of them."""
        size = self.settings.regularizer.candidates
        if size is None or size >= self.label_count:
            return None
        return torch.randperm(self.label_count, generator=generator)[:size].sort().values.to(W.device)


def descend(W: Tensor, regularizer: Objective, rate: float, budget: int = DEFAULT_BUDGET) -> Tensor:
    """One projected gradient step, in W's own place: unit(W - rate·∇reg(W)). Where the gradient is of some rows only
    (a sparse tensor), the others stay as they are. Memory: the gradient, and `budget` for a block of rows."""
    _, gradient = regularizer.value_and_gradient(W)
    rows, slope = (gradient.indices()[0], gradient.values()) if gradient.is_sparse else (None, gradient)
    for part in blocks(len(slope), 4 * W.shape[1] * W.element_size(), budget):
        own = part if rows is None else rows[part]
        W[own] = unit_rows(W[own] - rate * slope[part])
    return W
