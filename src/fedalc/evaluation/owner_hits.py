"""P@k and nDCG@k from owners who each know only their own labels.

The number of true labels among the top k is a sum over owners: Σ_x |top_k(x) ∩ L_x| = Σ_u Σ_{x ∈ S_u} [u ∈ top_k(x)].
An owner that can rank all labels counts the hits of its own. Added up and divided by k × instances, they are P@k
exactly. nDCG@k also needs the number of labels of each instance. If h owners know that an instance has a label, each of
them counts 1/h of the hit.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.evaluation.metrics import CUTS, GAIN

DEPTHS = np.array(CUTS)
RANKED_BY = tuple(f"{name}@{k}" for name in ("P", "nDCG") for k in CUTS)
"""The metrics that owners can measure, in the order of the figures below."""


def ideal_gains(sizes: np.ndarray) -> np.ndarray:
    """Return the largest discounted gain of instances with this many labels: len(sizes) × cuts. 0 without labels."""
    summed = np.concatenate(([0.0], np.cumsum(GAIN)))
    return summed[np.minimum(sizes[:, None], DEPTHS)]


def count_hits(top: np.ndarray, own: csr_matrix, sizes: np.ndarray | None = None) -> np.ndarray:
    """Return the hits of the owner's labels among the top 1, 3, 5, and with `sizes` their parts of nDCG@1, 3, 5.

    `top`: the best labels of each instance, best first. `own`: instances × all labels, with ones at the owner's, or 1/h
    where h owners count.
    `sizes`: how many labels each instance has in all; above 5 it makes no difference.

    >>> count_hits(np.array([[2, 0, 1]]), csr_matrix([[1, 0, 0]]), np.array([2])).round(3).tolist()
    [0.0, 1.0, 1.0, 0.0, 0.387, 0.387]
    """
    best = top[:, : CUTS[-1]]
    rows = np.repeat(np.arange(len(best)), best.shape[1])
    hits = np.asarray(own[rows, best.ravel()]).reshape(best.shape)
    counts = [hits[:, :k].sum() for k in CUTS]
    if sizes is None:
        return np.array(counts, dtype=np.float64)
    gains = np.stack([hits[:, :k] @ GAIN[: hits[:, :k].shape[1]] for k in CUTS], axis=1)
    return np.concatenate([counts, (gains / ideal_gains(sizes)).sum(0)])


def most_hits(own: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the largest possible `count_hits`. `own`: how many of the owner's labels each instance has."""
    return np.concatenate(
        [np.minimum(own[:, None], DEPTHS).sum(0), (ideal_gains(own) / ideal_gains(sizes)).sum(0)], dtype=np.float64
    )


def figures(total: np.ndarray, instances: float) -> dict[str, float]:
    """Return the metrics in percent, from the sum of all owners' `count_hits` and the number of instances."""
    divisors = np.concatenate([DEPTHS, np.ones(len(CUTS))])[: len(total)]
    return dict(zip(RANKED_BY, (100 * total / divisors / instances).tolist(), strict=False))
