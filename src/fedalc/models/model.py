"""The model: an encoder with its parameters θ, and the class embeddings W."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.models.encoders import Encoder
from fedalc.models.sharding import Shard


@dataclass
class Model:
    """θ (inside the encoder) and W, one row per label; with a `shard`, the rows that this process has."""

    encoder: Encoder
    W: Tensor
    shard: Shard | None = None

    @property
    def theta(self) -> list[Tensor]:
        return list(self.encoder.parameters())

    @property
    def values(self) -> list[Tensor]:
        """All that rounds change."""
        return [*self.theta, *self.statistics, self.W]

    @property
    def copies(self) -> list[Tensor]:
        """All that every process has, of several."""
        return self.values if self.shard is None else self.values[:-1]

    def own_rows(self, of_labels: Tensor) -> Tensor:
        """What is here, of something with a row for every label."""
        return of_labels if self.shard is None else of_labels[self.shard.own]

    def all_rows(self, W: Tensor) -> Tensor:
        """All rows of what is here: in the first process, where several have a part each."""
        return W if self.shard is None else self.shard.whole(W)

    def gathered(self) -> Model:
        """With all of W, in main memory, in the first process; the others stay as they are."""
        if self.shard is None:
            return self
        W = self.all_rows(self.W)
        return Model(copy.deepcopy(self.encoder).cpu(), W) if len(W) == self.shard.rows else self

    @property
    def buffers(self) -> list[Tensor]:
        """The encoder's numbers that are not learnt: statistics, observed or frozen."""
        return [buffer for buffer in self.encoder.buffers() if buffer.is_floating_point()]

    @property
    def statistics(self) -> list[Tensor]:
        """What clients observe rather than learn: the running averages of batch normalisation, unless frozen."""
        observing = [part for part in self.encoder.modules() if isinstance(part, Encoder) and part.statistics]
        return [buffer for part in observing for buffer in part.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def model_with(like: Model, values: list[Tensor]) -> Model:
    """A model of its own with these values, in the order of the other's, and on its device."""
    model = Model(copy.deepcopy(like.encoder), like.W.clone(), like.shard)
    for kept, value in zip(model.values, values, strict=True):
        kept.copy_(value)
    return model
