"""What a method is: the client's loss, the clients' weights, how W starts, and the server's step on W.

A method knows nothing of where it runs. An engine asks it for these four things and has no `if method == …`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedalc.config import Experiment
from fedalc.geometry import orthogonal_rows, random_rows, unit_rows
from fedalc.regularizers import Objective


@dataclass(frozen=True)
class Method(ABC):
    """Built once per training."""

    settings: Experiment
    label_count: int

    #: Do owners train their rows? Then rows travel with θ in every round; otherwise once, before round 1.
    trains_rows: ClassVar[bool]

    def start(self, generator: torch.Generator) -> Tensor:
        """W before round 1: spread out, one unit row per label."""
        rows, dim = self.label_count, self.settings.encoder.dim
        draw = orthogonal_rows if self.settings.embeddings.start == "orthogonal" else random_rows
        return draw(rows, dim, generator, getattr(torch, self.settings.dtype))

    def loss(self, scores: Tensor) -> Tensor:
        """A positive pair's loss from its score g(x)ᵀw: max(0, margin - score)², the margin 0.9 in the paper."""
        return (self.settings.client.margin - scores).clamp(min=0).square()

    def weights(self, counts: Tensor) -> Tensor:
        """p_u of the clients taking part, from how many instances each holds. They sum to 1."""
        if self.settings.server.weights == "uniform":
            return torch.full_like(counts, 1 / len(counts))
        return counts / counts.sum()

    @abstractmethod
    def server_step(self, W: Tensor, generator: torch.Generator) -> Tensor:
        """W after the server's own step, from the rows as the clients left them."""


def descend(W: Tensor, regularizer: Objective, rate: float) -> Tensor:
    """One projected gradient step: unit(W - rate·∇reg(W))."""
    _, gradient = regularizer.value_and_gradient(W)
    return unit_rows(W - rate * gradient)
