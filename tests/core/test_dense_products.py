"""Products by oneDNN equal those of torch."""

from __future__ import annotations

import pytest
import torch

from fedalc.core import dense_products
from fedalc.core.dense_products import product

SHAPES = [(0, 5, 3), (1, 1, 1), (7, 5, 3), (40, 600, 30), (230, 60, 30)]


@pytest.mark.parametrize("least", [0, 2**60], ids=["oneDNN", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(
    shape: tuple[int, int, int], transposed: bool, dtype: torch.dtype, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_products, "LEAST", least)
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(3)

    def drawn(first: int, second: int) -> torch.Tensor:
        size = (second, first) if transposed else (first, second)
        whole = torch.randn(size, generator=generator, dtype=torch.float64)
        return whole.T if transposed else whole

    a, b = drawn(rows, inner), drawn(inner, columns)
    exact = dtype == torch.float64
    close = {"rtol": 1e-12, "atol": 1e-12} if exact else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(product(a.to(dtype), b.to(dtype)).double(), a @ b, **close)


def test_no_graph() -> None:
    a = torch.ones(2, 2, requires_grad=True)
    assert not product(a, a).requires_grad
