"""Encoders of sparse text features: the paper's `mlp`, and `linear`, which is one matrix. Output: unit rows, or raw."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedalc.config.schema import EncoderSettings
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.sparse_rows import SparseRows


class TextEncoder(nn.Module):
    """Sparse features → `embedding` numbers → layers with ReLU between them → output, scaled to length 1 or raw."""

    def __init__(
        self,
        feature_count: int,
        widths: list[int],
        start: str,
        generator: torch.Generator,
        unit: bool = True,
        shortcut: bool = False,
        mixed: bool = False,
    ) -> None:
        super().__init__()
        self.unit = unit
        self.mixed = mixed
        self.first_layer = 0  # the number its first layer has in a round's dropout
        self.embedding = nn.Parameter(torch.empty(feature_count, widths[0]))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self._initialise(start, generator)
        self.shortcut = nn.Parameter(torch.zeros(feature_count, widths[-1])) if shortcut else None
        if shortcut:
            last = self.layers[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    @property
    def feature_count(self) -> int:
        return int(self.embedding.shape[0])

    @property
    def dropout_layers(self) -> int:
        return len(self.layers)

    def for_features(self, features: Tensor) -> TextEncoder:
        """The same encoder for instances with these features only: their rows of its matrices are copies, which learn
        apart; its layers are the same ones."""
        part = copy.copy(self)
        part._parameters = {name: self._rows(matrix, features) for name, matrix in self._parameters.items()}
        return part

    @staticmethod
    def _rows(matrix: nn.Parameter | None, features: Tensor) -> nn.Parameter | None:
        return None if matrix is None else nn.Parameter(matrix.detach()[features])

    def forward(self, rows: SparseRows, chance: Chance | None = None) -> Tensor:
        h = rows @ self.embedding
        with torch.autocast(h.device.type, torch.bfloat16, enabled=self.mixed):
            for depth, layer in enumerate(self.layers):
                if depth:
                    h = torch.relu(h)
                if chance:
                    h = chance.drop(h, rows.keys, self.first_layer + depth)
                h = layer(h)
        h = h.to(self.embedding.dtype)
        if self.shortcut is not None:
            h = h + rows @ self.shortcut
        return unit_rows(h) if self.unit else h

    @torch.no_grad()
    def _initialise(self, start: str, generator: torch.Generator) -> None:
        """`he`: instances start in different directions. `framework`: torch's own default; where features are averaged
        (`mean`) its biases drown the small inputs, and all instances start in nearly one direction."""
        if start == "zero":
            self.embedding.zero_()
        elif start == "he":
            self.embedding.normal_(0, 1 / math.sqrt(self.embedding.shape[1]), generator=generator)
        else:
            self.embedding.normal_(0, 1, generator=generator)  # torch's default for an embedding layer
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            fan_in = layer.weight.shape[1]
            if start == "he":
                layer.weight.normal_(0, math.sqrt(2 / fan_in), generator=generator)
                layer.bias.zero_()
            else:
                bound = 1 / math.sqrt(fan_in)  # torch's default for a linear layer
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)


def text_encoder(feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> TextEncoder:
    """Features → 512 → 1024 → 1024 → 512 (`mlp`, the paper's sizes by default), or features → 512 (`linear`)."""
    widths = [settings.dim] if settings.name == "linear" else [settings.embedding, *settings.hidden, settings.dim]
    return TextEncoder(
        feature_count,
        widths,
        settings.start,
        generator,
        unit=settings.output == "unit",
        shortcut=settings.shortcut,
        mixed=settings.precision == "mixed",
    )
