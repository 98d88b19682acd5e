"""Noised counts: the sensitivity by brute force, the sparse simulation against noise for every pair."""

from __future__ import annotations

import tracemalloc
from itertools import combinations, product

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.stats import binom, chisquare

from fedalc.labels.correlations import Correlations
from fedalc.labels.privacy import SecureGenerator, clip_label_sets, noisy_correlations, sensitivity
from fedalc.labels.privacy.noisy_counts import _noise_on_absent_pairs, _pair_number, _pair_of, _threshold
from fedalc.labels.privacy.tables import ONE, discrete_gaussian, draw_binomial
from tests.problems import random_split


def released(label_sets: csr_matrix) -> np.ndarray:
    """Return the vector to which noise is added: N, n, and c over unordered pairs."""
    known = Correlations.from_label_sets(label_sets)
    pairs = known.together.toarray()[np.triu_indices(known.label_count, 1)]
    return np.concatenate([[known.instances], known.counts, pairs])


@pytest.mark.few(2)
@pytest.mark.parametrize(("labels", "instances", "m"), [(4, 2, 1), (4, 2, 2), (4, 2, 3), (3, 3, 2), (4, 2, 4)])
def test_sensitivity_over_all_neighbours_of_all_small_datasets(labels: int, instances: int, m: int) -> None:
    sets = [list(s) for size in range(m + 1) for s in combinations(range(labels), size)]
    largest = 0.0
    for dataset in product(sets, repeat=instances):
        Y = np.zeros((instances, labels))
        for row, labels_of_it in zip(Y, dataset, strict=True):
            row[labels_of_it] = 1
        whole = released(csr_matrix(Y))
        for j in range(instances):
            neighbour = Y.copy()
            neighbour[j] = 0
            largest = max(largest, float(np.linalg.norm(whole - released(csr_matrix(neighbour)))))
    assert largest == pytest.approx(sensitivity(m), rel=1e-15)


def test_clipping_keeps_some_of_what_there_was() -> None:
    Y = random_split(200, 3, 12, seed=1, per_instance=8).labels
    clipped = clip_label_sets(Y, 3, SecureGenerator.seeded(0))
    assert clipped.shape == Y.shape and clipped.has_canonical_format
    assert np.array_equal(np.diff(clipped.indptr), np.minimum(np.diff(Y.indptr), 3))
    assert (clipped > Y).nnz == 0
    assert set(clipped.data) == {1}


def test_clipping_is_fair() -> None:
    Y = csr_matrix(np.ones((6000, 5), dtype=np.float32))
    kept = clip_label_sets(Y, 2, SecureGenerator.seeded(0)).toarray()
    assert np.allclose(kept.mean(0), 2 / 5, atol=0.03)
    assert np.allclose((kept.T @ kept / 6000)[np.triu_indices(5, 1)], 1 / 10, atol=0.02)  # each pair alike
    assert abs(np.corrcoef(kept[:-1, 0], kept[1:, 0])[0, 1]) < 0.05  # neighbours in the file are independent


def test_without_noise_it_is_the_clipped_correlations() -> None:
    Y = random_split(80, 3, 9, seed=4, per_instance=6).labels
    exact = Correlations.from_label_sets(clip_label_sets(Y, 2, SecureGenerator.seeded(3)))
    known = noisy_correlations(Y, 2, 0.0, SecureGenerator.seeded(3))
    assert known.instances == exact.instances
    assert np.array_equal(known.counts, exact.counts)
    assert np.array_equal(known.together.toarray(), exact.together.toarray())


@pytest.mark.parametrize("z", [0.3, 2.0, 50.0])
def test_what_comes_out_is_fit_for_use(z: float) -> None:
    Y = random_split(150, 3, 20, seed=4, per_instance=6).labels
    known = noisy_correlations(Y, 3, z, SecureGenerator.seeded(5))
    c = known.together.toarray()
    assert known.counts.dtype == np.int64 and known.together.dtype == np.int32 and known.together.has_canonical_format
    assert np.array_equal(c, c.T) and not c.diagonal().any()
    assert (known.counts >= 0).all() and (known.counts <= known.instances).all()
    assert (c >= 0).all() and (c <= np.minimum.outer(known.counts, known.counts)).all()


@pytest.mark.long
def test_the_noise_has_the_promised_size() -> None:
    """On counts below all limits: σ = z · √(1 + m + m(m-1)/2), for N, n and c alike."""
    Y = csr_matrix(np.tile(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]), (3000, 1)))
    Y = csr_matrix(np.vstack([Y.toarray(), np.eye(4)[np.arange(4000) % 4]]))  # so that n is well above c
    generator = SecureGenerator.seeded(0)
    draws = [noisy_correlations(Y, 2, 4.0, generator) for _ in range(300)]
    N = np.array([known.instances for known in draws]) - 10000
    n = np.array([known.counts for known in draws]) - 4000
    c = np.array([[known.together[0, 1], known.together[2, 3]] for known in draws]) - 3000
    for sample in (N, n.ravel(), c.ravel()):
        assert fits(sample, 4.0 * 2)
    assert abs(np.corrcoef(c.T)[0, 1]) < 0.2 and abs(np.corrcoef(n[:, 0], c[:, 0])[0, 1]) < 0.2


def fits(sample: np.ndarray, sigma: float, above: int | None = None) -> bool:
    """χ² test against the discrete Gaussian's probabilities; with a value, only for draws above it."""
    x = np.arange(-int(40 * sigma), int(40 * sigma) + 1)
    weight = np.exp(-(x**2) / (2 * sigma**2))
    if above is not None:
        weight[x <= above] = 0
    expected = len(sample) * weight / weight.sum()
    often = np.bincount(sample - x[0], minlength=len(x))
    enough = expected >= 8
    observed = np.append(often[enough], often[~enough].sum())
    wanted = np.append(expected[enough], expected[~enough].sum())
    return bool(chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue > 0.01 and often[expected == 0].sum() == 0)


@pytest.mark.parametrize("sigma", [0.3, 0.8, 3.0, 9.87, 250.0])
def test_the_sampler_has_the_exact_distribution(sigma: float) -> None:
    table = discrete_gaussian(sigma)
    assert fits(table.draw(SecureGenerator.seeded(1), 40_000), sigma)
    for value in range(-4, 5):  # the table itself, to all digits a double has
        x = np.arange(-int(20 * sigma) - 2, int(20 * sigma) + 3)
        weight = np.exp(-(x**2) / (2 * sigma**2))
        assert table.tail(value) / ONE == pytest.approx(weight[x > value].sum() / weight.sum(), rel=1e-12)


def test_the_tail_is_drawn_as_the_table_has_it() -> None:
    table = discrete_gaussian(4.0)
    assert fits(table.above(7).draw(SecureGenerator.seeded(2), 20_000), 4.0, above=7)
    assert fits(table.above(-3).draw(SecureGenerator.seeded(3), 20_000), 4.0, above=-3)
    far = table.above(60).draw(SecureGenerator.seeded(4), 1000)  # where P is 10⁻⁵⁰
    assert fits(far, 4.0, above=60)


class Given(SecureGenerator):
    """A generator that returns fixed words."""

    def __init__(self, *words: int) -> None:
        self.given = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self.given = self.given[:count], self.given[count:]
        return np.array(taken, dtype=np.uint64)


@pytest.mark.parametrize("value", [-3, 0, 2, 15])
def test_where_64_bits_do_not_decide_256_do(value: int) -> None:
    """A uniform number equal to an entry of the table, and one below it: they differ in the last bit."""
    table = discrete_gaussian(1.0)
    for uniform, drawn in ((table.tail(value), value), (table.tail(value) - 1, value + 1)):
        generator = Given(*np.frombuffer(uniform.to_bytes(32, "big"), dtype=">u8").tolist())
        assert table.draw(generator, 1).tolist() == [drawn]
        assert not generator.given


@pytest.mark.parametrize("trials", [1, 5, 64, 1000, 12_345])
def test_numbers_of_successes_are_binomial(trials: int) -> None:
    chance = discrete_gaussian(3.0).tail(5)
    generator = SecureGenerator.seeded(trials)
    often = np.bincount([draw_binomial(trials, chance, generator) for _ in range(2000)], minlength=trials + 1)
    expected = 2000 * binom.pmf(np.arange(trials + 1), trials, chance / ONE)
    enough = expected >= 8
    observed = np.append(often[enough], often[~enough].sum())
    assert chisquare(observed, np.append(expected[enough], expected[~enough].sum() + 1e-300)).pvalue > 0.01


def test_the_sparse_simulation_is_noise_on_every_pair() -> None:
    """C = 30, 435 pairs, 35 present: number, place and value of the rest, against theory and a naive version."""
    pairs, draws, threshold, noise = 435, 1500, 4, discrete_gaussian(3.0)
    generator = SecureGenerator.seeded(0)
    present = np.sort(np.random.default_rng(0).choice(pairs, 35, replace=False))
    absent = np.setdiff1d(np.arange(pairs), present)
    ours = [_noise_on_absent_pairs(present, pairs, noise, threshold, generator) for _ in range(draws)]
    dense = noise.draw(generator, draws * len(absent)).reshape(draws, len(absent))
    passed, chance = dense > threshold, noise.tail(threshold) / ONE

    numbers, twin = np.array([len(pair) for pair, _ in ours]), passed.sum(1)
    assert numbers.mean() == pytest.approx(len(absent) * chance, rel=0.03)
    assert numbers.mean() == pytest.approx(twin.mean(), rel=0.05)
    assert numbers.var() == pytest.approx(binom(len(absent), chance).var(), rel=0.15)

    places = np.concatenate([pair for pair, _ in ours])
    assert all(len(np.unique(pair)) == len(pair) for pair, _ in ours)
    assert np.isin(places, absent).all()
    often = np.bincount(places, minlength=pairs)[absent]
    assert chisquare(often).pvalue > 0.01  # no pair preferred

    values = np.concatenate([value for _, value in ours])
    assert fits(values, 3.0, above=threshold)
    assert fits(dense[passed], 3.0, above=threshold)


def test_the_threshold_lets_at_most_about_one_false_pair_per_label_pass() -> None:
    """No two labels occur together, so all pairs in the result are false."""
    Y = csr_matrix(np.eye(200)[np.arange(20000) % 200])
    for z in (2.0, 9.0):
        noise = discrete_gaussian(z * sensitivity(1))
        threshold = _threshold(noise, 200)
        assert noise.tail(threshold) <= 2 * ONE // 199 < noise.tail(threshold - 1)
        expected = 200 * 199 / 2 * noise.tail(threshold) / ONE
        known = noisy_correlations(Y, 1, z, SecureGenerator.seeded(1))
        assert known.together.nnz / 2 == pytest.approx(expected, rel=0.25)


def test_pair_numbers() -> None:
    u, v = np.triu_indices(40, 1)
    number = _pair_number(u, v)
    assert np.array_equal(np.sort(number), np.arange(40 * 39 // 2))
    assert all(np.array_equal(a, b) for a, b in zip(_pair_of(number), (u, v), strict=True))
    v = np.array([2, 1000, 670_091, 670_091, 3_000_000])
    u = np.array([1, 0, 670_090, 0, 2_999_999])
    assert all(np.array_equal(a, b) for a, b in zip(_pair_of(_pair_number(u, v)), (u, v), strict=True))


@pytest.mark.parametrize("labels", [1, 2, 3])
def test_few_labels(labels: int) -> None:
    Y = csr_matrix(np.ones((10, labels)))
    assert noisy_correlations(Y, 3, 1.0, SecureGenerator.seeded(0)).label_count == labels
    assert noisy_correlations(Y[:0], 3, 1.0, SecureGenerator.seeded(0)).instances >= 1  # never 0: it is divided by


def test_many_labels_take_little_memory() -> None:
    """50,000 labels: a matrix of all pairs would take 20 GB."""
    random, C, N = np.random.default_rng(0), 50_000, 100_000
    Y = csr_matrix((np.ones(5 * N), (np.repeat(np.arange(N), 5), random.integers(0, C, 5 * N))), shape=(N, C))
    tracemalloc.start()
    known = noisy_correlations(Y, 3, 1.0, SecureGenerator.seeded(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert known.label_count == C
    assert peak < 200 * 2**20
