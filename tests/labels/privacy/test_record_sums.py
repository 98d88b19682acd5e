"""Noise in shares: its distribution, what sums of shares are, and what they protect."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare, norm

from fedalc.errors import ConfigError
from fedalc.labels.privacy import NoiseShares, SecureGenerator, spent_epsilon, sums_multiplier, tables
from fedalc.labels.privacy.record_sums import GAP
from fedalc.labels.privacy.tables import SMOOTH, gaussian_noise


def probabilities(sigma: float, values: np.ndarray) -> np.ndarray:
    whole = np.arange(-int(40 * sigma) - 1, int(40 * sigma) + 2)
    return np.exp(-(values**2) / (2 * sigma**2)) / np.exp(-(whole**2) / (2 * sigma**2)).sum()


def counted(drawn: np.ndarray, most: int) -> np.ndarray:
    """How often each of -most … most was drawn; the ends include what lies beyond."""
    return np.bincount(np.clip(drawn, -most, most) + most, minlength=2 * most + 1)


@pytest.mark.parametrize("sigma", [12.0, 15.9, 16.5, 40.0, 200.0, 4000.0])
def test_wide_noise_is_a_discrete_gaussian(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small tables, so that several of them add up: one, two equal parts, two and three levels."""
    monkeypatch.setattr(tables, "WIDEST_TABLE", 16.0)
    drawn = gaussian_noise(sigma, SecureGenerator.seeded(1), 40_000)
    width = max(1, round(sigma / 6))
    cell = np.floor_divide(drawn + width // 2, width)
    most = round(2.5 * sigma / width)
    values = np.arange(-int(30 * sigma), int(30 * sigma) + 1)
    weights = probabilities(sigma, values)
    expected = np.bincount(
        np.clip(np.floor_divide(values + width // 2, width), -most, most) + most, weights, 2 * most + 1
    )
    assert chisquare(counted(cell, most), expected / expected.sum() * len(drawn)).pvalue > 1e-3


def literal_discrete_gaussian(sigma: Fraction, coin: random.Random) -> int:
    """Algorithm 3 of Canonne, Kamath & Steinke 2020, line by line, in exact arithmetic."""

    def bernoulli(p: Fraction) -> bool:
        return coin.randrange(p.denominator) < p.numerator

    def bernoulli_exp(gamma: Fraction) -> bool:  # Algorithm 1
        if gamma > 1:
            return all(bernoulli_exp(Fraction(1)) for _ in range(math.floor(gamma))) and bernoulli_exp(
                gamma - math.floor(gamma)
            )
        k = 1
        while bernoulli(gamma / k):
            k += 1
        return k % 2 == 1

    def laplace(t: int) -> int:  # Algorithm 2 with s = 1
        while True:
            u = coin.randrange(t)
            if not bernoulli_exp(Fraction(u, t)):
                continue
            v = 0
            while bernoulli_exp(Fraction(1)):
                v += 1
            x = u + t * v
            negative = bernoulli(Fraction(1, 2))
            if not (negative and x == 0):
                return -x if negative else x

    t = math.floor(sigma) + 1
    while True:
        y = laplace(t)
        if bernoulli_exp((abs(y) - sigma**2 / t) ** 2 / (2 * sigma**2)):
            return y


def test_noise_is_distributed_like_the_literal_sampler() -> None:
    coin, sigma = random.Random(3), Fraction(5, 2)
    literal = np.array([literal_discrete_gaussian(sigma, coin) for _ in range(4000)])
    ours = gaussian_noise(float(sigma), SecureGenerator.seeded(2), 40_000)
    both = np.stack([counted(literal, 6), counted(ours, 6)])
    assert chi2_contingency(both).pvalue > 1e-3
    assert chisquare(counted(literal, 6), exact_cells(2.5, 6) * 4000).pvalue > 1e-3


def exact_cells(sigma: float, most: int) -> np.ndarray:
    values = np.arange(-200, 201)
    return np.bincount(np.clip(values, -most, most) + most, probabilities(sigma, values), 2 * most + 1)


@pytest.mark.parametrize(("first", "second", "step"), [(0.8, 0.8, 1), (1.0, 1.5, 1), (0.9, 2.4, 3), (1.1, 2.0, 2)])
def test_sums_of_discrete_gaussians_obey_the_lemma(first: float, second: float, step: int) -> None:
    """step · X + Y against the discrete Gaussian of the same variance: the ratio is bounded by 5 exp(-2π² s²)."""
    sigma = math.hypot(step * first, second)
    whole = np.arange(-60, 61)
    for z in range(-4, 5):
        found = (probabilities(first, whole) * probabilities(second, z - step * whole)).sum()
        s2 = 1 / (1 / first**2 + step**2 / second**2)
        ratio = found / probabilities(sigma, np.array([z]))[0]
        assert abs(math.log(ratio)) <= 5 * math.exp(-2 * math.pi**2 * s2)


def test_the_discrete_gaussian_follows_from_a_continuous_one() -> None:
    """Drawing a whole number near a Gaussian number, with weights exp(-(z - y)²/2s²), adds s² to its variance."""
    sigma, s = 2.0, 0.8
    y = np.linspace(-30, 30, 60_001)
    near = np.exp(-((np.arange(-60, 61)[:, None] - y) ** 2) / (2 * s**2)).sum(axis=0)
    for z in range(-5, 6):
        drawn = np.trapezoid(norm.pdf(y, scale=sigma) * np.exp(-((z - y) ** 2) / (2 * s**2)) / near, y)
        ratio = drawn / probabilities(math.hypot(sigma, s), np.array([z]))[0]
        assert abs(math.log(ratio)) <= 5 * math.exp(-2 * math.pi**2 * s**2)


def test_what_is_left_after_dropouts_suffices() -> None:
    shares = NoiseShares(3.0, 10, 3, SecureGenerator.seeded(0))
    needed = shares.deviation(2.0, 0.25) * 100
    assert needed == 3.0 * 2.0 / 0.5 * 100
    assert 7 * shares.share(needed) ** 2 - GAP**2 >= needed**2 * (1 - 1e-12)
    drawn = shares.noised(np.zeros(20_000, dtype=np.int64), needed)
    assert drawn.dtype == np.int64
    assert drawn.std() == pytest.approx(needed * math.sqrt(10 / 7), rel=0.03)
    with pytest.raises(ConfigError, match="too small"):
        shares.share(SMOOTH)


def test_symmetric_noise() -> None:
    shares = NoiseShares(1.0, 1, 0, SecureGenerator.seeded(0))
    drawn = shares.noised_symmetric(np.zeros((150, 150), dtype=np.int64), 1000.0)
    assert (drawn == drawn.T).all()
    assert drawn[np.triu_indices(150, 1)].std() == pytest.approx(1000 / math.sqrt(2), rel=0.03)
    assert drawn.diagonal().std() == pytest.approx(1000, rel=0.2)


def test_multiplier_is_that_of_the_gaussian_mechanism() -> None:
    """δ(ε) = Φ(1/2z - εz) - e^ε Φ(-1/2z - εz) (Balle & Wang 2018)."""
    z = sums_multiplier(1.0, 1e-5, 1)
    delta = norm.cdf(1 / (2 * z) - z) - math.e * norm.cdf(-1 / (2 * z) - z)
    assert delta <= 1e-5
    assert z == pytest.approx(3.7306, rel=2e-3)


@pytest.mark.long
def test_multiplier_of_a_very_large_epsilon() -> None:
    assert sums_multiplier(1000.0, 1e-5, 1) == sums_multiplier(50.0, 1e-5, 1)


# Opacus 1.6.0: a = PRVAccountant(); a.history = [(noise, rate, steps)]; a.get_epsilon(delta=1e-5). The same with
# RDPAccountant.
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "prv", "rdp"),
    [
        (10.0, 1.0, 10, 1.20945, 1.30850),
        (4.0, 1.0, 1, 0.93642, 1.01255),
        pytest.param(2.0, 0.1, 100, 2.34756, 2.58057, marks=pytest.mark.long),
    ],
)
def test_accounting_agrees_with_opacus(noise: float, rate: float, steps: int, prv: float, rdp: float) -> None:
    ours = spent_epsilon(noise, 1e-5, steps, rate)
    assert ours < rdp
    assert ours == pytest.approx(prv, rel=0.02)
