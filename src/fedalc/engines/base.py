"""What an engine is: it carries a round's work to the clients and brings back their averaged change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedalc.core.sparse_products import WeightedBags
from fedalc.engines.aggregation.lengths import Lengths
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance
from fedalc.models.model import Model


@dataclass(frozen=True)
class RoundResult:
    """`change` is Σ p_u (θ - θ_u), or what another rule makes of the parties' (`server.aggregation`), one tensor per
    parameter; `rows` are those of W̃ that changed hands, of `labels`.

    A change of few rows of a matrix may be a sparse tensor of these rows.
    """

    change: list[Tensor]
    labels: Tensor  # each once, ascending; none where rows are not trained
    rows: Tensor
    loss: float  # Σ p_u R_u, as met during the clients' first epoch
    traffic: Ledger  # of this round
    heard: bool = True  # whether anybody answered; without, the round changes nothing
    statistics: list[Tensor] = field(default_factory=list)  # Σ p_u of the clients' running averages, if any

    def put_into(self, model: Model) -> Tensor:
        """W̃, in the place of the model's W: other labels' rows stay as they were."""
        if model.shard is None:
            model.W[self.labels] = self.rows
        else:
            model.shard.put(model.W, self.labels, self.rows)
        return model.W


def mean_rows(labels: Tensor, copies: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of the clients, ascending, and the row of each: the client's copy. Where several clients have one
    label, the mean of their copies, weighted by p as θ is, and brought back to length 1."""
    held, place = labels.unique(return_inverse=True)
    order = place.argsort(stable=True)
    if len(held) == len(labels):
        return held, copies[order]
    starts = torch.cat([place.new_zeros(1), place.bincount().cumsum(0)])
    return held, unit_rows(WeightedBags(order, starts, weights[order]) @ copies)


def no_rows(W: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows are not trained."""
    return torch.empty(0, dtype=torch.int64, device=W.device), W[:0]


@dataclass(frozen=True)
class Sums:
    """What clients with a linear encoder send for a square loss: their sums, already added up.

    The objective is tr(θᵀ G θ) - 2 tr(θᵀ B) + constant, G = Σ x xᵀ/m, B = Σ_u a_u (Σ_j x_j) w_uᵀ.
    """

    gram: Tensor  # G, features × features
    cross: Tensor  # B, features × D
    constant: float  # Σ over pairs of a_u²
    pairs: int
    traffic: Ledger

    def solve(self, ridge: float) -> Tensor:
        """θ of (G + ridge·I) θ = B, in double precision."""
        gram = self.gram.to(torch.float64, copy=True)
        gram.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed:
            raise ConfigError("the equations have no single solution: raise it above 0", "server.ridge")
        return torch.cholesky_solve(self.cross.double(), factor).to(self.cross)

    def objective(self, theta: Tensor, ridge: float) -> float:
        """The mean loss of a pair there, penalty included."""
        quadratic = (theta * (self.gram @ theta)).sum() - 2 * (theta * self.cross).sum() + ridge * theta.square().sum()
        return (quadratic.item() + self.constant) / self.pairs


class Engine(Protocol):
    """Runs the clients of one round on the model as it stands, and leaves the model as it was."""

    @property
    def clients_keep_rows(self) -> bool:
        """Whether a row that never changes travels only once."""

    @property
    def lengths(self) -> Lengths | None:
        """What is known of the lengths of parties' changes, where the next round depends on it."""

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult: ...

    def sums(self, W: Tensor, participants: np.ndarray) -> Sums:
        """For methods of one round: what is needed to solve for θ, given the class embeddings."""
