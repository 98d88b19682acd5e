"""FedALC (An et al., "Federated Learning with Only Positive Labels by Exploring Label Correlations").

The server pushes two labels apart. The push is stronger the more often one label occurs without the other.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.labels.correlations import Correlations
from fedalc.methods.base import Method, descend
from fedalc.methods.regularizers import AllPairs, Regularizer, repel_within


class FedALC(Method):
    """FedAwS with a weight per pair: Σ_u Σ_v σ_uv max(0, ν - d)². `weighting` selects σ_uv, default (n_u - c_uv) / N.

    `mined`: v is one of the K nearest classes of u, and ν is fixed or adaptive. `full`: all v ≠ u.
    """

    help = "the server pushes labels apart that rarely occur together"
    use_when = "To reproduce the paper; class embeddings are trained"
    family = "paper"
    colour = "#0072B2"  # blue
    trains_rows = True
    uses_labels = True
    shards_rows = True
    sections = ("regularizer",)
    compares_classes = "regularizer"

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        return settings.rounds

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        settings, budget = self.settings.regularizer, self.settings.memory_budget
        potential = None if settings.margin == "adaptive" else repel_within(settings.margin)
        mined = self.nearest_pairs(potential, W, labels, generator) if settings.form == "mined" else None

        def weighted(correlations: Correlations) -> Regularizer:
            if mined is not None:
                return replace(mined, correlations=correlations, weighting=settings.weighting)
            assert potential is not None  # the settings' validation refuses an adaptive margin with all pairs
            return AllPairs(potential, correlations, settings.weighting, budget)

        return descend(W, self.from_labels(weighted), settings.lambda_ * settings.rate, budget)
