"""Label sets under the paper's mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scipy.sparse import csr_matrix

from fedalc.config.schema import PrivacySettings
from fedalc.core import distributed
from fedalc.core.seeds import derived_seed
from fedalc.labels.correlations import Correlations
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.labels.privacy.gradients import PrivateGradient
from fedalc.methods.regularizers import Regularizer


@dataclass
class PrivateLabelSets:
    """Label sets that are only ever looked at through clipped and noised gradients. Counts how often that was."""

    label_sets: csr_matrix
    settings: PrivacySettings
    noise_multiplier: float
    seed: int | None  # None: noise from the system's randomness
    looks: int = 0

    def gradient_of(self, build: Callable[[Correlations], Regularizer]) -> PrivateGradient:
        """What stands, for one step, for the regulariser that `build` makes of correlations."""
        self.looks += 1
        s = self.settings
        generator = (
            SecureGenerator(distributed.shared_key())
            if self.seed is None
            else SecureGenerator.seeded(derived_seed(self.seed, "look", self.looks))
        )
        return PrivateGradient(build, self.label_sets, s.clip, self.noise_multiplier, s.sample_rate, generator)
