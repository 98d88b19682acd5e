"""Counts at levels from owners who each have only positives: what thresholds and probabilities are chosen by.

How many records reach level t for label u is a sum over owners, though no owner has negatives. With S_v the records of
label v and m_x the number of labels of record x, every record is counted m_x times, with weight 1 / m_x:
Σ_x [z_u(x) ≥ t] = Σ_v Σ_{x ∈ S_v} [z_u(x) ≥ t] / m_x. The hits of u are counted by its own owner. Records without
labels belong to no owner and are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.models.thresholds import FEWEST, LEVELS, LevelCounts


def owner_counts(log_odds: np.ndarray, own: csr_matrix, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an owner's part of `predicted` and `hits`, labels × levels.

    `log_odds`: of the owner's records for all labels. `own`: records × all labels, with ones at the owner's.
    `sizes`: how many labels each record has in all.
    """
    reached = log_odds[:, :, None] >= LEVELS
    shares = np.asarray(own.sum(axis=1)).ravel() / sizes
    return np.einsum("x,xut->ut", shares, reached), np.einsum("xu,xut->ut", own.toarray(), reached)


def joined_counts(parts: Iterable[tuple[np.ndarray, np.ndarray]], positives: np.ndarray) -> LevelCounts:
    """Add up the owners' parts. `positives`: the held-out records of each label, which their owners tell."""
    predicted, hits = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    own = np.flatnonzero(positives >= FEWEST)
    rows = [np.concatenate([counts.sum(0, keepdims=True), counts[own]]) for counts in (predicted, hits)]
    of_rows = np.concatenate([[positives.sum()], positives[own]])
    return LevelCounts(own, *(each.astype(np.float32) for each in (of_rows, *rows)))
