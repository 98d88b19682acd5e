"""FedALC-fixed, the paper's second method: the server learns W from label correlations once, before round 1."""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.labels.correlations import Correlations
from fedalc.methods.base import descend
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.methods.regularizers import AllPairs, NearestPairs, Regularizer, Sum, Together, attract, repel_within


class FedALCFixed(FedAvgFixed):
    """The server learns W from the correlations before round 1, freezes it and sends it once.

    It takes T' steps on Σ_{u≠v} [ α (c_uv/N) d² + β σ_uv max(0, ν - d)² ]. With `mined`, the second term sums over the
    K nearest classes v of u only.
    """

    help = "class embeddings from label correlations, learned once before round 1"
    use_when = "To reproduce the paper; helps with many labels and the paper's own settings"
    family = "paper"
    colour = "#56B4E9"  # sky blue
    uses_labels = True
    shards_rows = False
    sections = ("fixed",)
    compares_classes = "fixed"

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        return settings.fixed.steps

    def start(self, generator: torch.Generator) -> Tensor:
        settings, budget = self.settings.fixed, self.settings.memory_budget
        potential = repel_within(settings.margin)

        def weighted(correlations: Correlations) -> Regularizer:
            together = Together(attract, correlations, budget)
            apart: AllPairs | NearestPairs = AllPairs(potential, correlations, settings.weighting, budget)
            if settings.form == "mined":
                search = self.searching(settings.search)
                apart = NearestPairs(
                    settings.neighbours, potential, correlations, settings.weighting, search=search, budget=budget
                )
            return Sum(((settings.alpha, together), (settings.beta, apart)))

        W = super().start(generator).to(self.settings.device)
        for _ in range(settings.steps):
            W = descend(W, self.from_labels(weighted), settings.rate, budget)
        return W
