"""Noise N, n and c once. W may then be trained on them for as long as one likes: that is post-processing.

Every published number is a whole number: a count plus discrete Gaussian noise from the same table and sampler, whether
the count is 0 or not. Every pair of labels gets noise, also pairs that never occur together; otherwise the output would
show which pairs these are. Of those, only pairs whose noise exceeds a threshold are stored, so no labels × labels array
is built.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.labels.correlations import Correlations, count_type
from fedalc.labels.privacy.accounting import sensitivity
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.labels.privacy.tables import ONE, TailTable, discrete_gaussian, draw_binomial


def clip_label_sets(label_sets: csr_matrix, labels_per_instance: int, generator: SecureGenerator) -> csr_matrix:
    """Return at most `labels_per_instance` labels of each instance, chosen at random for each independently."""
    sizes = np.diff(label_sets.indptr)
    instance = np.repeat(np.arange(label_sets.shape[0]), sizes)
    order = np.lexsort((generator.words(label_sets.nnz), instance))  # shuffles within each instance
    rank = np.arange(label_sets.nnz) - np.repeat(label_sets.indptr[:-1], sizes)
    chosen = order[rank < labels_per_instance]
    values = np.ones(len(chosen), dtype=label_sets.dtype)
    return csr_matrix((values, (instance[chosen], label_sets.indices[chosen])), shape=label_sets.shape)


def noisy_correlations(
    label_sets: csr_matrix, labels_per_instance: int, noise_multiplier: float, generator: SecureGenerator
) -> Correlations:
    """Return N, n and c of clipped label sets under the discrete Gaussian mechanism, made consistent.

    Pairs at or below a threshold count as never together. The threshold does not depend on the data: at most one pair
    per label that never occurs together is expected to pass. Then n is clipped to [0, N], c_uv to [0, min(n_u, n_v)].
    Memory: labels + pairs that occur together.
    """
    exact = Correlations.from_label_sets(clip_label_sets(label_sets, labels_per_instance, generator))
    if noise_multiplier == 0:
        return exact
    noise = _noise(noise_multiplier, labels_per_instance)
    N, counts = _noised_counts(exact, noise, generator)
    return _with_noised_pairs(N, counts, exact.together, noise, generator)


def published_correlations(
    label_sets: csr_matrix, labels_per_instance: int, noise_multiplier: float, least: int, generator: SecureGenerator
) -> tuple[np.ndarray, Correlations]:
    """Like `noisy_correlations`, if the list of labels is not public. Return the labels to show, and N, n, c of these.

    A label is shown if an instance has it after clipping and its noised n is at least `least` (see `label_threshold`).
    Labels that clipping removed everywhere are never shown: one instance could add any number of them.
    """
    exact = Correlations.from_label_sets(clip_label_sets(label_sets, labels_per_instance, generator))
    noise = _noise(noise_multiplier, labels_per_instance)
    N, counts = _noised_counts(exact, noise, generator)
    shown = np.flatnonzero((exact.counts > 0) & (counts >= least))
    # The pairs must see the shown labels only, including their number.
    return shown, _with_noised_pairs(N, counts[shown], exact.together[shown][:, shown], noise, generator)


def label_threshold(labels_per_instance: int, noise_multiplier: float, delta: float) -> int:
    """Return the smallest threshold T with which labels that only one instance has are shown with probability ≤ δ.

    That is labels_per_instance · P(noise ≥ T - 1) ≤ δ for all labels of the instance together. It is exact: computed
    from the table that the noise is drawn from.
    """
    noise = _noise(noise_multiplier, labels_per_instance)
    return _smallest(noise, Fraction(delta) * ONE // labels_per_instance) + 2  # P(noise ≥ T - 1) = P(noise > T - 2)


def _noise(noise_multiplier: float, labels_per_instance: int) -> TailTable:
    return discrete_gaussian(noise_multiplier * sensitivity(labels_per_instance))


def _noised_counts(exact: Correlations, noise: TailTable, generator: SecureGenerator) -> tuple[int, np.ndarray]:
    """Return noised N and n."""
    N = max(1, exact.instances + int(noise.draw(generator, 1)[0]))
    return N, exact.counts + noise.draw(generator, exact.label_count)


def _with_noised_pairs(
    N: int, counts: np.ndarray, together: csr_matrix, noise: TailTable, generator: SecureGenerator
) -> Correlations:
    """Return consistent correlations from noised N and n and exact c, which gets its noise here."""
    C, counts = len(counts), np.clip(counts, 0, N)
    c = together.tocoo()
    upper = c.row < c.col
    present = _pair_number(c.row[upper], c.col[upper])
    pair, value = _noised_pairs(present, c.data[upper], C * (C - 1) // 2, noise, _threshold(noise, C), generator)
    u, v = _pair_of(pair)
    value = np.minimum(value, np.minimum(counts[u], counts[v])).astype(count_type(N))
    rows, columns = np.concatenate([u, v]), np.concatenate([v, u])
    together = csr_matrix((np.concatenate([value, value]), (rows, columns)), shape=(C, C))
    together.eliminate_zeros()
    return Correlations(N, counts, together)


def _noised_pairs(
    present: np.ndarray, value: np.ndarray, pairs: int, noise: TailTable, threshold: int, generator: SecureGenerator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs whose noised count exceeds the threshold, and these counts. Pairs not in `present` count 0."""
    value = value + noise.draw(generator, len(present))
    passed = value > threshold
    absent, absent_value = _noise_on_absent_pairs(np.sort(present), pairs, noise, threshold, generator)
    return np.concatenate([present[passed], absent]), np.concatenate([value[passed], absent_value])


def _threshold(noise: TailTable, labels: int) -> int:
    """Return the smallest threshold that noise alone exceeds on at most `labels` of all pairs on average, or 0."""
    return _smallest(noise, min(2 * ONE // (labels - 1), ONE) if labels > 1 else ONE)  # labels / pairs


def _smallest(noise: TailTable, allowed: int) -> int:
    """Return the smallest x ≥ 0 that noise exceeds with probability at most allowed / 2²⁵⁶."""
    low, high = 0, max(noise.lowest + len(noise), 0)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if noise.tail(middle) <= allowed else (middle + 1, high)
    return low


def _noise_on_absent_pairs(
    present: np.ndarray, pairs: int, noise: TailTable, threshold: int, generator: SecureGenerator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs not in `present` whose noise exceeds the threshold, and that noise.

    The distribution is exactly that of drawing noise for each pair: their number is binomial with the table's own tail
    probability, the pairs are uniform, and the noise is the table's upper tail.
    """
    absent, chance = pairs - len(present), noise.tail(threshold)
    if absent == 0 or chance == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    rank = generator.distinct_below(absent, draw_binomial(absent, chance, generator))
    # The r-th absent pair has as many present ones before it as have at most r absent ones before them.
    pair = rank + np.searchsorted(present - np.arange(len(present)), rank, side="right")
    return pair, noise.above(threshold).draw(generator, len(rank))


def _pair_number(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the numbers of unordered pairs u < v in the order 01, 02, 12, 03, 13, 23, …"""
    u, v = u.astype(np.int64), v.astype(np.int64)
    return v * (v - 1) // 2 + u


def _pair_of(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    v = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    v -= v * (v - 1) // 2 > number  # the root may have been rounded up,
    v += v * (v + 1) // 2 <= number  # or down
    return number - v * (v - 1) // 2, v
