"""The sparse product and the encoders against dense arithmetic; numerical gradients; dropout per instance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.config.schema import EncoderSettings
from fedalc.models.encoders import Dropout, SparseRows, make_encoder, scale_rows
from tests.problems import random_split

FEATURES = csr_matrix(
    (np.linspace(0.2, 1.3, 12, dtype=np.float32), ([*range(9), 0, 3, 7], [0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 5, 0])), (9, 6)
)  # every instance has a feature, and every feature an instance
assert FEATURES.nnz < FEATURES.shape[0] * FEATURES.shape[1] / 2  # or it would be taken for dense
DENSE = csr_matrix(np.random.default_rng(3).random((9, 6)).astype(np.float32))
KEYS = np.arange(9)


def rows(features: csr_matrix = FEATURES, keys: np.ndarray = KEYS, dtype: torch.dtype = torch.float64) -> SparseRows:
    return SparseRows(features, keys, dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [FEATURES, DENSE], ids=["sparse", "dense"])
@pytest.mark.parametrize("before", [None, 2.0], ids=["no gradient yet", "added to one"])
def test_the_sparse_product_is_the_dense_one_both_ways(
    dtype: torch.dtype, features: csr_matrix, before: float | None
) -> None:
    dense = torch.from_numpy(features.toarray()).to(dtype)
    weight = torch.randn(6, 4, dtype=dtype, requires_grad=True)
    weight.grad = None if before is None else torch.full_like(weight, before)
    outgoing = torch.randn(9, 4, dtype=dtype)
    (rows(features, dtype=dtype) @ weight).backward(outgoing)
    assert weight.grad is not None
    assert torch.allclose(rows(features, dtype=dtype) @ weight, dense @ weight, rtol=1e-5, atol=1e-6)
    assert torch.allclose(weight.grad, dense.T @ outgoing + (before or 0), rtol=1e-5, atol=1e-6)


def test_empty_rows_and_empty_blocks() -> None:
    nothing = csr_matrix((3, 6), dtype=np.float32)
    assert (rows(nothing, np.arange(3)) @ torch.ones(6, 4, dtype=torch.float64)).tolist() == [[0] * 4] * 3
    none = csr_matrix((0, 6), dtype=np.float32)
    assert (rows(none, np.arange(0)) @ torch.ones(6, 4, dtype=torch.float64)).shape == (0, 4)


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_gradients_numerically(name: str) -> None:
    settings = EncoderSettings(name=name, dim=4, embedding=5, hidden=(6,))  # type: ignore[arg-type]
    encoder = make_encoder(6, settings, torch.Generator().manual_seed(0)).double()
    target = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss() -> torch.Tensor:
        return (encoder(rows()) * target).sum()

    loss().backward()
    step = 1e-6
    for parameter in encoder.parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad
        assert gradient is not None
        for place in (0, len(flat) // 2, len(flat) - 1):
            flat[place] += step
            up = loss().item()
            flat[place] -= 2 * step
            down = loss().item()
            flat[place] += step
            assert gradient.view(-1)[place].item() == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-8)


def test_the_papers_sizes() -> None:
    encoder = make_encoder(100, EncoderSettings(name="mlp"), torch.Generator())
    assert [tuple(p.shape) for p in encoder.parameters() if p.dim() == 2] == [
        (100, 512),
        (1024, 512),
        (1024, 1024),
        (512, 1024),
    ]
    assert len(list(make_encoder(100, EncoderSettings(name="linear"), torch.Generator()).parameters())) == 1


def test_output_has_unit_length_except_for_an_instance_without_features() -> None:
    features = FEATURES.tolil()
    features[4] = 0
    g = make_encoder(6, EncoderSettings(name="mlp", dim=4), torch.Generator().manual_seed(0)).double()(
        rows(features.tocsr())
    )
    length = g.norm(dim=1).detach()
    assert length[4] == 0
    assert torch.allclose(length[[0, 1, 2, 3, 5, 6, 7, 8]], torch.ones(8, dtype=torch.float64))


def test_the_frameworks_start_maps_averaged_features_to_nearly_one_direction() -> None:
    """The reason for the default `he`: with torch's own biases, different instances start almost alike."""
    features = scale_rows(random_split(50, 200, 2, seed=1).features, "mean")

    def mean_cosine(start: str) -> float:
        settings = EncoderSettings(name="mlp", start=start)  # type: ignore[arg-type]
        encoder = make_encoder(200, settings, torch.Generator().manual_seed(0))
        g = encoder(SparseRows(features, np.arange(50), torch.float32, "cpu")).detach()
        return (g @ g.T).mean().item()

    assert mean_cosine("framework") > 0.9
    assert mean_cosine("he") < mean_cosine("framework") - 0.1


def test_dropout_depends_on_the_instance_not_on_its_block() -> None:
    h = torch.ones(9, 50, dtype=torch.float64)
    dropout = Dropout(0.5, 3, h)
    keys = torch.arange(9)
    whole = dropout(h, keys, layer=1)
    assert torch.equal(dropout(h[[7, 2]], keys[[7, 2]], layer=1), whole[[7, 2]])
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(dropout(h, keys, layer=2), whole)


def test_dropout_keeps_the_mean_and_drops_the_rate() -> None:
    h = torch.ones(4000, 100)
    dropped = Dropout(0.3, 3, h)(h, torch.arange(4000), layer=0)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)


def test_row_scaling_by_hand() -> None:
    matrix = csr_matrix(np.array([[3, 4, 0], [0, 0, 0], [1, 1, 1]], dtype=np.float32))
    assert np.allclose(scale_rows(matrix, "unit").toarray()[0], [0.6, 0.8, 0])
    assert np.allclose(scale_rows(matrix, "mean").toarray()[:2], [[1.5, 2, 0], [0, 0, 0]])
    assert scale_rows(matrix, "raw") is matrix


def test_mixed_precision_is_the_same_map_to_three_digits_and_keeps_its_weights() -> None:
    full, mixed = (
        make_encoder(
            6,
            EncoderSettings(name="mlp", dim=4, embedding=5, hidden=(6,), precision=precision),  # type: ignore[arg-type]
            torch.Generator().manual_seed(0),
        )
        for precision in ("full", "mixed")
    )
    g, near = full(rows(dtype=torch.float32)), mixed(rows(dtype=torch.float32))
    assert near.dtype == torch.float32 and not torch.equal(g, near)
    assert torch.allclose(g, near, atol=0.03)
    near.square().sum().backward()
    assert {p.dtype for p in mixed.parameters()} == {p.grad.dtype for p in mixed.parameters() if p.grad is not None}
