"""Losses over all labels: owners of positives give the centralised loss and gradient, and Newton steps solve it.

The centralised side is computed here densely and literally, with every label of every instance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import fedalc
from fedalc.errors import ConfigError
from fedalc.methods.losses import SET_LOSSES
from fedalc.testing.engines import assert_engines_equal
from fedalc.training.federated import FederatedTraining
from tests.problems import federated, random_split

TRAIN = random_split(50, 20, 7, seed=11)
LABELLED = np.flatnonzero(TRAIN.labels.getnnz(axis=1))  # the others are on no client
X = torch.from_numpy(TRAIN.features.toarray().astype(np.float64)[LABELLED])
Y = torch.from_numpy(TRAIN.labels.toarray().astype(np.float64)[LABELLED])
PAIRS = int(Y.sum())
LOSSES = tuple(SET_LOSSES)
ENCODERS: dict[str, dict[str, Any]] = {
    "an axis per label": {"name": "linear", "start": "he", "dim": 9},
    "fewer axes than labels": {"name": "linear", "start": "he", "dim": 4},
    "mlp": {"name": "mlp", "dim": 9, "embedding": 5, "hidden": (8, 7), "dropout": 0.0, "shortcut": False},
}


def centralised(scores: Tensor, loss: str) -> Tensor:
    """The textbook loss of all instances, each with its positive and its negative labels."""
    if loss == "logistic":
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, Y, reduction="sum")
    if loss == "squared-hinge":
        return (1 - (2 * Y - 1) * scores).clamp(min=0).square().sum()
    target = Y / Y.sum(1, keepdim=True) if loss == "softmax" else Y
    return torch.nn.functional.cross_entropy(scores, target, reduction="sum")


def made(engine: str, loss: str, **changes: Any) -> FederatedTraining:
    values: dict[str, Any] = {
        "dtype": "float64",
        "engine": engine,
        "block_rows": 7,
        "method": "fedalc-exact",
        "client": {"loss": loss},
        "server": {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0},
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return federated(fedalc.experiment(values), TRAIN)


def outputs(training: FederatedTraining) -> Tensor:
    encoder = training.model.encoder
    h = X @ encoder.embedding
    for depth, layer in enumerate(encoder.layers):
        h = layer(torch.relu(h) if depth else h)
    return h


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_owners_give_the_centralised_gradient(engine: str, encoder: str, loss: str) -> None:
    training = made(engine, loss, encoder=ENCODERS[encoder], client={"learning_rate": 0.25})
    theta = training.model.theta
    total = centralised(outputs(training) @ training.model.W.T, loss)
    gradients = torch.autograd.grad(total, theta)
    before = [parameter.detach().clone() for parameter in theta]
    assert training.run_round() == pytest.approx(total.item() / PAIRS, rel=1e-12)
    for start, now, gradient in zip(before, theta, gradients, strict=True):
        assert gradient.abs().max() > 0
        torch.testing.assert_close(start - now.detach(), 0.25 * gradient / PAIRS, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_are_derivatives(loss: str) -> None:
    scores = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    rest = SET_LOSSES[loss].rest
    (expected,) = torch.autograd.grad(rest(scores).sum(), scores)
    torch.testing.assert_close(SET_LOSSES[loss].slope(scores.detach()), expected)
    assert torch.autograd.gradcheck(rest, (scores,))
    moved = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    step, slope = 1e-6, SET_LOSSES[loss].slope
    numeric = (slope(scores.detach() + step * moved) - slope(scores.detach() - step * moved)) / (2 * step)
    torch.testing.assert_close(SET_LOSSES[loss].curve(scores.detach(), moved), numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dim", [9, 4])
def test_curvature_is_the_second_derivative(loss: str, dim: int) -> None:
    """The product H p of both engines equals the derivative of the dense, centralised gradient along p."""
    for engine in ("fused", "clients"):
        training = made(engine, loss, encoder={"name": "linear", "start": "he", "dim": dim})
        (theta,) = training.model.theta
        direction = torch.randn(*theta.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        total = centralised(X @ theta @ training.model.W.T, loss)
        (slope,) = torch.autograd.grad(total, theta, create_graph=True)
        (expected,) = torch.autograd.grad((slope * direction).sum(), theta)
        found, traffic = training.engine.curvature(training.model, direction, training.federation.clients)
        torch.testing.assert_close(found, expected / PAIRS, rtol=1e-9, atol=1e-12)
        size, clients = theta.numel() * 8, len(training.federation.clients)
        assert (traffic.down, traffic.up) == (2 * size * clients, size * clients)


@pytest.mark.few(8)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "case",
    [
        {"client": {"set_size": "expected"}},
        {"client": {"set_size": "ignored"}},
        {"server": {"participation": 0.4}},
        {"client": {"sample": 0.5}},
        {"encoder": {"name": "mlp", "embedding": 5, "hidden": (8, 7), "dropout": 0.3, "shortcut": False}},
        {"clients": "labels", "embeddings": {"start": "orthogonal"}},
        {"server": {"optimizer": "newton", "newton_rounds": 3}},
        {"server": {"optimizer": "newton"}, "encoder": {"name": "linear", "dim": 4}},
        {"server": {"optimizer": "newton"}, "encoder": {"name": "linear", "constant": 0.7}},
        {"server": {"participation": 0.4}, "encoder": {"name": "linear", "constant": 0.7}},
        {"server": {"optimizer": "newton"}, "encoder": {"name": "linear", "constant": 0.7, "dim": 4}},
        {"server": {"optimizer": "newton"}, "encoder": {"name": "random-features", "random_features": 6}},
    ],
    ids=str,
)
def test_the_engines_agree(loss: str, case: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        "method": "fedalc-exact",
        "block_rows": 7,
        "encoder": {"name": "linear", "dim": 9},
        "client": {"loss": loss, "learning_rate": 0.5},
        "server": {"optimizer": "sgd", "learning_rate": 0.5},
    }
    for key, value in case.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    newton = settings["server"]["optimizer"] == "newton"  # a step takes some rounds
    assert_engines_equal(settings, TRAIN, rounds=5 if newton else 3)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["logistic", "squared-hinge"])
def test_a_sample_of_the_labels_has_no_bias(loss: str) -> None:
    """The mean of the gradients over all samples is the gradient with all labels; both engines draw the same one."""
    drawn = [made(engine, loss, encoder=ENCODERS["an axis per label"], client={"negatives": 3, "learning_rate": 1.0})
             for engine in ("fused", "clients")]  # fmt: skip
    start = drawn[0].model.theta[0].detach().clone()
    whole = made("fused", loss, encoder=ENCODERS["an axis per label"], client={"learning_rate": 1.0})
    whole.run_round()
    expected = start - whole.model.theta[0].detach()
    total, count = torch.zeros_like(start), 600
    for number in range(count):
        for training in drawn if number < 3 else drawn[:1]:
            with torch.no_grad():
                training.model.theta[0].copy_(start)
            training.run_round()
        if number < 3:
            torch.testing.assert_close(drawn[0].model.theta[0], drawn[1].model.theta[0], rtol=1e-10, atol=1e-12)
        total += start - drawn[0].model.theta[0].detach()
    assert ((total / count - expected).norm() / expected.norm()).item() < 0.1
    assert ((start - drawn[0].model.theta[0].detach() - expected).norm() / expected.norm()).item() > 0.3


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("encoder", ["an axis per label", "fewer axes than labels"])
def test_newton_reaches_the_centralised_solution(encoder: str, loss: str) -> None:
    """L-BFGS of scipy, on all data in one place, finds the same minimum."""
    ridge = 0.3
    server = {"optimizer": "newton", "ridge": ridge, "newton_rounds": 20}
    training = made("fused", loss, encoder={**ENCODERS[encoder], "start": "zero"}, server=server, rounds=200)
    for _ in range(70):
        reported = training.run_round()
    W, (theta,) = training.model.W, training.model.theta
    shape = tuple(theta.shape)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat).reshape(shape).requires_grad_()
        value = centralised(X @ point @ W.T, loss) + ridge * point.square().sum()
        (slope,) = torch.autograd.grad(value, point)
        return value.item(), slope.numpy().ravel()

    options = {"maxiter": 2000, "gtol": 1e-9, "ftol": 1e-15}
    found = minimize(objective, np.zeros(theta.numel()), jac=True, method="L-BFGS-B", options=options)
    assert objective(theta.detach().numpy().ravel())[0] == pytest.approx(found.fun, rel=1e-7)
    assert reported == pytest.approx(found.fun / PAIRS, rel=1e-4)
    assert np.abs(theta.detach().numpy().ravel() - found.x).max() < 2e-3 * np.abs(found.x).max()


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("loss", ["logistic", "squared-hinge"])
def test_the_first_newton_step_follows_from_sums(engine: str, loss: str) -> None:
    """With a constant column: the step from θ = 0, in one round, equals one with the dense Hessian of all data."""
    ridge, constant = 0.3, 0.7
    encoder = {"name": "linear", "start": "zero", "dim": 9, "constant": constant}
    training = made(engine, loss, encoder=encoder, server={"optimizer": "newton", "ridge": ridge})
    reported = training.run_round()
    design = torch.cat([X, torch.full((len(X), 1), constant, dtype=torch.float64)], dim=1)
    W, (theta,) = training.model.W, training.model.theta
    start = torch.zeros(theta.numel(), dtype=torch.float64)

    def objective(flat: Tensor) -> Tensor:
        point = flat.reshape(theta.shape)
        return centralised(design @ point @ W.T, loss) + ridge * point.square().sum()

    gradient = torch.func.grad(objective)(start)
    hessian = torch.func.hessian(objective)(start)
    step = torch.linalg.solve(hessian, -gradient)
    torch.testing.assert_close(theta.detach().ravel(), step, rtol=1e-8, atol=1e-10)
    model = objective(start) + gradient @ step + 0.5 * step @ hessian @ step
    assert reported == pytest.approx(model.item() / PAIRS, rel=1e-9)
    losses = [training.run_round() for _ in range(12)]
    assert losses[-1] < losses[0]


def test_newton_goes_on_after_a_restart() -> None:
    server = {"optimizer": "newton", "newton_rounds": 3}
    training, other = (
        made("fused", "squared-hinge", encoder={"name": "linear", "dim": 9}, server=server) for _ in range(2)
    )
    for rounds in range(1, 7):
        training.run_round()
        saved = {name: tensor.detach().clone() for name, tensor in training.tensors().items()}
        other.restore(saved, training.facts())
        training.run_round()
        other.run_round()
        assert torch.equal(training.model.theta[0], other.model.theta[0]), rounds


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fedavg", "client": {"loss": "logistic"}}, "must be fixed and known to all"),
        ({"method": "fedmlh", "client": {"loss": "softmax"}}, "must be fixed and known to all"),
        ({"method": "fedalc-exact", "client": {"loss": "hinge"}}, "needs a loss over all labels"),
        ({"method": "fedalc-oneshot", "client": {"loss": "logistic"}}, 'needs client.loss = "square"'),
        ({"method": "fedalc-exact", "client": {"loss": "softmax", "negatives": 5}}, "a bias"),
        (
            {"method": "fedalc-exact", "client": {"loss": "logistic"}, "server": {"optimizer": "cg"}},
            "a quadratic only with client.loss",
        ),
        ({"method": "fedavg-fixed", "server": {"optimizer": "newton"}}, "convex only with client.loss logistic"),
        ({"method": "feduv", "client": {"loss": "logistic"}}, "a loss of its own"),
    ],
    ids=str,
)
def test_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedalc.experiment(settings)
