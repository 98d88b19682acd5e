"""How much noise an (ε, δ) takes, and what given noise spends: Gaussian releases, possibly of a Poisson sample.

By the privacy loss distributions of Google's dp-accounting, which are tight up to a discretisation on the safe side.
"""

from __future__ import annotations

import math
from functools import cache

from scipy.optimize import brentq

from fedalc.errors import ConfigError, FedalcError

MOST_EPSILON = 1000.0
LEAST_DELTA, MOST_DELTA = 1e-15, 0.1  # below, the accountant's numbers end; above, it is no promise
PRECISION = 1e-3  # of the noise multiplier, relative


@cache
def noise_multiplier(epsilon: float, delta: float, steps: int, sample_rate: float = 1.0) -> float:
    """The smallest noise, as a multiple of the sensitivity, with which `steps` releases are (ε, δ)-private.

    Smallest within 0.1%, from above: what is returned always keeps the promise.
    """
    if not 0 < epsilon <= MOST_EPSILON:
        raise ConfigError(
            f"must be above 0 and at most {MOST_EPSILON:g}, not {epsilon}: more protects nothing", "epsilon"
        )
    _check(delta, steps, sample_rate)
    # Zero-concentrated privacy gives a multiplier that suffices without sampling (Bun & Steinke 2016, Prop. 1.3):
    # ε = ρ + 2√(ρ ln 1/δ), ρ = steps / (2 z²). From there down, where the distributions are small.
    root = math.sqrt(math.log(1 / delta))
    enough = math.sqrt(steps / 2) / (math.sqrt(root**2 + epsilon) - root)
    while spent_epsilon(enough, delta, steps, sample_rate) > epsilon:
        enough *= 1.1  # only where discretisation costs more than the bound gives away
    too_little = enough / 2
    while spent_epsilon(too_little, delta, steps, sample_rate) <= epsilon:
        enough, too_little = too_little, too_little / 2

    def excess(log_z: float) -> float:  # nearly straight on logarithmic scales, so few evaluations find its root
        return math.log(max(spent_epsilon(math.exp(log_z), delta, steps, sample_rate), 1e-12) / epsilon)

    z = math.exp(brentq(excess, math.log(too_little), math.log(enough), xtol=PRECISION / 4))
    while spent_epsilon(z, delta, steps, sample_rate) > epsilon:
        z *= 1 + PRECISION / 2
    return z


@cache
def spent_epsilon(noise_multiplier: float, delta: float, steps: int, sample_rate: float = 1.0) -> float:
    """The ε that `steps` releases with this noise amount to, at δ."""
    _check(delta, steps, sample_rate)
    if noise_multiplier <= 0:
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent  # type: ignore
        from dp_accounting.pld import PLDAccountant  # type: ignore
    except ImportError:
        raise FedalcError('differential privacy needs dp-accounting: pip install "fedalc[privacy]"') from None
    event = GaussianDpEvent(noise_multiplier)
    if sample_rate < 1:
        event = PoissonSampledDpEvent(sample_rate, event)
    # Little noise means losses of about 1/z², and without sampling all steps are one of z/√steps: a coarser grid then.
    loss = (1 if sample_rate < 1 else steps) / noise_multiplier**2
    epsilon = math.inf
    for grid in (1e-3, 1e-4):
        accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, grid * max(1.0, loss / 100))
        epsilon = float(accountant.compose(event, steps).get_epsilon(delta))
        if epsilon > 10:  # where the finer grid would change nothing that matters, and take long
            break
    return epsilon


def _check(delta: float, steps: int, sample_rate: float) -> None:
    if not LEAST_DELTA <= delta <= MOST_DELTA:
        raise ConfigError(f"must be between {LEAST_DELTA:g} and {MOST_DELTA:g}, not {delta}", "delta")
    if steps < 1:
        raise ConfigError(f"there must be at least one release, not {steps}", "steps")
    if not 0 < sample_rate <= 1:
        raise ConfigError(f"must be in (0, 1], not {sample_rate}", "sample_rate")
