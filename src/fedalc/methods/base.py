"""The base class of all methods: the client's loss, the clients' weights, the start of W, the server's step on W.

A method does not know where it runs. An engine calls these four and contains no `if method == …`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, assert_never

import numpy as np
import torch
from scipy.sparse import csc_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import MethodFacts, parsed_options
from fedalc.config.schema import Settings
from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.core.nearest import Search
from fedalc.core.seeds import torch_generator
from fedalc.errors import ConfigError
from fedalc.labels.correlations import Correlations, LabelCounts
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.labels.privacy import PrivateLabelSets
from fedalc.methods.losses import SET_LOSSES, SetLoss
from fedalc.methods.private_gradient import PrivateGradient
from fedalc.methods.regularizers import NearestPairs, Objective, Potential, Regularizer
from fedalc.models.class_embeddings import (
    codeword_rows,
    frequency_rows,
    orthogonal_rows,
    random_rows,
    simplex_rows,
    unit_rows,
)
from fedalc.models.model import Model
from fedalc.models.sharding import Shard, shard_of

STARTS = {
    "orthogonal": orthogonal_rows,
    "random": random_rows,
    "simplex": simplex_rows,
    "codewords": codeword_rows,
}


class ClientSums(Protocol):
    """The sums of all clients, for methods of one round (`engines.base.Sums`)."""

    @property
    def gram(self) -> Tensor:
        """Σ x xᵀ/m, features × features. Empty without `sends_gram`."""

    @property
    def cross(self) -> Tensor:
        """Σ_u a_u (Σ_j x_j) w_uᵀ, features × D."""

    @property
    def pairs(self) -> int:
        """How many pairs of an instance and its label."""

    def solve(self, ridge: float) -> Tensor: ...

    def objective(self, theta: Tensor, ridge: float) -> float: ...


class ClusterSums(Protocol):
    """The sums of the owners of some labels, over the records of these labels (`engines.cluster_sums`)."""

    @property
    def features(self) -> np.ndarray:
        """The features of these records: what the rows below are."""

    @property
    def cross(self) -> csc_matrix:
        """Σ_j x_j for each label."""

    @property
    def total(self) -> Tensor:
        """Σ_u Σ_j x_j/m, where m counts these labels alone: each record once."""

    @property
    def records(self) -> float: ...

    def solve(self, right: Tensor, penalty: float, steps: int, support: Tensor | None = None) -> Tensor: ...


SumsOf = Callable[[np.ndarray], ClusterSums]
"""From labels to the sums of their owners."""


@dataclass(frozen=True)
class Told:
    """The values that the server sends to a party for all losses but hinge: only the server knows all labels."""

    label_weights: np.ndarray  # a_u for each label
    shares: np.ndarray  # 1/m for each instance (`set_size` exact) or for each label (expected)


@dataclass(frozen=True)
class Method(MethodFacts, ABC):
    """A federated method, built once per training.

    `knowledge` holds what the server learned from the label collection, for methods that use it. In a deployment each
    party builds the method for its own labels and gets the values in `told` from the server instead.

    A method declares its facts as class attributes (`MethodFacts`) and overrides the functions that differ.
    """

    settings: Experiment
    label_count: int
    knowledge: LabelKnowledge | None = None
    told: Told | None = None

    @property
    def parts(self) -> list[slice]:
        """The columns of W for each sub-model. The loss of a pair is the sum of its losses in all sub-models."""
        dim = self.settings.encoder.dim
        return [slice(part * dim, (part + 1) * dim) for part in range(self.sub_models(self.settings))]

    @cached_property
    def options(self) -> Settings | None:
        """The method's own settings from [options], as an instance of its `Options` class."""
        return parsed_options(self.settings)

    def start(self, generator: torch.Generator) -> Tensor:
        """Return W before round 1: one unit row per label, spread out. With a `shard`, only this process's rows."""
        if self.settings.embeddings.start == "by-frequency":
            dim, dtype = self.settings.encoder.dim, getattr(torch, self.settings.dtype)
            return frequency_rows(torch.from_numpy(self._counts), dim, generator, dtype)
        return self.spread_out(self.label_count, generator)

    def spread_out(self, rows: int, generator: torch.Generator) -> Tensor:
        draw = STARTS[self.settings.embeddings.start]
        shard_rows = None if self.shard is None else self.shard.own
        return draw(rows, self.settings.encoder.dim, generator, getattr(torch, self.settings.dtype), shard_rows)

    @cached_property
    def shard(self) -> Shard | None:
        """Which process holds which rows of W. None if every process holds all of them."""
        return shard_of(self.settings, self.label_count)

    def loss(self, scores: Tensor, lengths: Tensor, labels: Tensor, instances: Tensor) -> Tensor:
        """Return the loss of each positive pair, from its score s = g(x)ᵀw_u and length ‖g(x)‖² in one sub-model.

        hinge: max(0, margin - s)²; the paper's margin is 0.9. square: ‖g‖²/m - 2 a_u s + a_u². If W is orthonormal, the
        sum of the square loss over the m owners of an instance is the centralised loss ‖g - Σ a_u w_u‖²
        (docs/exact.md). The other losses also have a part over all labels (`set_loss`).
        """
        match self.settings.client.loss:
            case "hinge":
                return (self.settings.client.margin - scores).clamp(min=0).square()
            case "square":
                weight = self.label_weights[labels]
                return self.share(labels, instances) * lengths - 2 * weight * scores + weight.square()
            case "logistic" | "squared-hinge" | "softmax" | "softmax-per-label" as name:
                return SET_LOSSES[name].own(scores, self.share(labels, instances))
            case other:
                assert_never(other)  # mypy finds a loss that is in the settings and not here

    @cached_property
    def set_loss(self) -> SetLoss | None:
        """The loss over all labels, of which each owner computes a part. None if the loss needs the own label only."""
        return SET_LOSSES.get(self.settings.client.loss)

    def rest_share(self, labels: Tensor, instances: Tensor) -> Tensor:
        """Return the share of the part over all labels that the owner of each pair counts."""
        share = self.share(labels, instances)
        counts_pairs = self.set_loss is not None and self.set_loss.counts_pairs
        return torch.ones_like(share) if counts_pairs else share

    def compared_labels(self, round_number: int) -> tuple[Tensor | None, float]:
        """Return the labels over which the part over all labels is summed in a round, and the factor of that sum: all
        of them (None), or a random sample, whose sum times the factor has the right mean."""
        size, labels = self.settings.client.negatives, self.label_count
        if size is None or size >= labels:
            return None, 1.0
        generator = torch_generator(self.settings.seed, "negatives", round_number)
        drawn = torch.randperm(labels, generator=generator)[:size].sort().values
        return drawn.to(self.settings.device), labels / size

    @cached_property
    def has_axes(self) -> bool:
        """Whether each label has an axis of its own, so that scores are the encoder's outputs in another order."""
        embeddings, enough = self.settings.embeddings, self.settings.encoder.dim >= self.label_count
        fixed = not self.trains_rows and self.sub_models(self.settings) == 1
        return fixed and embeddings.start == "by-frequency" and enough and not embeddings.secret

    @property
    def secret_dim(self) -> int | None:
        """D, if rows are secret: then clients multiply their sums by their rows, which the server does not have."""
        return self.settings.encoder.dim if self.settings.embeddings.secret else None

    def share(self, labels: Tensor, instances: Tensor) -> Tensor:
        """Return the share 1/m of ‖g(x)‖² that one owner counts. `client.set_size` says how well m is known."""
        set_size = self.settings.client.set_size
        if set_size == "exact":
            return self._per_instance[instances]
        return self._per_label[labels] if set_size == "expected" else torch.ones_like(self.label_weights)[labels]

    @cached_property
    def label_weights(self) -> Tensor:
        """a_u for each label. Rare labels get larger weights, so that their scores can compete with common labels."""
        client = self.settings.client
        if self.told is not None:
            return self._tensor(self.told.label_weights)
        if client.label_power == 0 or client.loss != "square":
            return self._tensor(np.ones(self.label_count))
        return self._tensor(weights_of(self._counts, client.label_power, client.label_offset))

    @property
    def rarest(self) -> float:
        """n of the rarest label, whose weight is 1."""
        return float(np.maximum(self._counts, 1).min())

    def tell(self, labels: np.ndarray, set_sizes: np.ndarray | None) -> Told:
        """Return the values that a party with these labels needs. `set_sizes`: m of its instances, if exact."""
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
        """1 / E[m | u], where E[m | u] = 1 + Σ_v c_uv / n_u is the mean size of the label sets that contain u. Without
        c, the mean size of all label sets takes its place."""
        if self.told is not None:
            return self._tensor(self.told.shares)
        pairs = self._known_counts
        if isinstance(pairs, LabelCounts):
            assert pairs.mean_set_size is not None
            return self._tensor(np.full(self.label_count, 1 / pairs.mean_set_size))
        return self._tensor(1 / (1 + np.asarray(pairs.together.sum(axis=1)).ravel() / np.maximum(pairs.counts, 1)))

    @property
    def _counts(self) -> np.ndarray:
        return self._known_counts.counts.astype(np.float64)

    @property
    def _known_counts(self) -> Correlations | LabelCounts:
        assert self.knowledge is not None and not isinstance(self.knowledge.labels, PrivateLabelSets)
        return self.knowledge.labels

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(dtype=getattr(torch, self.settings.dtype), device=self.settings.device)

    def weights(self, counts: Tensor, labels: np.ndarray) -> Tensor:
        """Return the weight p_u of each participating client, from its number of instances and its label. Sum: 1."""
        match self.settings.server.weights:
            case "uniform":
                return torch.full_like(counts, 1 / len(counts))
            case "samples":
                return counts / counts.sum()
            case other:
                assert_never(other)

    def summed_rows(self, model: Model) -> Tensor:
        """For methods of one round: the rows that the clients' sums Σ x are multiplied with."""
        return model.W

    def fill(self, model: Model, sums: ClientSums) -> float:
        """For methods of one round: solve, write the solution into the model, and return its loss."""
        solution, loss = self.solve(sums)
        (theta,) = model.theta
        theta.copy_(solution)
        return loss

    def solve(self, sums: ClientSums) -> tuple[Tensor, float]:
        """For methods of one round: return θ, from the clients' sums, and its loss."""
        theta = sums.solve(self.settings.server.ridge)
        return theta, sums.objective(theta, self.settings.server.ridge)

    def fill_clusters(self, model: Model, sums_of: SumsOf) -> float:
        """For methods with `sums_by_cluster`: the same, from sums that it asks for itself."""
        raise NotImplementedError

    @abstractmethod
    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return W after the server's own step. `labels` are the rows that participating clients may have changed.

        The step may change W in place."""

    # --- for server steps ---

    def from_labels(self, build: Callable[[Correlations], Regularizer]) -> Objective:
        """Build a regularizer from the label correlations. If each step is private, wrap it in a PrivateGradient."""
        if self.knowledge is None or isinstance(self.knowledge.labels, LabelCounts):
            raise ConfigError(
                f"{self.settings.method} uses label correlations: declare uses_labels = True in its class"
            )
        labels = self.knowledge.labels
        return PrivateGradient.of(labels, build) if isinstance(labels, PrivateLabelSets) else build(labels)

    def nearest_pairs(
        self, potential: Potential | None, W: Tensor, labels: Tensor, generator: torch.Generator
    ) -> NearestPairs:
        """Return the pairs of each class with its K nearest, configured by [regularizer], without correlations."""
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
        """Return how to search for neighbours. Private steps search exactly: norms and gradient need the same ones."""
        return "exact" if self.settings.privacy.mechanism == "gradients" else search

    def _candidates(self, W: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw the classes that this round searches for neighbours. None means all classes."""
        size = self.settings.regularizer.candidates
        if size is None or size >= self.label_count:
            return None
        return torch.randperm(self.label_count, generator=generator)[:size].sort().values.to(W.device)


def weights_of(counts: np.ndarray, power: float, offset: float) -> np.ndarray:
    """Return a_u of each label: (n_u + offset)^-power, as a share of the largest."""
    weight = (np.maximum(counts, 1) + offset) ** -power
    return np.asarray(weight / weight.max())


def descend(W: Tensor, regularizer: Objective, rate: float, budget: int = DEFAULT_BUDGET) -> Tensor:
    """Take one projected gradient step in place: unit(W - rate·∇reg(W)). A sparse gradient changes only its own rows.

    Memory: the gradient, plus `budget` bytes for a block of rows."""
    _, gradient = regularizer.value_and_gradient(W)
    rows, slope = (gradient.indices()[0], gradient.values()) if gradient.is_sparse else (None, gradient)
    for block in blocks(len(slope), 4 * W.shape[1] * W.element_size(), budget):
        block_rows = block if rows is None else rows[block]
        W[block_rows] = unit_rows(W[block_rows] - rate * slope[block])
    return W
