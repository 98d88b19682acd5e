"""Encoders that are linear in θ: what θ is multiplied with, with a constant column and with random features."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.config.schema import EncoderSettings
from fedalc.core.seeds import derived_seed, torch_generator
from fedalc.errors import ConfigError, FedalcError
from fedalc.models.encoders import Encoder, SparseRows, encoder_shape, make_encoder, random_features
from fedalc.models.trained import TrainedModel
from tests.models.encoders.test_text import DENSE, FEATURES, KEYS, rows
from tests.problems import federated, small_dataset

SEED = 3
DESIGNS: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear"},
    "constant": {"name": "linear", "constant": 0.5},
    "relu": {"name": "random-features", "random_features": 5, "scale": 1.5},
    "cosine": {"name": "random-features", "random_features": 5, "activation": "cosine", "constant": 2.0},
    "alone": {"name": "random-features", "random_features": 5, "linear_part": False},
}


def made(design: str, features: int = 6, seed: int = SEED, **more: Any) -> Encoder:
    settings = EncoderSettings.model_validate({**DESIGNS[design], "dim": 4, "output": "raw", **more})
    return make_encoder(features, settings, torch_generator(seed, "encoder")).double()


def literal_design(X: np.ndarray, design: str, seed: int = SEED) -> np.ndarray:
    """Return the design in plain numpy, from the definition."""
    values = {"constant": 0.0, "scale": 1.0, "activation": "relu", "linear_part": True, **DESIGNS[design]}
    parts = [X] if values["linear_part"] else []
    if values["name"] == "random-features":
        m, drawn = values["random_features"], derived_seed(derived_seed(seed, "encoder"), "random features")
        R = np.random.Generator(np.random.PCG64(drawn)).standard_normal((X.shape[1], m)) * values["scale"]
        b = np.random.Generator(np.random.PCG64(derived_seed(drawn, "phases"))).uniform(0, 2 * np.pi, m)
        parts.append(np.sqrt(2 / m) * (np.maximum(X @ R, 0) if values["activation"] == "relu" else np.cos(X @ R + b)))
    if values["constant"]:
        parts.append(np.full((len(X), 1), values["constant"]))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("features", [FEATURES, DENSE], ids=["sparse", "dense"])
@pytest.mark.parametrize("before", [None, 2.0], ids=["no gradient yet", "added to one"])
@pytest.mark.parametrize("design", DESIGNS)
def test_output_and_gradient_are_those_of_the_dense_design(
    design: str, before: float | None, features: csr_matrix
) -> None:
    encoder = made(design)
    (theta,) = encoder.parameters()
    wanted = torch.from_numpy(literal_design(features.toarray().astype(np.float64), design))
    assert encoder.width == len(theta) == wanted.shape[1]
    assert torch.allclose(encoder.design(rows(features)).dense(), wanted, rtol=1e-12, atol=1e-14)
    theta.grad = None if before is None else torch.full_like(theta, before)
    outgoing = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    g = encoder(rows(features))
    g.backward(outgoing)
    assert theta.grad is not None
    assert torch.allclose(g, wanted @ theta, rtol=1e-12, atol=1e-14)
    assert torch.allclose(theta.grad, wanted.T @ outgoing + (before or 0), rtol=1e-12, atol=1e-14)


def test_without_a_constant_the_design_is_the_rows_themselves() -> None:
    batch = rows()
    assert made("linear").design(batch) is batch


@pytest.mark.parametrize("design", ["constant", "relu", "cosine"])
def test_some_features_keep_the_rows_of_the_columns(design: str) -> None:
    encoder, features = made(design), torch.tensor([1, 4])
    few = csr_matrix(FEATURES.toarray() * np.isin(np.arange(6), features.numpy()))
    numbered_anew = rows(csr_matrix(few.toarray()[:, features.numpy()]))
    part = encoder.for_features(features)
    assert torch.allclose(part(numbered_anew), encoder(rows(few)), rtol=1e-12, atol=1e-14)
    assert encoder.rows_for(features).tolist() == [1, 4, *range(6, encoder.width)]
    assert not made("alone").takes_some_features and encoder.takes_some_features


def test_a_constant_is_one_more_row_that_everyone_starts_alike() -> None:
    assert [tuple(p.shape) for p in made("constant").parameters()] == [(7, 4)]
    assert not made("constant", start="zero").embedding.any()


# --- random features ---


def columns(design: str, features: csr_matrix = FEATURES, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    batch = SparseRows(features, np.arange(features.shape[0]), dtype, "cpu")
    return made(design, features.shape[1], **more).columns(batch)[0]


def test_everyone_draws_the_same_in_any_precision() -> None:
    assert torch.equal(columns("relu"), columns("relu"))
    assert not torch.equal(columns("relu"), columns("relu", seed=4))
    single = columns("relu", dtype=torch.float32)
    assert single.dtype == torch.float32 and torch.allclose(single.double(), columns("relu"), rtol=1e-5, atol=1e-6)


def test_what_is_drawn_is_not_trained_and_not_copied() -> None:
    encoder: Any = made("cosine")
    assert [name for name, _ in encoder.named_parameters()] == ["embedding"] and not list(encoder.buffers())
    assert copy.deepcopy(encoder).projection is encoder.projection
    assert encoder.drawn == 6 * 5 and made("constant").drawn == 0


def test_products_of_random_features_approach_their_kernels() -> None:
    """cos: the Gaussian kernel (Rahimi and Recht, 2007). relu: the arc-cosine kernel of degree 1, ‖x‖² for x = y."""
    X = np.random.default_rng(5).normal(size=(6, 8))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    many, features = {"random_features": 200_000, "scale": 1.7}, csr_matrix(X)
    cosine, relu = columns("cosine", features, **many), columns("relu", features, **many)
    distance = ((X[:, None] - X[None]) ** 2).sum(2)
    assert np.allclose((cosine @ cosine.T).numpy(), np.exp(-(1.7**2) * distance / 2), atol=0.02)
    angle = np.arccos(np.clip(X @ X.T, -1, 1))
    arc_cosine = 1.7**2 * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
    assert np.allclose((relu @ relu.T).numpy(), arc_cosine, atol=0.05)


def test_a_matrix_that_is_too_large_is_refused_before_it_is_drawn() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.random_features.* 8\.2 GB, more than the 2\.1 GB .* at most 536"):
        encoder_shape(1_000_000, EncoderSettings(name="random-features"))
    assert encoder_shape(200_000, EncoderSettings(name="random-features")).drawn == 200_000 * 2048
    data = small_dataset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_features, "MOST_DRAWN", 20 * 7)
        with pytest.raises(ConfigError, match="use at most 7, or the encoder linear"):
            fedalc.train(experiment("relu", random_features=8), data=data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constant": -1}, "encoder.constant"),
        ({"constant": float("nan")}, "encoder.constant"),
        ({"random_features": 0}, "encoder.random_features"),
        ({"activation": "tanh"}, "encoder.activation"),
        ({"scale": 0}, "encoder.scale"),
        ({"dropout": 0.5}, "the encoder random-features does not support 0.5"),
        ({"shortcut": True}, "the encoder random-features does not support True"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedalc.experiment({"method": "fedalc", "encoder": {"name": "random-features", **changes}})


# --- training and the saved model ---


def experiment(design: str, method: str = "fedalc-oneshot", **encoder: Any) -> Any:
    keys: dict[str, Any] = {"method": method, "dtype": "float64", "block_rows": 7, "selection": {"validation": 0}}
    return fedalc.experiment({**keys, "seed": SEED, "encoder": {**DESIGNS[design], "dim": 9, **encoder}})


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("design", DESIGNS)
def test_one_round_is_ridge_regression_on_the_design(design: str, engine: str) -> None:
    data = small_dataset()
    settings = experiment(design, features="raw").model_copy(update={"engine": engine})
    training = federated(settings, data.train)
    training.run_round()
    labelled = data.train.labels.getnnz(axis=1) > 0
    X = literal_design(data.train.features.toarray().astype(np.float64)[labelled], design)
    Y = data.train.labels.toarray().astype(np.float64)[labelled]
    weights = (Y.sum(0) + settings.client.label_offset) ** -settings.client.label_power
    T = (Y * weights / weights.max()) @ training.model.W.numpy()
    wanted = np.linalg.solve(X.T @ X + settings.server.ridge * np.eye(X.shape[1]), X.T @ T)
    assert np.allclose(training.model.theta[0].detach().numpy(), wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize("design", ["constant", "relu", "cosine", "alone"])
def test_conjugate_gradients_reach_the_solution_of_one_round(design: str) -> None:
    data = small_dataset()
    one, many = (federated(experiment(design, m), data.train) for m in ("fedalc-oneshot", "fedalc-exact"))
    loss = one.run_round()
    losses = [many.run_round() for _ in range(60)]
    assert losses[-1] == pytest.approx(loss, rel=1e-9)
    assert torch.allclose(many.model.theta[0], one.model.theta[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("design", ["constant", "relu", "cosine", "alone"])
def test_a_saved_model_predicts_the_same(design: str, tmp_path: Path) -> None:
    data = small_dataset()
    run = fedalc.train(experiment(design), data=data, folder=tmp_path / "run")
    again = TrainedModel.load(tmp_path / "run" / "model")
    for ours, theirs in zip(run.model.predict(data.test.features), again.predict(data.test.features), strict=True):
        assert np.array_equal(ours, theirs)
    scaled = data.test.features.toarray().astype(np.float64)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True).clip(1e-300)
    by_hand = literal_design(scaled, design) @ again.model.theta[0].detach().numpy() @ again.model.W.numpy().T
    assert np.allclose(-np.sort(-by_hand, axis=1)[:, :5], again.predict(data.test.features)[1], atol=1e-6)


def test_a_model_of_several_encoders_is_saved_with_its_seed(tmp_path: Path) -> None:
    data = small_dataset()
    keys = {"method": "fedmlh", "rounds": 2, "hashing": {"tables": 2, "buckets": 5}, "selection": {"validation": 0}}
    run = fedalc.train(fedalc.experiment({**keys, "seed": 9, "encoder": {**DESIGNS["relu"], "dim": 4}}), data=data)
    run.model.save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model")
    assert np.array_equal(run.model.predict(data.test.features)[1], again.predict(data.test.features)[1])


def test_features_that_cannot_be_drawn_again_are_an_error() -> None:
    state = made("relu").state_dict()
    other = {**state, "_extra_state": state["_extra_state"] + torch.tensor([0, 1, 0, 0, 0])}
    with pytest.raises(FedalcError, match="cannot be drawn again: numpy"):
        made("relu").load_state_dict(other)
    for broken in (state["_extra_state"][:2], state["_extra_state"].double(), -state["_extra_state"]):
        with pytest.raises(ValueError, match="seed"):
            made("relu").load_state_dict({**state, "_extra_state": broken})
    other_seed = made("relu", seed=8)
    other_seed.load_state_dict(state)
    batch = SparseRows(FEATURES, KEYS, torch.float64, "cpu")
    assert torch.equal(other_seed(batch), made("relu")(batch))
