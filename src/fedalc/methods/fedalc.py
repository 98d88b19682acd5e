"""FedALC (An et al., "Federated Learning with Only Positive Labels by Exploring Label Correlations").

The server pushes two labels apart the more, the more often one occurs without the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.labels.correlations import Correlations
from fedalc.labels.privacy import PrivateLabelSets
from fedalc.methods.base import Method, descend
from fedalc.methods.fedavg import FedAvgFixed
from fedalc.methods.fedaws import FedAwS
from fedalc.methods.private_gradient import PrivateGradient
from fedalc.methods.regularizers import (
    AllPairs,
    NearestPairs,
    Objective,
    Regularizer,
    Sum,
    Together,
    attract,
    repel_within,
)


class LearnsFromLabels(Method):
    """A method whose server steps on W by label correlations."""

    def from_labels(self, build: Callable[[Correlations], Regularizer]) -> Objective:
        """What `build` makes of the correlations, or what stands for it when each step is private."""
        assert self.knowledge is not None
        labels = self.knowledge.labels
        return PrivateGradient.of(labels, build) if isinstance(labels, PrivateLabelSets) else build(labels)


class FedALC(LearnsFromLabels, FedAwS):
    """FedAwS with a weight per pair: Σ_u Σ_v σ_uv max(0, ν - d)², σ_uv = (n_u - c_uv) / N, or as `weighting` says.

    `mined`: v among the K nearest of u, ν fixed or adaptive. `full`: all v ≠ u.
    """

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        return settings.rounds

    def regularizer(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Objective:
        settings = self.settings.regularizer
        potential = None if settings.margin == "adaptive" else repel_within(settings.margin)
        if settings.form == "mined":
            nearest = self.nearest_pairs(potential, W, labels, generator)
            return self.from_labels(lambda known: replace(nearest, correlations=known, weighting=settings.weighting))
        assert potential is not None  # refused by the settings' validation
        budget = self.settings.memory_budget
        return self.from_labels(lambda known: AllPairs(potential, known, settings.weighting, budget))


class FedALCFixed(LearnsFromLabels, FedAvgFixed):
    """W is learnt from the correlations before round 1, then frozen: it travels once.

    T' steps on Σ_{u≠v} [ α (c_uv/N) d² + β σ_uv max(0, ν - d)² ]; with `mined`, the second over the K nearest v of u.
    """

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        return settings.fixed.steps

    def start(self, generator: torch.Generator) -> Tensor:
        settings, budget = self.settings.fixed, self.settings.memory_budget
        potential = repel_within(settings.margin)

        def build(known: Correlations) -> Regularizer:
            together = Together(attract, known, budget)
            apart: AllPairs | NearestPairs = AllPairs(potential, known, settings.weighting, budget)
            if settings.form == "mined":
                how = self.searching(settings.search)
                apart = NearestPairs(
                    settings.neighbours, potential, known, settings.weighting, search=how, budget=budget
                )
            return Sum(((settings.alpha, together), (settings.beta, apart)))

        W = super().start(generator).to(self.settings.device)
        for _ in range(settings.steps):
            W = descend(W, self.from_labels(build), settings.rate, budget)
        return W
