"""Several encoders as one: they see the same instance, and their outputs stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedalc.encoders.sparse import SparseRows
from fedalc.encoders.text import Dropout, TextEncoder


class SideBySide(nn.Module):
    def __init__(self, encoders: Sequence[TextEncoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        for place, encoder in enumerate(encoders):
            encoder.first_layer = place * len(encoder.layers)  # so that each drops units of its own

    def forward(self, rows: SparseRows, dropout: Dropout | None = None) -> Tensor:
        return torch.cat([encoder(rows, dropout) for encoder in self.encoders], dim=1)
