"""Products with a matrix that is stored as sparse and has few zeros: the same numbers by dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random

from fedalc.core.sparse_products import WeightedBags, is_dense, weighted_gram


@pytest.mark.parametrize("density", [0.05, 0.9])
def test_products_by_hand(density: float) -> None:
    matrix = csr_matrix(random(40, 7, density, format="csr", random_state=1))
    assert is_dense(matrix) == (density > 0.5)
    dense, weights = matrix.toarray(), np.random.default_rng(0).random(40)
    np.testing.assert_allclose(weighted_gram(matrix, weights), dense.T @ np.diag(weights) @ dense, atol=1e-12)
    other = torch.rand(7, 3, dtype=torch.float64)
    found = WeightedBags.from_csr(matrix, torch.float64, "cpu") @ other
    torch.testing.assert_close(found, torch.from_numpy(dense) @ other)


def test_an_empty_matrix_is_sparse() -> None:
    assert not is_dense(csr_matrix((0, 5)))
    assert not is_dense(csr_matrix((5, 0)))
