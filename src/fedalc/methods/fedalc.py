"""FedALC (An et al., "Federated Learning with Only Positive Labels by Exploring Label Correlations").

The server pushes two labels apart the more, the more often one occurs without the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.methods.base import descend
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.methods.fedaws import FedAwS
from fedalc.regularizers import AllPairs, NearestPairs, Regularizer, Sum, Together, attract, repel_within


class FedALC(FedAwS):
    """FedAwS with a weight per pair: Σ_u Σ_v σ_uv max(0, ν - d)², σ_uv = (n_u - c_uv) / N, or as `weighting` says.

    `mined`: v among the K nearest of u, ν fixed or adaptive. `full`: all v ≠ u.
    """

    def regularizer(self, W: Tensor, generator: torch.Generator) -> Regularizer:
        settings = self.settings.regularizer
        potential = None if settings.margin == "adaptive" else repel_within(settings.margin)
        if settings.form == "mined":
            candidates = self.candidates(W, generator)
            return NearestPairs(settings.neighbours, potential, self.correlations, settings.weighting, candidates)
        assert potential is not None  # refused by the settings' validation
        return AllPairs(potential, self.correlations, settings.weighting)


class FedALCFixed(FedAvgFixed):
    """W is learnt from the correlations before round 1, then frozen: it travels once.

    T' steps on Σ_{u≠v} [ α (c_uv/N) d² + β σ_uv max(0, ν - d)² ].
    """

    def start(self, generator: torch.Generator) -> Tensor:
        settings = self.settings.fixed
        together = Together(attract, self.correlations)
        apart = AllPairs(repel_within(settings.margin), self.correlations, settings.weighting)
        W = super().start(generator).to(self.settings.device)
        objective = Sum(((settings.alpha, together), (settings.beta, apart)))
        for _ in range(settings.steps):
            W = descend(W, objective, settings.rate)
        return W
