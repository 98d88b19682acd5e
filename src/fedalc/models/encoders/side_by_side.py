"""Several encoders as one: they see the same instance, and their outputs stand side by side."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.image import ImageEncoder
from fedalc.models.encoders.image_rows import PictureRows
from fedalc.models.encoders.sparse_rows import SparseRows
from fedalc.models.encoders.text import TextEncoder


class SideBySide(nn.Module):
    def __init__(self, encoders: Sequence[TextEncoder | ImageEncoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self._feature_count = encoders[0].feature_count
        for place, encoder in enumerate(encoders):
            encoder.first_layer = place * encoder.dropout_layers  # so that each drops units of its own

    @property
    def feature_count(self) -> int:
        return self._feature_count

    def for_features(self, features: Tensor) -> SideBySide:
        """As that of one encoder."""
        part = copy.copy(self)
        encoders = [encoder.for_features(features) for encoder in self.encoders if isinstance(encoder, TextEncoder)]
        part._modules = {"encoders": nn.ModuleList(encoders)}
        return part

    def forward(self, rows: SparseRows | PictureRows, chance: Chance | None = None) -> Tensor:
        # Pictures are read and moved once for all.
        shared = {"pixels": rows.pixels(chance)} if isinstance(rows, PictureRows) else {}
        return torch.cat([encoder(rows, chance, **shared) for encoder in self.encoders], dim=1)
