"""Put labels that belong together into clusters of equal size: halves of halves, by balanced 2-means."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, diags

STEPS = 8  # of 2-means, at most
DIGITS = 5  # of a similarity: labels that are as near to both halves keep their order, whoever adds up


def balanced_clusters(vectors: csr_matrix, count: int, random: np.random.Generator) -> np.ndarray:
    """Return the cluster of each row. `count`: a power of two. With fewer rows some clusters are empty."""
    parts = [np.arange(vectors.shape[0])]
    while len(parts) < count:
        parts = [half for part in parts for half in _halves(part, vectors, random)]
    cluster = np.empty(vectors.shape[0], dtype=np.int64)
    for number, part in enumerate(parts):
        cluster[part] = number
    return cluster


def random_clusters(labels: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return clusters of the same sizes that mean nothing, to compare with."""
    return np.asarray(random.permutation(labels) % count)


def unit_vectors(matrix: csr_matrix) -> csr_matrix:
    """Return the rows scaled to length 1. A row of zeros stays one."""
    length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return (diags(1 / np.where(length > 0, length, 1)) @ matrix).tocsr()


def _halves(part: np.ndarray, vectors: csr_matrix, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Divide the rows into the half that is nearer to one mean and the half that is nearer to the other."""
    if len(part) < 2:
        return part, part[:0]
    own = _without_empty_columns(vectors[part])
    first = own[random.integers(len(part))].toarray().ravel()
    farthest = own[np.argmin(np.round(own @ first, DIGITS))].toarray().ravel()
    toward = first - farthest
    nearer, before = np.zeros(len(part), dtype=bool), None
    for _ in range(STEPS):
        order = np.argsort(-np.round(own @ toward, DIGITS), kind="stable")
        nearer = np.zeros(len(part), dtype=bool)
        nearer[order[: (len(part) + 1) // 2]] = True
        if before is not None and np.array_equal(nearer, before):
            break
        before, toward = nearer, _direction(own.T @ nearer) - _direction(own.T @ ~nearer)
    return part[nearer], part[~nearer]


def _direction(vector: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


def _without_empty_columns(matrix: csr_matrix) -> csr_matrix:
    used = np.unique(matrix.indices)
    places = np.searchsorted(used, matrix.indices)
    return csr_matrix((matrix.data, places, matrix.indptr), shape=(matrix.shape[0], len(used)))
