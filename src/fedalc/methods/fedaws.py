"""FedAwS (Yu et al., "Federated Learning with Only Positive Labels", ICML 2020): the server spreads the rows out."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedalc.methods.base import Method, descend
from fedalc.methods.regularizers import AllPairs, NearestPairs, Objective, Potential, repel, repel_within


class FedAwS(Method):
    """W ← unit(W - λη·∇spreadout(W)) after each round, all labels alike.

    `mined`: Σ_u Σ_{v ∈ N_K(u)} -d². `full`: Σ_u Σ_{v≠u} max(0, ν - d)².
    """

    trains_rows: ClassVar[bool] = True

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        settings = self.settings.regularizer
        rate = settings.lambda_ * settings.rate
        return descend(W, self.regularizer(W, labels, generator), rate, self.settings.memory_budget)

    def regularizer(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Objective:
        settings = self.settings.regularizer
        if settings.form == "mined":
            return self.nearest_pairs(repel, W, labels, generator)
        assert settings.margin != "adaptive"  # refused by the settings' validation
        return AllPairs(repel_within(settings.margin), budget=self.settings.memory_budget)

    def nearest_pairs(
        self, potential: Potential | None, W: Tensor, labels: Tensor, generator: torch.Generator
    ) -> NearestPairs:
        """As the settings want them found, without correlations."""
        settings = self.settings.regularizer
        return NearestPairs(
            settings.neighbours,
            potential,
            candidates=self.candidates(W, generator),
            rows=labels if settings.rows == "participants" else None,
            search=self.searching(settings.search),
            budget=self.settings.memory_budget,
            shard=self.shard,
        )

    def candidates(self, W: Tensor, generator: torch.Generator) -> Tensor | None:
        """The classes among which neighbours are sought in this round: all, or a fresh sample."""
        size = self.settings.regularizer.candidates
        if size is None or size >= self.label_count:
            return None
        return torch.randperm(self.label_count, generator=generator)[:size].sort().values.to(W.device)
