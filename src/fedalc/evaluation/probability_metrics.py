"""How good probabilities are: Brier score, log loss, calibration error, and what abstention brings."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.blocks import DEFAULT_BUDGET, blocks
from fedalc.models.calibration import Calibration, sigmoid
from fedalc.models.predicting import BYTES_PER_SCORE, Scores

BINS = 15
ABSTAIN_BELOW = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def probability_metrics(
    calibration: Calibration, scorer: Scores, truth: csr_matrix, budget: int = DEFAULT_BUDGET
) -> dict[str, Any]:
    """Return figures over all pairs of instance and label: Brier score and log loss (means), expected calibration error
    (of `BINS` equal ranges of probability), and for each of `ABSTAIN_BELOW` the share of instances whose best
    probability is at least this (coverage, percent) and how often their most probable label is true (P@1, percent).

    `truth` may have more columns than there are labels: those count as missed, with probability 0.
    """
    count, label_count = truth.shape[0], calibration.label_count
    brier, loss, bins = 0.0, 0.0, np.zeros((3, BINS))
    best, right = np.zeros(count), np.zeros(count, bool)
    for rows in blocks(count, 2 * BYTES_PER_SCORE * label_count, budget):
        z = calibration.log_odds(scorer.of_instances(rows).cpu().double().numpy())
        true = truth[rows][:, :label_count].toarray() > 0
        p = sigmoid(z)
        brier += float(((p - true) ** 2).sum())
        known = np.isfinite(z)
        loss += float((np.logaddexp(0, z[known]) - np.where(true[known], z[known], 0)).sum())
        place = np.minimum((p * BINS).astype(np.int64), BINS - 1).ravel()
        bins += [np.bincount(place, values, BINS) for values in (np.ones(p.size), p.ravel(), true.ravel())]
        top = z.argmax(1) if label_count else np.zeros(len(z), np.int64)
        best[rows], right[rows] = p[np.arange(len(p)), top], true[np.arange(len(p)), top]
    pairs = max(count * label_count, 1)
    return {
        "brier": brier / pairs,
        "log_loss": loss / pairs,
        "calibration_error": float(np.abs(bins[1] - bins[2]).sum()) / pairs,
        "abstention": [_covered(best, right, level) for level in ABSTAIN_BELOW],
    }


def _covered(best: np.ndarray, right: np.ndarray, level: float) -> dict[str, float | None]:
    covered = best >= level
    precision = float(100 * right[covered].mean()) if covered.any() else None
    return {"abstain_below": level, "coverage": float(100 * covered.mean()), "P@1": precision}
