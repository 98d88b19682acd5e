"""The model: an encoder with its parameters θ, and the class embeddings W."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.encoders import Encoder, ImageEncoder


@dataclass
class Model:
    """θ (inside the encoder) and W, one row per label."""

    encoder: Encoder
    W: Tensor

    @property
    def theta(self) -> list[Tensor]:
        return list(self.encoder.parameters())

    @property
    def statistics(self) -> list[Tensor]:
        """What clients observe rather than learn: the running averages of batch normalisation, unless frozen."""
        observing = [part for part in self.encoder.modules() if isinstance(part, ImageEncoder) and part.statistics]
        return [buffer for part in observing for buffer in part.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def model_with(like: Model, theta: list[Tensor], W: Tensor, statistics: list[Tensor] | None = None) -> Model:
    """A model of its own with these weights, on the device of the other; with its statistics, where none are given."""
    model = Model(copy.deepcopy(like.encoder), W.to(like.W, copy=True))
    values = theta + (like.statistics if statistics is None else statistics)
    for kept, value in zip(model.theta + model.statistics, values, strict=True):
        kept.copy_(value)
    return model
