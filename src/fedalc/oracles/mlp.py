"""A network with one hidden layer, centralised: Adam on shuffled minibatches of all records with all their labels.

The twin of `fedalc-exact` with the preset `mlp`. It shares no code with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Generator, Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from fedalc.config.experiment import Experiment
from fedalc.core.saved_parts import numbers
from fedalc.core.seeds import torch_generator
from fedalc.data.dataset import Dataset, Split
from fedalc.oracles.base import Follow, Oracle, Scores

LOSSES: dict[str, Callable[..., Tensor]] = {"square": mse_loss, "logistic": binary_cross_entropy_with_logits}


@dataclass(frozen=True)
class MLP(Oracle):
    """Scores are relu(xᵀA + a) B + b."""

    A: Tensor  # features × hidden
    a: Tensor
    B: Tensor  # hidden × labels
    b: Tensor

    kind = "mlp"
    help = "a network with one hidden layer: Adam on minibatches, square or logistic loss"
    use_when = "To see what federated training loses: the twin of fedalc-exact with preset mlp"
    colour = "#00B5B8"  # turquoise
    sections = ("mlp",)
    choice = "epochs"

    @staticmethod
    def candidates(settings: Experiment) -> tuple[float | None, ...]:
        """Return the numbers of epochs. One training passes through them all."""
        last = settings.mlp.epochs
        return tuple(range(1, last + 1)) if settings.selection.validation else (last,)

    @staticmethod
    def steps(settings: Experiment, instances: int, labels: int, candidates: int) -> int:
        return candidates

    @staticmethod
    def memory(settings: Experiment, data: Dataset) -> float:
        model = settings.mlp.hidden * (data.feature_count + data.label_count + 2)
        batch = settings.mlp.batch_size * (data.feature_count + settings.mlp.hidden + data.label_count)
        return 4 * (6 * model + 4 * batch)

    @classmethod
    def fits(
        cls, settings: Experiment, train: Split, candidates: tuple[float | None, ...], follow: Follow
    ) -> Iterator[tuple[float | None, Oracle]]:
        chosen, generator = settings.mlp, torch_generator(settings.seed, "mlp")
        layers = _start(train.features.shape[1], chosen.hidden, train.labels.shape[1], generator)
        layers = [layer.to(getattr(torch, settings.dtype)).requires_grad_() for layer in layers]
        optimizer = torch.optim.AdamW(layers, lr=chosen.learning_rate, weight_decay=chosen.weight_decay)
        for epoch in range(1, int(max(number for number in candidates if number is not None)) + 1):
            for records in torch.randperm(len(train), generator=generator).split(chosen.batch_size):
                x, y = (_dense(matrix, records.numpy(), layers[0]) for matrix in (train.features, train.labels))
                A, a, B, b = layers
                h = torch.relu(_dropped(x, chosen.input_dropout, generator) @ A + a)
                scores = _dropped(h, chosen.dropout, generator) @ B + b
                optimizer.zero_grad()
                (LOSSES[chosen.loss](scores, y, reduction="sum") / len(records)).backward()
                optimizer.step()
                follow.check()
            if epoch in candidates:
                follow.done(f"epoch {epoch}")
                yield epoch, cls(*(layer.detach().clone() for layer in layers))

    @property
    def feature_count(self) -> int:
        return int(self.A.shape[0])

    def scores(self, features: csr_matrix) -> Scores:
        A, a, B, b = (layer.numpy() for layer in (self.A, self.a, self.B, self.b))

        def of(rows: slice, labels: slice) -> np.ndarray:
            return np.maximum(np.asarray(features[rows] @ A) + a, 0) @ B[:, labels] + b[labels]

        return of

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"A": self.A, "a": self.a, "B": self.B, "b": self.b}, {}

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> MLP:
        A, a, B, b = (numbers(tensors, name, 2 if name.isupper() else 1) for name in "AaBb")
        if (a.shape, B.shape, len(facts["labels"])) != (A.shape[1:], (len(a), len(b)), len(b)):
            raise ValueError(f"layers of {tuple(A.shape)} and {tuple(B.shape)}, {len(a)} and {len(b)} biases")
        return cls(A, a, B, b)


def _start(features: int, hidden: int, labels: int, generator: Generator) -> list[Tensor]:
    """Draw weights whose outputs have about the size of their inputs, which have length 1; biases start at zero."""
    A = torch.randn(features, hidden, generator=generator) / math.sqrt(hidden)
    B = torch.randn(hidden, labels, generator=generator) * math.sqrt(2 / hidden)
    return [A, torch.zeros(hidden), B, torch.zeros(labels)]


def _dense(matrix: csr_matrix, rows: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(matrix[rows].toarray()).to(like.dtype)


def _dropped(h: Tensor, rate: float, generator: Generator) -> Tensor:
    return h * (torch.rand(h.shape, generator=generator) >= rate) / (1 - rate) if rate else h
