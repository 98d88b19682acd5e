"""The model: an encoder with its parameters θ, and the class embeddings W."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.models.encoders import Encoder
from fedalc.models.label_columns import LabelColumns
from fedalc.models.sharding import Shard


@dataclass
class Model:
    """θ (inside the encoder) and W with one row per label. With a `shard`, W has only the rows of this process; with
    `columns`, each label has weights of its own within its cluster."""

    encoder: Encoder
    W: Tensor
    shard: Shard | None = None
    columns: LabelColumns | None = None

    @property
    def theta(self) -> list[Tensor]:
        return list(self.encoder.parameters())

    @property
    def values(self) -> list[Tensor]:
        """All tensors that a round changes."""
        return [*self.theta, *self.statistics, self.W]

    @property
    def copies(self) -> list[Tensor]:
        """The tensors of which every process has a full copy."""
        return self.values if self.shard is None else self.values[:-1]

    def own_rows(self, of_labels: Tensor) -> Tensor:
        """Return this process's rows of a tensor that has a row for every label."""
        return of_labels if self.shard is None else of_labels[self.shard.own]

    def all_rows(self, W: Tensor) -> Tensor:
        """Return all rows of a tensor like W. If it is sharded, only the first process gets them."""
        return W if self.shard is None else self.shard.whole(W)

    def gathered(self) -> Model:
        """Return the model with all of W in main memory, in the first process. Other processes return it unchanged."""
        if self.shard is None:
            return self
        W = self.all_rows(self.W)
        return Model(copy.deepcopy(self.encoder).cpu(), W) if len(W) == self.shard.rows else self

    @property
    def buffers(self) -> list[Tensor]:
        """The encoder's numbers that are not learnt: statistics, running or frozen."""
        return [buffer for buffer in self.encoder.buffers() if buffer.is_floating_point()]

    @property
    def statistics(self) -> list[Tensor]:
        """The running averages of batch normalisation, which clients observe rather than learn, unless frozen."""
        observing = [part for part in self.encoder.modules() if isinstance(part, Encoder) and part.statistics]
        return [buffer for part in observing for buffer in part.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def model_with(like: Model, values: list[Tensor]) -> Model:
    """Return a copy of the model `like` with these `values`, on its device."""
    model = Model(copy.deepcopy(like.encoder), like.W.clone(), like.shard, like.columns)
    for target, value in zip(model.values, values, strict=True):
        target.copy_(value)
    return model
