"""Equal records: which rows have the same content."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.images.images import Images


def record_numbers(features: csr_matrix | Images) -> np.ndarray:
    """Return the record of each row: rows with the same content have the same number, in the order of first rows.

    >>> record_numbers(csr_matrix([[0, 1], [2, 0], [0, 1]])).tolist()
    [0, 1, 0]
    """
    number_of: dict[bytes, int] = {}
    return np.array([number_of.setdefault(content, len(number_of)) for content in _contents(features)], dtype=np.int64)


def _contents(features: csr_matrix | Images) -> list[bytes]:
    if isinstance(features, Images):
        return [digest.tobytes() for digest in features.digests]
    matrix = features.copy()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return [
        matrix.indices[first:last].tobytes() + matrix.data[first:last].tobytes()
        for first, last in pairwise(matrix.indptr.tolist())
    ]
