"""An attacker tries to find out from published counts whether one instance has two labels together.

Earlier, counts got `c + std · normal`, and pairs that never occur `std · isf(chance · (1 - u))`: different doubles. A
value that the second formula cannot give proved that the pair occurs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, eye_array, kron
from scipy.stats import beta, norm

import fedalc
import fedalc.labels.knowledge
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.join import Joined, join
from fedalc.labels.collection.messages import make_messages
from fedalc.labels.collection.results import Collected
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import learn_labels, noised
from fedalc.labels.privacy import (
    Release,
    SecureGenerator,
    counts_multiplier,
    epsilon_of,
    label_threshold,
    noisy_correlations,
    published_correlations,
    sensitivity,
)
from fedalc.labels.privacy.accounts import files_account
from fedalc.labels.privacy.ledger import Ledger
from fedalc.labels.privacy.noisy_counts import _noised_pairs, _threshold
from fedalc.labels.privacy.tables import ONE, discrete_gaussian
from tests.cli.test_collect import run
from tests.problems import random_split

pytest.importorskip("dp_accounting")
EPSILON, DELTA, M = 1.0, 1e-5, 3
Z = counts_multiplier(EPSILON, DELTA, 1, M)
SIGMA = Z * sensitivity(M)


def label_sets(labels: int, together: bool) -> csr_matrix:
    """Return many instances with one label each, and one with labels 0 and 1 if `together`, else without labels."""
    alone = np.eye(labels)[np.arange(60 * labels) % labels]
    pair = np.zeros((1, labels))
    pair[0, :2] = together
    return csr_matrix(np.vstack([alone, pair]))


def continuous_release(labels: int, together: bool, random: np.random.Generator) -> float:
    """Return the earlier mechanism's published value of the pair (0, 1); 0 if none was published."""
    chance = min(0.5, 2 / (labels - 1))
    if together:
        value = 1 + SIGMA * random.standard_normal()
        return value if value > SIGMA * norm.isf(chance) else 0.0
    return SIGMA * norm.isf(chance * (1.0 - random.random())) if random.random() < chance else 0.0


def proves_presence(value: float, labels: int) -> bool:
    """No uniform u of 53 bits gives this value, so it cannot be noise on a pair that never occurs."""
    chance = min(0.5, 2 / (labels - 1))
    about = round((1 - norm.sf(value / SIGMA) / chance) * 2**53)
    u = np.clip(about + np.arange(-60, 61), 0, 2**53 - 1) * 2.0**-53
    return not (SIGMA * norm.isf(chance * (1.0 - u)) == value).any()


def is_impossible(value: float, labels: int, sigma: float = SIGMA) -> bool:
    """The same test for the current mechanism: not whole, or a number that noise on an absent pair cannot give."""
    noise = discrete_gaussian(sigma)
    threshold = _threshold(noise, labels)
    return value != 0 and not (value == int(value) > threshold and noise.tail(int(value) - 1) > noise.tail(int(value)))


@pytest.mark.parametrize(("labels", "trials"), [(3, 150), (10, 150)])
def test_the_attack_works_on_what_was_published_before(labels: int, trials: int) -> None:
    """Otherwise it would mean nothing that the attack fails now."""
    random = np.random.default_rng(labels)
    present = [continuous_release(labels, True, random) for _ in range(trials)]
    proved = sum(value > 0 and proves_presence(value, labels) for value in present)
    assert proved > trials / 20
    assert any(is_impossible(value, labels) for value in present)
    absent = [continuous_release(labels, False, random) for _ in range(trials)]
    assert not any(value > 0 and proves_presence(value, labels) for value in absent)  # never falsely


@pytest.mark.few(1)
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
    """Return events that are clearly more frequent in one world than e^ε times the other's frequency plus δ.

    The events are, for each value: equal to it, at least it, and at most it.
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


def published(labels: int, together: bool, sigma: float, draws: int = 200_000) -> np.ndarray:
    """Return many releases of the counts of one instance with three labels, or of the same counts without it.

    Columns: N, three n and three c, with 0 for a pair that is not shown; last their sum, the most likely to reveal it.
    """
    generator, noise = SecureGenerator.seeded(2 * labels + together), discrete_gaussian(sigma)
    alone = int(together) + noise.draw(generator, 4 * draws)
    present = np.arange(3 * draws if together else 0)
    threshold = _threshold(noise, labels)
    pair, value = _noised_pairs(present, np.ones_like(present), 3 * draws, noise, threshold, generator)
    pairs = np.zeros(3 * draws, dtype=np.int64)
    pairs[pair] = value
    assert len(value) == 0 or value.min() > threshold
    seen = np.hstack([alone.reshape(draws, 4), pairs.reshape(draws, 3)])
    return np.column_stack([seen, seen.sum(1)])


def violations_of_counts(labels: int, sigma: float) -> int:
    """Test all counts together, and each alone, which may spend only its own share."""
    present, absent = (published(labels, together, sigma) for together in (True, False))
    one = epsilon_of([Release("discrete", SIGMA, 1)], DELTA)
    assert one < EPSILON / 2
    found = violations(present[:, -1], absent[:, -1], EPSILON)
    return found + sum(violations(present[:, count], absent[:, count], one) for count in range(7))


@pytest.mark.few(1)
@pytest.mark.parametrize("labels", [3, 10, 79])
def test_no_event_separates_the_worlds_beyond_epsilon_and_delta(labels: int) -> None:
    assert violations_of_counts(labels, SIGMA) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("labels", [3, 10, 79])
def test_half_of_the_noise_would_be_found(labels: int) -> None:
    """The same test with the same size: otherwise it would mean little that it finds nothing."""
    assert violations_of_counts(labels, SIGMA / 2) > 0


# --- the list of labels ---


def joined_files(one_more: bool) -> Joined:
    """Return six labels with many instances and, optionally, one instance that is alone with its label."""
    Y = csr_matrix(np.vstack([np.eye(7)[np.arange(720) % 6], np.eye(7)[[6] * one_more]]))
    canonical = [str(row).encode() for row in range(Y.shape[0])]
    sent = make_messages(Hasher("sha256", None), "record", "all", canonical, Y, [f"label {u}" for u in range(7)])
    return join([sent])


@pytest.mark.long
def test_the_list_of_labels_does_not_show_a_single_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier, the file contained every label of an instance."""
    monkeypatch.setattr(fedalc.labels.knowledge, "epsilon_of", lambda *_: EPSILON)  # half a second each
    monkeypatch.setattr(Ledger, "add", lambda *_: None)
    worlds = []
    for one_more in (True, False):
        joined = joined_files(one_more)
        account = files_account(joined.protocol, joined.label_sets)
        files = [noised(joined, EPSILON, DELTA, M, account) for _ in range(60)]
        worlds.append(np.array([len(file.pseudonyms) for file in files]))
    assert violations(*worlds, EPSILON) == 0
    assert worlds[0].mean() > 5  # frequent ones are there
    with_it, without = (np.full(60, len(joined_files(one_more).pseudonyms)) for one_more in (True, False))
    assert violations(with_it, without, EPSILON) > 0  # the test would find it


@pytest.mark.parametrize("labels_per_instance", [1, 3])
def test_labels_of_one_instance_are_shown_as_rarely_as_promised(labels_per_instance: int) -> None:
    """Many instances, each alone with its labels. δ is large here, so that some are shown and can be counted."""
    delta, z, instances = 0.05, 2.0, 40_000
    least = label_threshold(labels_per_instance, z, delta)
    noise = discrete_gaussian(z * sensitivity(labels_per_instance))
    promised, with_one_less = (labels_per_instance * noise.tail(x) / ONE for x in (least - 2, least - 3))
    assert promised <= delta < with_one_less  # the smallest
    Y = csr_matrix(kron(eye_array(instances), np.ones((1, labels_per_instance))))
    generator = SecureGenerator.seeded(labels_per_instance)
    shown, known = published_correlations(Y, labels_per_instance, z, least, generator)
    instances_shown = len(np.unique(shown // labels_per_instance))
    assert 0.9 * promised < instances_shown / instances < delta
    assert known.label_count == len(shown) and known.counts.min() >= least


def test_labels_that_were_clipped_are_never_shown() -> None:
    """Otherwise an instance with hundreds of labels of its own would have hundreds of chances."""
    Y = csr_matrix(np.ones((1, 500)))
    shown, _ = published_correlations(Y, M, Z, -(10**6), SecureGenerator.seeded(0))
    assert len(shown) == M


def test_which_pairs_are_shown_does_not_depend_on_labels_that_are_not() -> None:
    """The number of labels sets the threshold of pairs. It must be the number of published labels."""
    two, rare = np.zeros((620, 502)), np.eye(502)[2:]
    two[:320, 0] = two[300:, 1] = 1  # 20 instances have both
    generator, Y = SecureGenerator.seeded(1), csr_matrix(np.vstack([two, rare]))
    files = [published_correlations(Y, M, Z, 100, generator) for _ in range(20)]
    assert all(shown.tolist() == [0, 1] for shown, _ in files)
    assert sum(known.together.nnz > 0 for _, known in files) > 15  # by the threshold of 502 labels, few


def test_in_a_simulation_noise_is_on_every_label_of_the_dataset() -> None:
    """The list of labels is public: a label without instances has a noised count like all others."""
    train = random_split(40, 8, 5, seed=0)
    Y = train.labels.tolil()
    Y[:, 2] = 0
    settings = fedalc.experiment({"method": "fedalc", "privacy": {"epsilon": EPSILON}})
    counts = []
    for _ in range(40):
        known = learn_labels(settings, replace(train, labels=csr_matrix(Y)), 1).labels
        assert isinstance(known, Correlations) and known.label_count == 5
        counts.append(known.counts[2])
    assert len(set(counts)) > 5


def test_a_file_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fedalc collect server --epsilon 1`: the file contains only whole numbers, and none proves presence."""
    monkeypatch.chdir(tmp_path)
    labels = 12
    random = np.random.default_rng(0)
    Y = csr_matrix((random.random((2000, labels)) < 0.15).astype(np.float32))
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
    sigma = collected.facts["privacy"]["noise_multiplier"] * sensitivity(M)
    assert known.label_count == labels
    assert not any(is_impossible(value, labels, sigma) for value in c.data[~at_the_limit])
