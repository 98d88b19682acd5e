"""The interface of an engine: it runs the clients of a round and returns their combined change."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedalc.core.sparse_products import WeightedBags
from fedalc.engines.cluster_sums import ClusterSums
from fedalc.engines.noised_sums import NoisedSums
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance, Encoder
from fedalc.models.model import Model


@dataclass(frozen=True)
class RoundResult:
    """`change` is Σ p_u (θ - θ_u), or what another rule (`server.aggregation`) computes from the parties' changes: one
    tensor per parameter, sparse if only a few rows of a matrix changed. `rows` are the trained rows of W̃, of `labels`.
    """

    change: list[Tensor]
    labels: Tensor  # ascending, without repeats; empty if rows are not trained
    rows: Tensor
    loss: float  # Σ p_u R_u, measured during the clients' first epoch
    traffic: Ledger  # of this round
    heard: bool = True  # whether any client answered; if none did, the round changes nothing
    statistics: list[Tensor] = field(default_factory=list)  # Σ p_u of the clients' batch-norm statistics, if any
    at: list[Tensor] | None = None  # θ as the clients received it, if it was rounded on the way

    def put_into(self, model: Model) -> Tensor:
        """Write the rows into the model's W and return it as W̃. Rows of other labels stay unchanged."""
        if model.shard is None:
            model.W[self.labels] = self.rows
        else:
            model.shard.put(model.W, self.labels, self.rows)
        return model.W


def mean_rows(labels: Tensor, copies: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clients' labels, ascending, and one row for each: the client's copy. If several clients have the same
    label, its row is the mean of their copies, weighted by p like θ and scaled back to length 1."""
    distinct, index = labels.unique(return_inverse=True)
    order = index.argsort(stable=True)
    if len(distinct) == len(labels):
        return distinct, copies[order]
    starts = torch.cat([index.new_zeros(1), index.bincount().cumsum(0)])
    return distinct, unit_rows(WeightedBags(order, starts, weights[order]) @ copies)


def no_rows(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty labels and rows: the method does not train rows."""
    return torch.empty(0, dtype=torch.int64, device=W.device), W[:0]


def moved_along(encoder: Encoder, direction: Tensor) -> Encoder:
    """Return a linear encoder with the direction as its θ: its output is the change of the encoder's output."""
    along = copy.deepcopy(encoder)
    (parameter,) = along.parameters()
    with torch.no_grad():
        parameter.copy_(direction)
    parameter.grad = torch.zeros_like(parameter)
    return along


class Engine(ABC):
    """Runs the clients of a round. An engine whose next round depends on earlier ones has state for checkpoints."""

    clients_keep_rows: ClassVar[bool] = True
    """Whether clients keep a fixed row of W, so that it is sent only once."""

    @abstractmethod
    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        """Run the participants on the model, and leave the model unchanged."""

    @abstractmethod
    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        """Return the sums that determine θ, given the design and the class embeddings (methods of one round)."""

    def cluster_sums(self, labels: np.ndarray) -> ClusterSums:
        """Return the sums of the owners of these labels, over the records of these labels alone."""
        raise ConfigError("this engine does not add up sums of clusters; use fused or clients", "engine")

    def private_sums(self, model: Model) -> NoisedSums:
        """Return the sums of all owners with noise, for differential privacy of whole records."""
        raise ConfigError("this engine does not add noise to sums", "privacy.mechanism")

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        """Return H p, the second derivative of Σ p_u R_u by θ times a direction, for a linear encoder."""
        raise ConfigError("this engine does not compute Newton steps", "server.optimizer")

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the engine's state. Their names must differ from those of the training."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return the other values of the engine's state, ready for JSON."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:  # noqa: B027 - none by default
        """Restore the state from a whole checkpoint, which may be of an older version."""
