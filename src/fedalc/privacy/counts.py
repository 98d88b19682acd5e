"""N, n and c noised once. All that follows is post-processing: W may be trained on them as long as one likes.

The noise falls on every pair of labels, also on those that never occur together, or it would show which these are. Of
those only the pairs whose noise exceeds a threshold are ever written down, so nothing of size labels × labels is built.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import norm

from fedalc.correlations import Correlations


def clip_label_sets(label_sets: csr_matrix, labels_per_instance: int, generator: np.random.Generator) -> csr_matrix:
    """At most so many labels of each instance, drawn at random, each instance on its own."""
    held = np.diff(label_sets.indptr)
    instance = np.repeat(np.arange(label_sets.shape[0]), held)
    order = np.lexsort((generator.random(label_sets.nnz), instance))  # shuffles within each instance
    place = np.arange(label_sets.nnz) - np.repeat(label_sets.indptr[:-1], held)
    kept = order[place < labels_per_instance]
    values = np.ones(len(kept), dtype=label_sets.dtype)
    return csr_matrix((values, (instance[kept], label_sets.indices[kept])), shape=label_sets.shape)


def sensitivity(labels_per_instance: int) -> float:
    """How far (N, n, c) can move, in Euclidean length, when one instance's label set is taken away.

    With m labels the instance is counted once in N, once in m of the n_u and once in m(m-1)/2 of the c_uv (unordered
    pairs), and in nothing else: a vector of that many ones, of length √(1 + m + m(m-1)/2). Fewer labels, a shorter one.
    """
    m = labels_per_instance
    return math.sqrt(1 + m + m * (m - 1) / 2)


def noisy_correlations(
    label_sets: csr_matrix, labels_per_instance: int, noise_multiplier: float, generator: np.random.Generator
) -> Correlations:
    """N, n and c of clipped label sets under the Gaussian mechanism, made fit for use.

    Pairs at or below a threshold count as never together. It is set, without a look at the data, so that of pairs that
    truly never occur together one per label is expected to pass. Then n is brought into [0, N] and c_uv into
    [0, min(n_u, n_v)]. Memory: labels + pairs that occur together.
    """
    exact = Correlations.from_label_sets(clip_label_sets(label_sets, labels_per_instance, generator))
    C, std = exact.label_count, noise_multiplier * sensitivity(labels_per_instance)
    N = max(1, round(exact.instances + std * generator.standard_normal()))
    counts = np.clip(exact.counts + std * generator.standard_normal(C), 0.0, N)

    c = exact.together.tocoo()
    upper = c.row < c.col
    pair = _pair_number(c.row[upper], c.col[upper])
    value = c.data[upper] + std * generator.standard_normal(len(pair))
    chance = min(0.5, 2 / (C - 1)) if C > 1 else 0.5  # labels / all pairs: that noise alone passes
    passed = value > std * norm.isf(chance)
    pair, value = pair[passed], value[passed]
    if std > 0:
        present = np.sort(_pair_number(c.row[upper], c.col[upper]))
        phantom, its_value = _noise_on_absent_pairs(present, C * (C - 1) // 2, std, chance, generator)
        pair, value = np.concatenate([pair, phantom]), np.concatenate([value, its_value])

    u, v = _pair_of(pair)
    value = np.minimum(value, np.minimum(counts[u], counts[v]))
    rows, columns = np.concatenate([u, v]), np.concatenate([v, u])
    together = csr_matrix((np.concatenate([value, value]), (rows, columns)), shape=(C, C))
    together.eliminate_zeros()
    return Correlations(N, counts, together)


def _noise_on_absent_pairs(
    present: np.ndarray, pairs: int, std: float, chance: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs, of those not in `present`, whose noise exceeds its `chance`-quantile, and that noise.

    Exactly as if noise had been drawn for each: how many is binomial, which is uniform, and how much is the normal
    distribution's upper tail.
    """
    absent = pairs - len(present)
    number = generator.binomial(absent, chance)
    rank = generator.choice(absent, number, replace=False, shuffle=False) if number else np.zeros(0, dtype=np.int64)
    # The r-th absent pair has as many present ones before it as have at most r absent ones before them.
    pair = rank + np.searchsorted(present - np.arange(len(present)), rank, side="right")
    return pair, std * norm.isf(chance * (1.0 - generator.random(number)))


def _pair_number(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Unordered pairs u < v in the order 01, 02, 12, 03, 13, 23, …"""
    u, v = u.astype(np.int64), v.astype(np.int64)
    return v * (v - 1) // 2 + u


def _pair_of(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    v = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    v -= v * (v - 1) // 2 > number  # the root may have been rounded up,
    v += v * (v + 1) // 2 <= number  # or down
    return number - v * (v - 1) // 2, v
