"""The model: an encoder with its parameters θ, and the class embeddings W."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.encoders import Encoder


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
        """What clients observe rather than learn: the running averages of batch normalisation. Mostly none."""
        return [buffer for buffer in self.encoder.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def model_with(like: Model, theta: list[Tensor], W: Tensor) -> Model:
    """A model of its own with these weights, on the device of the other."""
    encoder = copy.deepcopy(like.encoder)
    for parameter, value in zip(encoder.parameters(), theta, strict=True):
        parameter.copy_(value)
    return Model(encoder, W.to(like.W, copy=True))
