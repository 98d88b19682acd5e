"""FedALC (An et al., "Federated Learning with Only Positive Labels by Exploring Label Correlations").

The server pushes two labels apart the more, the more often one occurs without the other.
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
    """FedAwS with a weight per pair: Σ_u Σ_v σ_uv max(0, ν - d)², σ_uv = (n_u - c_uv) / N, or as `weighting` says.

    `mined`: v among the K nearest of u, ν fixed or adaptive. `full`: all v ≠ u.
    """

    help = "the server pushes labels apart that rarely occur together"
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
            assert potential is not None  # an adaptive margin needs mined pairs: refused by the settings' validation
            return AllPairs(potential, correlations, settings.weighting, budget)

        return descend(W, self.from_labels(weighted), settings.lambda_ * settings.rate, budget)
