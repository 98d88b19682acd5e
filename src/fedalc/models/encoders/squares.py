"""A linear map and its squares: a score W·g(x) is then a quadratic form with a person's own weights (fedalc-plda)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedalc.config.facts import OF_RANDOM_FEATURES
from fedalc.config.schema import EncoderSettings
from fedalc.models.encoders.chance import Chance
from fedalc.models.encoders.sparse_rows import SparseRows
from fedalc.models.encoders.text import Linear


class Squares(Linear):
    """z = [x, 1] θ, k numbers, then [z, z², 1] → D = 2k + 1.

    `between` has the variance of each number of z between persons; within a person it is 1. It does not change the
    output: it is what a new person's row is computed with.
    """

    help = "one matrix for dense features, and the squares of its output: for fedalc-plda"
    linear = False
    for_parties = True
    ignores = ("norm", "embedding", "hidden", "start", *OF_RANDOM_FEATURES)
    only = {**Linear.only, "constant": (1.0,), "output": ("raw",)}

    def __init__(self, feature_count: int, settings: EncoderSettings, generator: torch.Generator) -> None:
        super().__init__(feature_count, settings, generator)
        self.dim = settings.dim
        self.directions = slice(0, self.embedding.shape[1])
        self.between = nn.Parameter(torch.zeros(self.embedding.shape[1]))

    @staticmethod
    def widths(settings: EncoderSettings) -> list[int]:
        return [max(1, (settings.dim - 1) // 2)]

    def map(self, rows: SparseRows) -> Tensor:
        """Return z."""
        return self.design(rows) @ self.embedding

    def forward(self, rows: SparseRows, chance: Chance | None = None) -> Tensor:
        z = self.map(rows)
        return with_squares(z, z.new_ones(len(z), 1), self.dim)


def with_squares(z: Tensor, last: Tensor, dim: int) -> Tensor:
    """Return [z, z², 1], with zeros up to `dim` columns."""
    return joined(z, z.square(), last, dim)


def joined(first: Tensor, squared: Tensor, last: Tensor, dim: int) -> Tensor:
    """Return three parts side by side, the last one in the last of `dim` columns."""
    filling = first.new_zeros(len(first), dim - 2 * first.shape[1] - 1)
    return torch.cat([first, squared, filling, last], dim=1)
