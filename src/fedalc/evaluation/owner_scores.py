"""Scores of held-out records, counted in bins by owners who each have only positives: what probabilities are fitted to.

How many records have a score of label u in bin b is a sum over owners, though no owner has negatives. With S_v the
records of label v and m_x the number of labels of record x, every record is counted m_x times, with weight 1 / m_x:
Σ_x [s_u(x) ∈ b] = Σ_v Σ_{x ∈ S_v} [s_u(x) ∈ b] / m_x. The positives of u are counted by its own owner. If h owners have
a record with a label, each counts 1/h of the pair. Records without labels belong to no owner and are not counted.

Bins are narrow near 0 and grow with the score, so that they fit cosines, regression outputs and sums alike.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.evaluation.calibrate import HeldOut

UNIT, STEP, HALF = 0.02, 0.02, 450
EDGES = UNIT * np.sinh(STEP * np.arange(-HALF, HALF + 1))
"""Scores between bins: 0.0004 apart near 0, 2 % of the score far from it, up to ±81."""
BINS = len(EDGES) + 1
MIDDLES = np.concatenate([EDGES[:1], UNIT * np.sinh(STEP * (np.arange(-HALF, HALF) + 0.5)), EDGES[-1:]])
SMALLEST = 1e-6  # a smaller weight is what is left of sums of parts


def owner_scores(scores: np.ndarray, own: csr_matrix, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an owner's part of the counts, labels × bins: of all its records, and of its positives.

    `scores`: of its records for all labels. `own`: records × all labels, with ones at the owner's, or 1/h where h
    owners count. `sizes`: how many labels each record has in all.
    """
    count, place = scores.shape[1], np.searchsorted(EDGES, scores, side="right")
    place += BINS * np.arange(count)
    shares = np.repeat(np.asarray(own.sum(axis=1)).ravel() / sizes, count)
    pairs = own.tocoo()
    every = np.bincount(place.ravel(), shares, count * BINS)
    hits = np.bincount(place[pairs.row, pairs.col], pairs.data, count * BINS)
    return every.reshape(count, BINS), hits.reshape(count, BINS)


def pairs_in_bins(every: np.ndarray, hits: np.ndarray, log_share: np.ndarray, records: int) -> HeldOut:
    """Return counts of all owners as pairs of a record and a label, with the middles of bins as their scores.
    `log_share`: of each label, as for `fit_calibration`."""
    counts = np.stack([every - hits, hits])
    truth, labels, bins = np.nonzero(counts > SMALLEST)
    return HeldOut(MIDDLES[bins], labels, truth == 1, counts[truth, labels, bins], log_share[labels], records)


def in_bins(held_out: HeldOut, label_count: int, log_share: np.ndarray) -> HeldOut:
    """Return pairs that are in one place as owners would count them."""
    place = held_out.labels * BINS + np.searchsorted(EDGES, held_out.scores, side="right")
    every, hits = (
        np.bincount(place, held_out.weights * kind, label_count * BINS).reshape(label_count, BINS)
        for kind in (1, held_out.truth)
    )
    return pairs_in_bins(every, hits, log_share, held_out.records)
