"""FedALC (An et al., "Federated Learning with Only Positive Labels by Exploring Label Correlations").

The server pushes two labels apart the more, the more often one occurs without the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedalc.config import Experiment
from fedalc.correlations import Correlations
from fedalc.methods.base import Method, descend
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.methods.fedaws import FedAwS
from fedalc.privacy import PrivateLabelSets
from fedalc.regularizers import AllPairs, NearestPairs, Objective, Regularizer, Sum, Together, attract, repel_within


class LearnsFromLabels(Method):
    """A method whose server steps on W by label correlations."""

    def from_labels(self, build: Callable[[Correlations], Regularizer]) -> Objective:
        """What `build` makes of the correlations, or what stands for it when each step is private."""
        assert self.knowledge is not None
        labels = self.knowledge.labels
        return labels.gradient_of(build) if isinstance(labels, PrivateLabelSets) else build(labels)


class FedALC(LearnsFromLabels, FedAwS):
    """FedAwS with a weight per pair: Σ_u Σ_v σ_uv max(0, ν - d)², σ_uv = (n_u - c_uv) / N, or as `weighting` says.

    `mined`: v among the K nearest of u, ν fixed or adaptive. `full`: all v ≠ u.
    """

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        return settings.rounds

    def regularizer(self, W: Tensor, generator: torch.Generator) -> Objective:
        settings = self.settings.regularizer
        potential = None if settings.margin == "adaptive" else repel_within(settings.margin)
        candidates = self.candidates(W, generator)

        def build(known: Correlations) -> Regularizer:
            if settings.form == "mined":
                return NearestPairs(settings.neighbours, potential, known, settings.weighting, candidates)
            assert potential is not None  # refused by the settings' validation
            return AllPairs(potential, known, settings.weighting)

        return self.from_labels(build)


class FedALCFixed(LearnsFromLabels, FedAvgFixed):
    """W is learnt from the correlations before round 1, then frozen: it travels once.

    T' steps on Σ_{u≠v} [ α (c_uv/N) d² + β σ_uv max(0, ν - d)² ].
    """

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        return settings.fixed.steps

    def start(self, generator: torch.Generator) -> Tensor:
        settings = self.settings.fixed

        def build(known: Correlations) -> Regularizer:
            together = Together(attract, known)
            apart = AllPairs(repel_within(settings.margin), known, settings.weighting)
            return Sum(((settings.alpha, together), (settings.beta, apart)))

        W = super().start(generator).to(self.settings.device)
        for _ in range(settings.steps):
            W = descend(W, self.from_labels(build), settings.rate)
        return W
