"""A reader of published counts tries to tell whether one instance has two labels together.

Before, counts got `c + std · normal`, and pairs that never occur `std · isf(chance · (1 - u))`: different doubles. A
value that the second formula cannot give proved that its pair occurs.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.stats import beta, norm

from fedalc.collection.collected import Collected
from fedalc.collection.hashing import Hasher
from fedalc.collection.messages import make_messages
from fedalc.correlations import Correlations
from fedalc.privacy import Release, SecureGenerator, counts_multiplier, epsilon_of, noisy_correlations, sensitivity
from fedalc.privacy.counts import _noise_on_absent_pairs, _threshold
from fedalc.privacy.tables import discrete_gaussian
from tests.collection.test_commands import run

pytest.importorskip("dp_accounting")
EPSILON, DELTA, M = 1.0, 1e-5, 3
Z = counts_multiplier(EPSILON, DELTA, 1, M)
SIGMA = Z * sensitivity(M)


def label_sets(labels: int, together: bool) -> csr_matrix:
    """Many instances with one label each; and one more, with the labels 0 and 1, or not there."""
    alone = np.eye(labels)[np.arange(60 * labels) % labels]
    pair = np.zeros((1, labels))
    pair[0, :2] = together
    return csr_matrix(np.vstack([alone, pair]))


def continuous_release(labels: int, together: bool, random: np.random.Generator) -> float:
    """What was published of the pair (0, 1) before; 0 where nothing was."""
    chance = min(0.5, 2 / (labels - 1))
    if together:
        value = 1 + SIGMA * random.standard_normal()
        return value if value > SIGMA * norm.isf(chance) else 0.0
    return SIGMA * norm.isf(chance * (1.0 - random.random())) if random.random() < chance else 0.0


def proves_presence(value: float, labels: int) -> bool:
    """No uniform number u of 53 bits gives this value, so that it cannot be noise on a pair that never occurs."""
    chance = min(0.5, 2 / (labels - 1))
    about = round((1 - norm.sf(value / SIGMA) / chance) * 2**53)
    u = np.clip(about + np.arange(-60, 61), 0, 2**53 - 1) * 2.0**-53
    return not (SIGMA * norm.isf(chance * (1.0 - u)) == value).any()


def is_impossible(value: float, labels: int) -> bool:
    """The same test of what is published now: not a whole number, or one that no noise on an absent pair gives."""
    noise = discrete_gaussian(SIGMA)
    threshold = _threshold(noise, labels)
    return value != 0 and not (value == int(value) > threshold and noise.tail(int(value) - 1) > noise.tail(int(value)))


@pytest.mark.parametrize(("labels", "trials"), [(3, 150), (10, 150)])
def test_the_attack_works_on_what_was_published_before(labels: int, trials: int) -> None:
    """Otherwise that it finds nothing now would say nothing."""
    random = np.random.default_rng(labels)
    present = [continuous_release(labels, True, random) for _ in range(trials)]
    proved = sum(value > 0 and proves_presence(value, labels) for value in present)
    assert proved > trials / 20
    assert any(is_impossible(value, labels) for value in present)
    absent = [continuous_release(labels, False, random) for _ in range(trials)]
    assert not any(value > 0 and proves_presence(value, labels) for value in absent)  # never falsely


@pytest.mark.parametrize(("labels", "trials"), [(3, 300), (10, 300), (79, 100)])
def test_no_published_value_proves_anything(labels: int, trials: int) -> None:
    generator = SecureGenerator.seeded(labels)
    Y = label_sets(labels, together=True)
    passed = 0
    for _ in range(trials):
        known = noisy_correlations(Y, M, Z, generator)
        assert isinstance(known.instances, int)
        assert known.counts.dtype.kind == known.together.dtype.kind == "i"
        value = known.together[0, 1]
        # Where noise has made n_u smaller, the value is n_u: a whole number that is published anyway.
        assert value == min(known.counts[:2]) or not is_impossible(value, labels)
        passed += value > 0
    assert passed > 0


def violations(present: np.ndarray, absent: np.ndarray, epsilon: float, confidence: float = 1e-6) -> int:
    """Events that are surely more frequent in one world than e^ε times the other world's frequency plus δ.

    Events: every single value, at least it, and at most it.
    """
    least = min(present.min(), absent.min())
    size, trials = int(max(present.max(), absent.max()) - least) + 1, len(present)
    assert len(absent) == trials
    single = np.array([np.bincount(world - least, minlength=size) for world in (present, absent)])
    upward = single.cumsum(1)
    a = np.concatenate([single, upward, trials - upward], axis=1)
    found = 0
    for first, second in (a, a[::-1]):  # Clopper-Pearson bounds
        surely = np.where(first > 0, beta.ppf(confidence, np.maximum(first, 1), trials - first + 1), 0.0)
        at_most = np.where(second < trials, beta.ppf(1 - confidence, second + 1, np.maximum(trials - second, 1)), 1.0)
        found += int((surely > math.exp(epsilon) * at_most + DELTA).sum())
    return found


@pytest.mark.parametrize(("labels", "trials"), [(3, 300), (10, 300), (79, 100)])
def test_no_event_separates_the_worlds_beyond_epsilon_and_delta(labels: int, trials: int) -> None:
    """Of the pair's own value, of each count the instance is in, and of the likeliest tell: their sum."""
    generator = SecureGenerator.seeded(100 + labels)

    def world(together: bool) -> np.ndarray:
        Y = label_sets(labels, together)
        return np.array([view(noisy_correlations(Y, M, Z, generator)) for _ in range(trials)])

    def view(known: Correlations) -> tuple[int, ...]:
        seen = (known.instances, *known.counts[:2].tolist(), int(known.together[0, 1]))
        return (*seen, sum(seen))

    present, absent = world(True), world(False)
    for column in range(present.shape[1]):
        assert violations(present[:, column], absent[:, column], EPSILON) == 0


def published(pairs: int, together: bool, sigma: float, threshold: int) -> np.ndarray:
    """The values of many pairs at once: of each that one instance has, or that none has. 0: not published."""
    generator, noise = SecureGenerator.seeded(together), discrete_gaussian(sigma)
    if together:
        values = 1 + noise.draw(generator, pairs)
        return np.where(values > threshold, values, 0)
    values = np.zeros(pairs, dtype=np.int64)
    place, value = _noise_on_absent_pairs(np.zeros(0, dtype=np.int64), pairs, noise, threshold, generator)
    values[place] = value
    return values


@pytest.mark.parametrize("labels", [3, 10, 79])
def test_no_value_of_200000_pairs_does(labels: int) -> None:
    """Of ε = 1, one of seven counts may spend no more than it does alone: far less, and that is tested too."""
    threshold = _threshold(discrete_gaussian(SIGMA), labels)
    present, absent = (published(200_000, together, SIGMA, threshold) for together in (True, False))
    alone = epsilon_of([Release("discrete", SIGMA, 1)], DELTA)
    assert alone < EPSILON / 2
    assert violations(present, absent, EPSILON) == violations(present, absent, alone) == 0
    assert set(np.unique(absent)) <= {0, *range(threshold + 1, 200)} >= set(np.unique(present))


def test_the_test_of_events_has_teeth() -> None:
    """With an eighth of the noise it finds what is wrong."""
    present, absent = (published(200_000, together, SIGMA / 8, 0) for together in (True, False))
    assert violations(present, absent, EPSILON) > 0


def test_a_file_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fedalc collect server --epsilon 1`: all that is in the file is whole numbers, and none proves anything."""
    monkeypatch.chdir(tmp_path)
    labels = 12
    random = np.random.default_rng(0)
    Y = csr_matrix((random.random((400, labels)) < 0.2).astype(np.float32))
    names = [f"label {u}" for u in range(labels)]
    hasher = Hasher("sha256", None)
    canonical = [str(row).encode() for row in range(Y.shape[0])]
    make_messages(hasher, "record", "all", canonical, Y, names).save("all.messages")
    run("collect", "server", "all.messages", "--out", "counts", "--epsilon", "1")
    collected = Collected.load("counts")
    known = collected.correlations
    assert known.together.nnz > 0 and collected.facts["privacy"]["distribution"] == "discrete Gaussian"
    assert known.counts.dtype.kind == known.together.dtype.kind == "i"
    c = known.together.tocoo()
    at_the_limit = np.minimum(known.counts[c.row], known.counts[c.col]) == c.data
    assert not any(is_impossible(value, labels) for value in c.data[~at_the_limit])
