"""Label sets for the paper's mechanism, `gradients`."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.sparse import csr_matrix

from fedalc.config.schema import PrivacySettings
from fedalc.core import distributed
from fedalc.core.seeds import derived_seed
from fedalc.labels.privacy.generator import SecureGenerator


@dataclass
class PrivateLabelSets:
    """Label sets that methods only access through clipped and noised gradients. Counts the accesses (looks)."""

    label_sets: csr_matrix
    settings: PrivacySettings
    noise_multiplier: float
    seed: int | None  # None: noise from the system's randomness
    looks: int = 0

    def look(self) -> SecureGenerator:
        """Count another look, and return the generator to draw its noise from."""
        self.looks += 1
        if self.seed is None:
            return SecureGenerator(distributed.shared_key())
        return SecureGenerator.seeded(derived_seed(self.seed, "look", self.looks))
