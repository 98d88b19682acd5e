"""FedAwS (Yu et al., "Federated Learning with Only Positive Labels", ICML 2020): the server spreads the rows out."""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.methods.base import Method, descend
from fedalc.methods.regularizers import AllPairs, Objective, repel, repel_within


class FedAwS(Method):
    """W ← unit(W - λη·∇spreadout(W)) after each round. The server pushes all labels apart with equal weight.

    `mined`: Σ_u Σ_{v ∈ N_K(u)} -d². `full`: Σ_u Σ_{v≠u} max(0, ν - d)².
    """

    help = "the server pushes all class embeddings apart"
    use_when = "To compare with a server that knows nothing about the labels"
    colour = "#009E73"  # green
    trains_rows = True
    shards_rows = True
    sections = ("regularizer",)
    compares_classes = "regularizer"
    ignores = {"regularizer.weighting": {}, "regularizer.margin": {"regularizer.form": ("full",)}}

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        settings, budget = self.settings.regularizer, self.settings.memory_budget
        spreadout: Objective
        if settings.form == "mined":
            spreadout = self.nearest_pairs(repel, W, labels, generator)
        else:
            assert settings.margin != "adaptive"  # the settings' validation refuses it
            spreadout = AllPairs(repel_within(settings.margin), budget=budget)
        return descend(W, spreadout, settings.lambda_ * settings.rate, budget)
