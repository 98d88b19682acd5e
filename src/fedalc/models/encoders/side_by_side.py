"""Several encoders as one: all see the same instance, and their outputs are concatenated."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedalc.models.encoders.base import Batch, Encoder
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.image_rows import PictureRows


class SideBySide(Encoder):
    def __init__(self, encoders: Sequence[Encoder]) -> None:
        nn.Module.__init__(self)
        self.encoders = nn.ModuleList(encoders)
        self.feature_count = encoders[0].feature_count
        self.takes_some_features = encoders[0].takes_some_features
        self.drawn = sum(encoder.drawn for encoder in encoders)
        for number, encoder in enumerate(encoders):
            encoder.first_layer = number * encoder.dropout_layers  # so that each drops different units

    def for_features(self, features: Tensor) -> SideBySide:
        part = copy.copy(self)
        encoders = [encoder.for_features(features) for encoder in self.encoders if isinstance(encoder, Encoder)]
        part._modules = {"encoders": nn.ModuleList(encoders)}
        return part

    def rows_for(self, features: Tensor) -> Tensor:
        first = self.encoders[0]
        assert isinstance(first, Encoder)
        return first.rows_for(features)

    def forward(self, rows: Batch, chance: Chance | None = None) -> Tensor:
        # Pictures are read and augmented once for all encoders.
        shared = {"pixels": rows.pixels(chance)} if isinstance(rows, PictureRows) else {}
        return torch.cat([encoder(rows, chance, **shared) for encoder in self.encoders], dim=1)
