"""Label sets under the paper's mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.sparse import csr_matrix

from fedalc.config import PrivacySettings
from fedalc.correlations import Correlations
from fedalc.privacy.gradients import PrivateGradient
from fedalc.regularizers import Regularizer


@dataclass
class PrivateLabelSets:
    """Label sets that are only ever looked at through clipped and noised gradients. Counts how often that was."""

    label_sets: csr_matrix
    settings: PrivacySettings
    noise_multiplier: float
    looks: int = 0

    def gradient_of(self, build: Callable[[Correlations], Regularizer], generator: torch.Generator) -> PrivateGradient:
        """What stands, for one step, for the regulariser that `build` makes of correlations."""
        self.looks += 1
        s = self.settings
        if s.noise == "system":
            generator = torch.Generator()
            generator.seed()  # from the system's randomness
        return PrivateGradient(build, self.label_sets, s.clip, self.noise_multiplier, s.sample_rate, generator)
