"""FedAwS (Yu et al., "Federated Learning with Only Positive Labels", ICML 2020): the server spreads the rows out."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedalc.methods.base import Method, descend
from fedalc.regularizers import AllPairs, NearestPairs, Objective, repel, repel_within


class FedAwS(Method):
    """W ← unit(W - λη·∇spreadout(W)) after each round, all labels alike.

    `mined`: Σ_u Σ_{v ∈ N_K(u)} -d². `full`: Σ_u Σ_{v≠u} max(0, ν - d)².
    """

    trains_rows: ClassVar[bool] = True

    def server_step(self, W: Tensor, generator: torch.Generator) -> Tensor:
        settings = self.settings.regularizer
        return descend(W, self.regularizer(W, generator), settings.lambda_ * settings.rate)

    def regularizer(self, W: Tensor, generator: torch.Generator) -> Objective:
        settings = self.settings.regularizer
        if settings.form == "mined":
            return NearestPairs(settings.neighbours, repel, candidates=self.candidates(W, generator))
        assert settings.margin != "adaptive"  # refused by the settings' validation
        return AllPairs(repel_within(settings.margin))

    def candidates(self, W: Tensor, generator: torch.Generator) -> Tensor | None:
        """The classes among which neighbours are sought in this round: all, or a fresh sample."""
        size = self.settings.regularizer.candidates
        if size is None or size >= len(W):
            return None
        return torch.randperm(len(W), generator=generator)[:size].sort().values.to(W.device)
