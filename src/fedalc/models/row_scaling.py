"""Scale rows of features as in training. This module does not import torch."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, issparse


def scale_rows(features: csr_matrix, how: str) -> csr_matrix:
    """Scale rows to length 1 (`unit`), divide them by their number of stored values (`mean`), or neither (`raw`)."""
    if how == "raw" or not issparse(features):  # pictures are scaled elsewhere
        return features
    if how == "unit":
        features = _squarable(features, _lengths(features))
        size = _lengths(features)
    else:
        size = np.diff(features.indptr).astype(np.float64)
    scale = np.divide(1.0, size, out=np.zeros(len(size)), where=size > 0)
    values = features.data * np.repeat(scale, np.diff(features.indptr)).astype(features.dtype)
    return csr_matrix((values, features.indices, features.indptr), shape=features.shape, copy=False)


def _lengths(features: csr_matrix) -> np.ndarray:
    return np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())


def _squarable(features: csr_matrix, lengths: np.ndarray) -> csr_matrix:
    """Divide rows whose squares overflow or underflow 32 bits by their largest value, so that they keep a length."""
    odd = ~np.isfinite(lengths) | ((lengths == 0) & (np.diff(features.indptr) > 0))
    if not odd.any():
        return features
    counts = np.diff(features.indptr)
    entries = np.repeat(odd, counts)
    largest = abs(features).max(axis=1).toarray().ravel().astype(np.float64)
    largest[largest == 0] = 1
    values = features.data.copy()
    values[entries] = features.data[entries] / np.repeat(largest, counts)[entries]
    return csr_matrix((values, features.indices, features.indptr), shape=features.shape)
