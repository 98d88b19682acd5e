"""Compute the noise that an (ε, δ) needs, and the ε that given noise spends.

There are two kinds of releases: Gaussian noise on real numbers, possibly of a Poisson sample (mechanism `gradients`),
and discrete Gaussian noise on whole numbers (mechanism `counts`). Both use the privacy loss distributions of Google's
dp-accounting. These are tight up to a discretisation on the safe side, and can be composed with each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from fedalc.errors import ConfigError, FedalcError

MOST_EPSILON = 1000.0
MOST_LOSS = 1e6  # an ε of about half of it: no protection, and the accountant's numbers would overflow
LEAST_DELTA, MOST_DELTA = 1e-15, 0.1  # the accountant's precision ends below; no meaningful privacy above
PRECISION = 1e-3  # relative precision of the noise multiplier
MOST_EPSILON_OF_COUNTS = 50.0
"""Counts get at least the noise of this ε, which is nearly always 0, so that `SAMPLER_DELTA` holds."""
SAMPLER_DELTA = 1e-30
"""An upper bound of what the integer sampler adds to δ: (1 + e^ε) times the distance of its draws from the exact
distribution. That is at most 2⁻²⁵⁶ for each entry of a table, with at most 2²³ entries and 2⁴⁰ draws, and ε ≤ 50."""


@dataclass(frozen=True)
class Release:
    """`times` independent noised numbers. Removing one instance's label set changes each by at most 1.

    `noise` is σ. Gaussian releases may be of a sample that includes an instance with probability `sample_rate`.
    `selection` is for a release that also publishes the list of labels: an upper bound of the probability that the list
    shows a label that only this instance has. It counts once for all `times`.
    """

    kind: Literal["gaussian", "discrete"]
    noise: float
    times: int
    sample_rate: float = 1.0
    selection: float = 0.0


def coordinates(labels_per_instance: int) -> int:
    """Return how many of N, n and c count an instance: N once, m of the n_u, m(m-1)/2 of the c_uv (unordered)."""
    m = labels_per_instance
    return 1 + m + m * (m - 1) // 2


def sensitivity(labels_per_instance: int) -> float:
    """Return how far (N, n, c) can move, in Euclidean length, when one instance's label set is removed.

    Each count that includes the instance moves by one. With fewer labels the instance is in fewer counts.
    """
    return math.sqrt(coordinates(labels_per_instance))


@cache
def noise_multiplier(epsilon: float, delta: float, steps: int, sample_rate: float = 1.0) -> float:
    """Return the smallest noise, as a multiple of the sensitivity, that makes `steps` releases (ε, δ)-private.

    The result is at most 0.1% above the smallest, and never below it.
    """
    from scipy.optimize import brentq  # slow to load

    _check_epsilon(epsilon)
    _check(delta, steps, sample_rate)
    # Zero-concentrated privacy gives a multiplier that suffices without sampling (Bun & Steinke 2016, Prop. 1.3):
    # ε = ρ + 2√(ρ ln 1/δ), ρ = steps / (2 z²). Search downwards from there, where the distributions are small.
    root = math.sqrt(math.log(1 / delta))
    enough = math.sqrt(steps / 2) / (math.sqrt(root**2 + epsilon) - root)
    while spent_epsilon(enough, delta, steps, sample_rate) > epsilon:
        enough *= 1.1  # only if the discretisation costs more than the slack of the bound
    too_little = enough / 2
    while spent_epsilon(too_little, delta, steps, sample_rate) <= epsilon:
        enough, too_little = too_little, too_little / 2

    def excess(log_z: float) -> float:  # nearly linear on logarithmic scales, so few evaluations find its root
        return math.log(max(spent_epsilon(math.exp(log_z), delta, steps, sample_rate), 1e-12) / epsilon)

    z = math.exp(brentq(excess, math.log(too_little), math.log(enough), xtol=PRECISION / 4))
    while spent_epsilon(z, delta, steps, sample_rate) > epsilon:
        z *= 1 + PRECISION / 2
    return z


@cache
def spent_epsilon(noise_multiplier: float, delta: float, steps: int, sample_rate: float = 1.0) -> float:
    """Return the ε that `steps` releases with this Gaussian noise spend at δ."""
    _check(delta, steps, sample_rate)
    return epsilon_of([Release("gaussian", noise_multiplier, steps, sample_rate)], delta)


@cache
def counts_multiplier(epsilon: float, delta: float, releases: int, labels_per_instance: int) -> float:
    """Return the noise of counts, as a multiple of their sensitivity, that makes `releases` of them (ε, δ)-private.

    σ is this times the sensitivity. For σ above 1 it equals that of the Gaussian mechanism up to the last digits.
    """
    _check_epsilon(epsilon)
    epsilon = min(epsilon, MOST_EPSILON_OF_COUNTS)
    z = noise_multiplier(epsilon, delta, releases)
    while (spent := counts_epsilon(z, delta, releases, labels_per_instance)) > epsilon:
        z *= max(1 + PRECISION / 2, (spent / epsilon) ** 0.5)  # ε decreases as 1/z to 1/z²
    return z


@cache
def counts_epsilon(noise_multiplier: float, delta: float, releases: int, labels_per_instance: int) -> float:
    """Return the ε that `releases` of N, n and c with discrete Gaussian noise spend at δ."""
    _check(delta, releases)
    return epsilon_of([counts_release(noise_multiplier, releases, labels_per_instance)], delta)


def counts_release(noise_multiplier: float, releases: int, labels_per_instance: int) -> Release:
    noise = noise_multiplier * sensitivity(labels_per_instance)
    return Release("discrete", noise, releases * coordinates(labels_per_instance))


def epsilon_of(releases: Iterable[Release], delta: float) -> float:
    """Return the ε of all releases together, at δ.

    A selection of probability p takes p of δ and adds -ln(1 - p) to ε: without the instance its labels are never
    shown, and with it they are not shown with probability 1 - p.
    """
    releases = list(releases)
    delta -= sum(release.selection for release in releases)
    if delta <= 0:
        return math.inf
    more = -sum(math.log1p(-release.selection) for release in releases)
    together = Counter[Release]()
    for release in releases:
        together[Release(release.kind, release.noise, 1, release.sample_rate)] += release.times
    if any(release.noise <= 0 for release in together):
        return math.inf
    if not together:
        return 0.0
    discrete = any(release.kind == "discrete" for release in together)
    if discrete:
        delta -= SAMPLER_DELTA
    # Little noise gives losses of about 1/z², and without sampling all steps are one of z/√steps: use a coarser grid.
    loss = sum((1 if r.sample_rate < 1 else times) / r.noise**2 for r, times in together.items())
    if loss > MOST_LOSS:
        return math.inf
    enough = 2 if discrete else 10  # above this ε the finer grid takes long and changes nothing that matters
    epsilon = math.inf
    for grid in (1e-3, 1e-4):
        grid *= max(1.0, loss / 100)
        distributions = [_loss_distribution(release, times, grid) for release, times in together.items()]
        total = distributions[0]
        for further in distributions[1:]:
            total = total.compose(further)
        epsilon = float(total.get_epsilon_for_delta(delta))
        if epsilon > enough:
            break
    return epsilon + more


def _loss_distribution(release: Release, times: int, grid: float) -> Any:
    try:
        from dp_accounting import NeighboringRelation  # type: ignore
        from dp_accounting.pld import privacy_loss_distribution as pld  # type: ignore
    except ImportError:
        raise FedalcError('differential privacy needs dp-accounting: pip install "fedalc[privacy]"') from None
    if release.kind == "discrete":
        one = pld.from_discrete_gaussian_mechanism(
            release.noise, value_discretization_interval=grid, use_connect_dots=True
        )
        return one.self_compose(times)
    sampled = release.sample_rate < 1
    one = pld.from_gaussian_mechanism(
        release.noise if sampled else release.noise / math.sqrt(times),
        value_discretization_interval=grid,
        sampling_prob=release.sample_rate,
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
    )
    return one.self_compose(times) if sampled else one


def _check_epsilon(epsilon: float) -> None:
    if not 0 < epsilon <= MOST_EPSILON:
        raise ConfigError(
            f"must be above 0 and at most {MOST_EPSILON:g}, not {epsilon}: a larger ε protects nothing", "epsilon"
        )


def _check(delta: float, steps: int, sample_rate: float = 1.0) -> None:
    if not LEAST_DELTA <= delta <= MOST_DELTA:
        raise ConfigError(f"must be between {LEAST_DELTA:g} and {MOST_DELTA:g}, not {delta}", "delta")
    if steps < 1:
        raise ConfigError(f"must be at least 1, not {steps}", "steps")
    if not 0 < sample_rate <= 1:
        raise ConfigError(f"must be in (0, 1], not {sample_rate}", "sample_rate")
