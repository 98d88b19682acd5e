"""Encoders of sparse features: the paper's `mlp`, and `linear` (one matrix). Output: unit rows, or raw."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedalc.config.facts import OF_RANDOM_FEATURES
from fedalc.config.schema import EncoderSettings
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders.base import Encoder
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.sparse_rows import SparseRows


class TextEncoder(Encoder):
    """Sparse features → layers with ReLU between them → output, scaled to length 1 or raw."""

    ignores: ClassVar[tuple[str, ...]] = ("norm", "constant", *OF_RANDOM_FEATURES)
    takes_some_features = True
    for_parties = True
    relu_first = False  # whether ReLU follows the first matrix
    features: Tensor | None = None  # after `for_features`: the numbers of the features that it is reduced to

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        widths = self.widths(settings)
        self.unit = settings.output == "unit"
        self.mixed = settings.precision == "mixed"
        self.embedding = nn.Parameter(torch.empty(self.first_rows(feature_count, settings), widths[0]))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self._initialise(settings.start, generator)
        self.shortcut = nn.Parameter(torch.zeros(feature_count, widths[-1])) if settings.shortcut else None
        if settings.shortcut:
            last = self.layers[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

        self.feature_count = feature_count
        self.dropout_layers = len(self.layers)

    @staticmethod
    @abstractmethod
    def widths(settings: EncoderSettings) -> list[int]:
        """Return the output width of each layer, the output of the encoder last."""

    @staticmethod
    def first_rows(feature_count: int, settings: EncoderSettings) -> int:
        """Return the number of rows of the first matrix."""
        return feature_count

    @property
    def dense_layers(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def for_features(self, features: Tensor) -> TextEncoder:
        part, rows = copy.copy(self), self.rows_for(features)
        part.features = features
        part._parameters = {name: self._rows(matrix, rows) for name, matrix in self._parameters.items()}
        return part

    @staticmethod
    def _rows(matrix: nn.Parameter | None, features: Tensor) -> nn.Parameter | None:
        return None if matrix is None else nn.Parameter(matrix.detach()[features])

    def forward(self, rows: SparseRows, chance: Chance | None = None) -> Tensor:
        if chance:
            rows = chance.drop_features(rows, self.features, self.first_layer)
        h = self.design(rows) @ self.embedding
        with torch.autocast(h.device.type, torch.bfloat16, enabled=self.mixed):
            for depth, layer in enumerate(self.layers):
                if depth or self.relu_first:
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
        """Draw the start. `he`: instances start in different directions. `framework`: torch's default. With averaged
        features (`mean`) its biases outweigh the small inputs, and all instances start in nearly one direction."""
        if self.embedding.is_meta:
            return  # nothing to draw, and torch would load its compiler for it
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


class MLP(TextEncoder):
    """Features → 512 → 1024 → 1024 → 512: the paper's sizes are the defaults. Without its embedding layer, `hidden` are
    all layers but the last, and the first of them has no bias."""

    help = "the paper's network for sparse features: an embedding layer and three dense ones"

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.relu_first = settings.embedding is None

    @staticmethod
    def widths(settings: EncoderSettings) -> list[int]:
        embedding = () if settings.embedding is None else (settings.embedding,)
        return [*embedding, *settings.hidden, settings.dim]


class Linear(TextEncoder):
    """Features → 512: one matrix. With `constant`, [x, constant]: the last row of θ is an intercept, which a penalty
    shrinks like the other rows."""

    help = "one matrix for sparse features; as good as the mlp, and faster"
    linear = True
    ignores: ClassVar[tuple[str, ...]] = ("norm", "embedding", "hidden", *OF_RANDOM_FEATURES)
    only: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "dropout": (0.0,),
        "input_dropout": (0.0,),
        "shortcut": (False,),
        "precision": ("full",),
    }

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.constant = settings.constant

    @staticmethod
    def widths(settings: EncoderSettings) -> list[int]:
        return [settings.dim]

    @staticmethod
    def first_rows(feature_count: int, settings: EncoderSettings) -> int:
        return feature_count + (settings.constant > 0)

    def rows_for(self, features: Tensor) -> Tensor:
        """Return the rows of the features, and those of the columns, which every instance has."""
        columns = torch.arange(self.feature_count, self.width, device=features.device)
        return torch.cat([features, columns])

    def columns(self, rows: SparseRows) -> Sequence[Tensor]:
        if not self.constant:
            return ()
        return (torch.full((rows.keys.shape[0], 1), self.constant, dtype=rows.dtype, device=rows.keys.device),)
