"""Real apps on a grid in one process give θ and W of engine `clients`, for any assignment of labels to parties.

Messages carry float32 without loss, and the sums differ only in the order of addition: float32 results agree to 1e-5 of
their size, float64 ones to 1e-10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Split
from fedalc.errors import ConfigError
from fedalc.methods.losses import SET_LOSSES
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import LINEAR, SETTINGS, asked, literal_twin, run


def assert_equal(
    tmp_path: Path,
    train: Split,
    parties: dict[int, dict[str, Any]],
    method: str,
    settings: dict[str, Any],
    rounds: int = 2,
) -> None:
    folder = tmp_path / "run"
    found = run(LocalGrid(parties), folder, asked(method, settings, **{"num-server-rounds": rounds}))
    overrides = [f"{key}={value!r}".replace("'", '"') for key, value in settings.items()]
    literal_settings = experiment({"method": method, "engine": "clients", "rounds": rounds}, overrides=overrides)
    literal = literal_twin(literal_settings, train, parties[7]["key"])
    start = [parameter.clone() for parameter in literal.model.theta]
    for _ in range(1 if literal.method.one_round else rounds):
        literal.run_round()
    close = {"rtol": 1e-5, "atol": 1e-6} if literal_settings.dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    expected = literal.averaged_model()
    moved = max((before - after).abs().max().item() for before, after in zip(start, expected.theta, strict=True))
    assert moved > 1e-3, "nothing was learnt"
    for ours, theirs in zip(found.model.theta, expected.theta, strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    torch.testing.assert_close(found.model.W, expected.W, **close)


@pytest.mark.few(5)
@pytest.mark.parametrize("weights", ["samples", pytest.param("uniform", marks=pytest.mark.long)])
@pytest.mark.parametrize("method", [method for method in METHODS if not METHODS[method].one_round])
def test_every_method(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str, weights: str
) -> None:
    assert_equal(tmp_path, train, parties, method, SETTINGS | {"server.weights": weights})


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed"])
def test_in_float64_with_minibatches_and_some_clients_a_round(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str
) -> None:
    local = {"dtype": "float64", "client.epochs": 2, "client.batch_size": 3, "server.participation": 0.6}
    assert_equal(tmp_path, train, parties, method, SETTINGS | local)


DESIGNS = {
    "linear": {},
    "constant": {"encoder.constant": 0.7},
    "random": {"encoder.name": "random-features", "encoder.random_features": 6, "encoder.constant": 0.7},
    "random alone": {"encoder.name": "random-features", "encoder.random_features": 6, "encoder.linear_part": False},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("design", ["constant", "random", "random alone"])
@pytest.mark.parametrize("method", ["fedalc", "fedmlh"])
def test_linear_encoders(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str, design: str
) -> None:
    """Parties draw R themselves, the same for all of them."""
    linear = {"encoder.name": "linear", "encoder.dropout": 0.0, "dtype": "float64", "seed": 5}
    assert_equal(tmp_path, train, parties, method, SETTINGS | linear | DESIGNS[design])


@pytest.mark.few(1)
@pytest.mark.parametrize("design", ["constant", "random"])
def test_conjugate_gradients_on_more_columns(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], design: str
) -> None:
    square = {"client.set_size": "exact", "server.optimizer": "cg", "dtype": "float64"}
    assert_equal(tmp_path, train, parties, "fedalc-exact", LINEAR | square | DESIGNS[design], rounds=3)


@pytest.mark.few(1)
@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
def test_the_square_loss(tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], set_size: str) -> None:
    square = {"client.set_size": set_size, "client.label_power": 0.3, "server.optimizer": "cg", "dtype": "float64"}
    assert_equal(tmp_path, train, parties, "fedalc-exact", LINEAR | square, rounds=3)


ENCODERS: dict[str, dict[str, Any]] = {
    "an axis per label": LINEAR | {"embeddings.start": "by-frequency"},
    "no axes": LINEAR | {"embeddings.start": "orthogonal"},
    "fewer columns than labels": LINEAR | {"embeddings.start": "by-frequency", "encoder.dim": 4},
    "mlp": SETTINGS | {"encoder.output": "raw", "encoder.dim": 9, "embeddings.start": "by-frequency"},
    "mlp with fewer": SETTINGS | {"encoder.output": "raw", "encoder.dim": 4, "embeddings.start": "orthogonal"},
}
SGD: dict[str, Any] = {"dtype": "float64", "server.optimizer": "sgd", "server.learning_rate": 0.5, "block_rows": 5}
SGD |= {"server.aggregation": "mean", "client.learning_rate": 0.5}


@pytest.mark.few(2)
@pytest.mark.parametrize("set_size", ["expected", pytest.param("exact", marks=pytest.mark.long)])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("loss", SET_LOSSES)
def test_losses_over_all_labels(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], loss: str, encoder: str, set_size: str
) -> None:
    """Parties get all rows of W, or the axes of the labels, and the shares 1/m."""
    asking = ENCODERS[encoder] | SGD | {"client.loss": loss, "client.set_size": set_size}
    assert_equal(tmp_path, train, parties, "fedalc-exact", asking)


@pytest.mark.few(1)
@pytest.mark.parametrize("encoder", ["an axis per label", "fewer columns than labels", "mlp"])
@pytest.mark.parametrize("loss", ["logistic", "squared-hinge"])
def test_a_sample_of_the_labels(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], loss: str, encoder: str
) -> None:
    """Parties draw the same labels as the server, and get the rows of these alone."""
    asking = ENCODERS[encoder] | SGD | {"client.loss": loss, "client.negatives": 3, "server.participation": 0.6}
    assert_equal(tmp_path, train, parties, "fedalc-exact", asking)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedalc-fixed", "fedavg-fixed", "flag", "fedetf"])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_losses_over_all_labels_with_other_fixed_rows(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], loss: str, method: str
) -> None:
    local = {"client.epochs": 2, "client.batch_size": 3, "client.set_size": "ignored", "server.optimizer": "adam"}
    asking = ENCODERS["mlp with fewer"] | SGD | local | {"server.learning_rate": 0.01, "client.loss": loss}
    assert_equal(tmp_path, train, parties, method, asking)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "design", ["linear", *(pytest.param(name, marks=pytest.mark.long) for name in ("constant", "random"))]
)
@pytest.mark.parametrize("encoder", ["an axis per label", "fewer columns than labels"])
@pytest.mark.parametrize("loss", SET_LOSSES)
def test_newton_steps(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], loss: str, encoder: str, design: str
) -> None:
    """A gradient or, with a constant and an axis per label, sums; then products H p; and the next step's gradient."""
    newton = {"client.loss": loss, "server.optimizer": "newton", "server.newton_rounds": 2, "dtype": "float64"}
    asking = ENCODERS[encoder] | newton | {"server.ridge": 0.3, "block_rows": 5} | DESIGNS[design]
    assert_equal(tmp_path, train, parties, "fedalc-exact", asking, rounds=6)


@pytest.mark.few(4)
@pytest.mark.parametrize("set_size", ["exact", "expected"])
@pytest.mark.parametrize("design", DESIGNS)
def test_one_round(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], set_size: str, design: str
) -> None:
    square = {"client.set_size": set_size, "client.label_power": 0.3, "dtype": "float64"}
    assert_equal(tmp_path, train, parties, "fedalc-oneshot", LINEAR | square | DESIGNS[design])


@pytest.mark.parametrize("method", ["fedncm", "fed3r"])
def test_one_round_with_an_axis_per_label(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str
) -> None:
    assert_equal(tmp_path, train, parties, method, LINEAR | {"dtype": "float64", "encoder.dim": 7})


def test_an_axis_per_label_has_to_be_asked_for(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.dim: fed3r with 7 labels of the parties: use 7"):
        run(LocalGrid(parties), tmp_path / "run", asked("fed3r", LINEAR))
