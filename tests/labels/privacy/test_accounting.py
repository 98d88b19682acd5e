"""Noise and ε against the analytic Gaussian mechanism and closed forms."""

from __future__ import annotations

import builtins
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.privacy import (
    Release,
    coordinates,
    counts_epsilon,
    counts_multiplier,
    epsilon_of,
    label_threshold,
    noise_multiplier,
    sensitivity,
    spent_epsilon,
)

pytest.importorskip("dp_accounting")
DELTA = 1e-5


def analytic_delta(epsilon: float, z: float) -> float:
    """Balle & Wang 2018, Theorem 8, with Δ/σ = 1/z."""
    return norm.cdf(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * norm.cdf(-1 / (2 * z) - epsilon * z)


def analytic_multiplier(epsilon: float, delta: float) -> float:
    return brentq(lambda z: analytic_delta(epsilon, z) - delta, 0.05, 1000)


@pytest.mark.few(1)
@pytest.mark.parametrize("epsilon", [1.0, 0.1, 8.0])
def test_one_release_is_the_analytic_gaussian_mechanism(epsilon: float) -> None:
    z = noise_multiplier(epsilon, DELTA, 1)
    assert z == pytest.approx(analytic_multiplier(epsilon, DELTA), rel=2e-3)
    assert analytic_delta(epsilon, z) <= DELTA


@pytest.mark.few(1)
@pytest.mark.parametrize(("z", "steps"), [(10.0, 100), (3.0, 7)])
def test_releases_compose_as_one_with_less_noise(z: float, steps: int) -> None:
    """k Gaussians of z equal one of z/√k, because their signals add up along one line."""
    together = spent_epsilon(z, DELTA, steps)
    assert together == pytest.approx(spent_epsilon(z / math.sqrt(steps), DELTA, 1), rel=1e-6)
    assert analytic_delta(together, z / math.sqrt(steps)) == pytest.approx(DELTA, rel=1e-2)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("epsilon", "steps", "rate"), [(1.0, 1, 1.0), (0.5, 300, 1.0), (2.0, 1000, 0.1), (1.0, 200, 0.1), (30.0, 50, 0.2)]
)
def test_the_noise_keeps_the_promise_and_no_more(epsilon: float, steps: int, rate: float) -> None:
    z = noise_multiplier(epsilon, DELTA, steps, rate)
    assert spent_epsilon(z, DELTA, steps, rate) <= epsilon
    assert spent_epsilon(0.99 * z, DELTA, steps, rate) > epsilon


@pytest.mark.long
@pytest.mark.parametrize(("z", "rate"), [(1.5, 0.3), (0.8, 0.1)])
def test_one_release_of_a_sample_by_hand(z: float, rate: float) -> None:
    """δ = ∫ max(0, P - e^ε Q), with Q = N(0, z²) and P = (1 - q) N(0, z²) + q N(1, z²): P outweighs e^ε Q from x on."""
    epsilon = 0.4
    x = z**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
    delta = (1 - rate - math.exp(epsilon)) * norm.sf(x / z) + rate * norm.sf((x - 1) / z)
    assert spent_epsilon(z, delta, 1, rate) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.long
def test_more_of_anything_costs_more() -> None:
    base = spent_epsilon(2.0, DELTA, 100, 0.1)
    assert spent_epsilon(3.0, DELTA, 100, 0.1) < base
    assert spent_epsilon(2.0, 1e-4, 100, 0.1) < base
    assert spent_epsilon(2.0, DELTA, 50, 0.1) < base
    assert spent_epsilon(2.0, DELTA, 100, 0.05) < base
    assert spent_epsilon(2.0, DELTA, 100) > base


def test_little_noise_is_no_hazard_and_none_is_no_privacy() -> None:
    assert spent_epsilon(0.01, DELTA, 1) == pytest.approx(5000, rel=0.1)  # about 1/(2z²)
    assert spent_epsilon(0.0, DELTA, 1) == math.inf
    assert spent_epsilon(1e-5, DELTA, 1) == math.inf  # where the accounting would overflow


def delta_of_counts(epsilon: float, sigma: float, times: int) -> float:
    """Return δ(ε) of `times` whole numbers with discrete Gaussian noise, each moved by 1, over all outcomes.

    The losses (x + 1/2)/σ² depend only on the sum of the noise, so its distribution suffices.
    """
    x = np.arange(-int(12 * sigma) - 3, int(12 * sigma) + 4)
    one = np.exp(-(x**2) / (2 * sigma**2))
    one /= one.sum()
    sums = np.ones(1)
    for _ in range(times):
        sums = np.convolve(sums, one)
    loss = (np.arange(len(sums)) + times * x[0] + times / 2) / sigma**2
    return float((sums * np.maximum(0, 1 - np.exp(np.minimum(epsilon - loss, 0)))).sum())


@pytest.mark.parametrize(
    ("epsilon", "m", "releases"), [(0.5, 2, 1), pytest.param(1.0, 3, 2, marks=pytest.mark.long), (8.0, 3, 1)]
)
def test_counts_keep_the_promise_by_brute_force(epsilon: float, m: int, releases: int) -> None:
    z = counts_multiplier(epsilon, DELTA, releases, m)
    spent = counts_epsilon(z, DELTA, releases, m)
    assert spent <= epsilon
    sigma, times = z * sensitivity(m), releases * coordinates(m)
    assert delta_of_counts(spent, sigma, times) == pytest.approx(DELTA, rel=1e-3)
    assert delta_of_counts(epsilon, sigma, times) <= DELTA * (1 + 1e-6)
    if sigma > 1:
        assert delta_of_counts(epsilon, 0.99 * sigma, times) > DELTA  # no noise is wasted


def test_brute_force_by_a_second_hand() -> None:
    """The same δ over all outcomes of two numbers, without using their sum, and in both directions."""
    sigma, epsilon = 1.3, 0.7
    x = np.arange(-18, 19)
    one = np.exp(-(x**2) / (2 * sigma**2))
    one /= one.sum()
    here, there = one[1:-1], one[:-2]
    P, Q = np.multiply.outer(here, here), np.multiply.outer(there, there)
    for first, second in ((P, Q), (Q, P)):
        literal = np.maximum(0, first - math.exp(epsilon) * second).sum()
        assert literal == pytest.approx(delta_of_counts(epsilon, sigma, 2), rel=1e-9)


@pytest.mark.long
def test_more_than_the_sampler_can_tell_is_not_asked_of_it() -> None:
    z = counts_multiplier(1000.0, DELTA, 1, 10)
    assert z == counts_multiplier(50.0, DELTA, 1, 10)
    assert 45 < counts_epsilon(z, DELTA, 1, 10) <= 50


@pytest.mark.long
def test_releases_of_different_kinds_compose() -> None:
    counts, steps = Release("discrete", 20.0, 7), Release("gaussian", 10.0, 4)
    together = epsilon_of([counts, steps], DELTA)
    each = epsilon_of([counts], DELTA), epsilon_of([steps], DELTA)
    assert max(each) < together < sum(each)
    # With that much noise the discrete Gaussian is as the continuous one, and these add up.
    assert together == pytest.approx(spent_epsilon(1 / math.sqrt(7 / 400 + 4 / 100), DELTA, 1), rel=1e-3)
    assert epsilon_of([counts] * 3, DELTA) == epsilon_of([Release("discrete", 20.0, 21)], DELTA)
    assert epsilon_of([], DELTA) == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("others", [0, 1, 4])
@pytest.mark.parametrize("too_low", [0, 2])
def test_a_published_list_of_labels_keeps_the_promise_in_every_outcome(others: int, too_low: int) -> None:
    """Sum δ over all outcomes of N, and of n if the label is shown, for one instance and `others` with that label.

    A threshold that is too low fails.
    """
    sigma, delta = 2.0, 0.02
    release = Release("discrete", sigma, 2, selection=delta / 2)
    epsilon = epsilon_of([release], delta)
    least = label_threshold(1, sigma / sensitivity(1), delta / 2) - too_low
    x = np.arange(-60, 61)
    weight = np.exp(-(x**2) / (2 * sigma**2))
    noise = weight / weight.sum()

    def world(count: int) -> np.ndarray:
        """Return the probability of each pair of values; the last column is for no label."""
        n = np.roll(noise, count) * (x >= least) if count else np.zeros(len(x))
        return np.outer(np.roll(noise, count), np.append(n, 1 - n.sum()))

    present, absent = world(others + 1), world(others)
    needed = max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((present, absent), (absent, present)))
    assert (needed <= delta) == (too_low == 0 or others > 0)


def test_a_selection_takes_its_part_of_delta() -> None:
    counts = Release("discrete", 20.0, 7)
    selected = replace(counts, selection=DELTA / 2)
    assert epsilon_of([selected], DELTA) == pytest.approx(epsilon_of([counts], DELTA / 2), abs=1e-5)
    assert epsilon_of([selected], DELTA) > epsilon_of([counts], DELTA / 2)
    assert epsilon_of([selected] * 2, DELTA) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        (0.0, DELTA, 1, 1.0),
        (math.inf, DELTA, 1, 1.0),
        (1.0, 0.0, 1, 1.0),
        (1.0, 1.0, 1, 1.0),
        (1.0, DELTA, 0, 1.0),
        (1.0, DELTA, 1, 0.0),
        (1.0, DELTA, 1, 1.5),
    ],
)
def test_senseless_settings_are_refused(wrong: tuple[float, float, int, float]) -> None:
    with pytest.raises(ConfigError):
        noise_multiplier(*wrong)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FedalcError, match=r'pip install "fedalc\[privacy\]"'):
        noise_multiplier(1.2345, DELTA, 1)  # not asked before, so not remembered
