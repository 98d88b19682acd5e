"""Noise for sums over records, which the parties add in shares (derivation: docs/private-model.md).

Everything is a whole number: a record's part of a sum, rounded towards zero, and the noise, which is discrete Gaussian.
So parties can add their shares before they mask a sum, and no rounding happens after the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedalc.errors import ConfigError
from fedalc.labels.privacy.accounting import MOST_EPSILON_OF_COUNTS, noise_multiplier
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.labels.privacy.tables import SMOOTH, gaussian_noise

UNIT = 2**12
"""Sums are multiples of 1/UNIT; sums of products of two features multiples of 1/UNIT²."""
GAP = 4.0
"""A discrete Gaussian protects like a continuous one whose variance is smaller by GAP² (the lemma)."""


def sums_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the noise, as a multiple of the sensitivity, that makes this many noised sums (ε, δ)-private together.

    What the sampler and the lemma add to δ is below 10⁻³⁰, far less than the precision of the multiplier.
    """
    return noise_multiplier(min(epsilon, MOST_EPSILON_OF_COUNTS), delta, releases)


@dataclass(frozen=True)
class NoiseSize:
    """How much noise there is, for those who only read the sums."""

    multiplier: float

    def deviation(self, sensitivity: float, part: float) -> float:
        """Return σ of a sum that gets this part of the budget. The squares of all sums' parts add up to 1/z²."""
        return self.multiplier * sensitivity / math.sqrt(part)


@dataclass(frozen=True)
class NoiseShares(NoiseSize):
    """`parties` add noise, each a share. If at most `dropouts` of them fail to, what is left suffices. `drawn`: how
    many of the shares are drawn here; None for all, 1 at a party."""

    parties: int
    dropouts: int
    generator: SecureGenerator
    drawn: int | None = None

    def share(self, deviation: float) -> float:
        """Return σ of one party's share, in the units of the sum."""
        each = math.sqrt((deviation**2 + GAP**2) / (self.parties - self.dropouts))
        if each < SMOOTH:
            raise ConfigError(
                f"a share of noise of {each:.2g} units is too small to add up to a discrete Gaussian; use fewer "
                "parties, or a smaller ε",
                "privacy.noise_parties",
            )
        return each

    def noised(self, sums: np.ndarray, deviation: float) -> np.ndarray:
        """Return whole numbers with the noise of the parties here added, one share after the other."""
        each, noised = self.share(deviation), sums.astype(np.int64)
        for _ in range(self.parties if self.drawn is None else self.drawn):
            noised += gaussian_noise(each, self.generator, sums.size).reshape(sums.shape)
        return noised

    def noised_symmetric(self, sums: np.ndarray, deviation: float) -> np.ndarray:
        """Like `noised`, for a symmetric matrix: σ on the diagonal and σ/√2 beside it.

        With these, x xᵀ moves the matrix by ‖x‖² in units of σ: an entry beside the diagonal is there twice.
        """
        noised = sums.astype(np.int64)
        diagonal = np.arange(len(sums))
        noised[diagonal, diagonal] = self.noised(sums.diagonal(), deviation)
        for row in range(len(sums) - 1):
            noised[row, row + 1 :] = self.noised(sums[row, row + 1 :], deviation / math.sqrt(2))
            noised[row + 1 :, row] = noised[row, row + 1 :]
        return noised
