"""Positive-only clients give the centralised gradient and its solution, both computed densely here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

import fedalc
from fedalc.data import load_dataset
from fedalc.models.encoders import Chance, TextEncoder
from fedalc.training.federated import FederatedTraining
from tests.problems import federated, random_split, real_data, small_dataset

TRAIN = random_split(50, 20, 7, seed=11)
LABELLED = np.flatnonzero(TRAIN.labels.getnnz(axis=1))  # the others are on no client
X = TRAIN.features.toarray().astype(np.float64)[LABELLED]
Y = TRAIN.labels.toarray().astype(np.float64)[LABELLED]
PAIRS = int(Y.sum())
ENCODERS: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear", "start": "he"},
    "mlp": {"name": "mlp", "embedding": 5, "hidden": (8, 7), "dropout": 0.0, "shortcut": False},
}


def made(method: str = "fedalc-exact", **changes: Any) -> FederatedTraining:
    """Use several blocks, the last one short, and by default nine axes for seven labels."""
    values: dict[str, Any] = {"dtype": "float64", "block_rows": 7, "method": method, "encoder": {"dim": 9}}
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return federated(fedalc.experiment(values), TRAIN)


def raw_outputs(encoder: TextEncoder) -> Tensor:
    h = torch.from_numpy(X) @ encoder.embedding
    for depth, layer in enumerate(encoder.layers):
        h = layer(torch.relu(h) if depth else h)
    return h


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_an_mlp_with_a_shortcut_first_solves_and_then_trains(engine: str) -> None:
    """While the mlp outputs zero the shortcut is the linear encoder; then it stays fixed, and the mlp moves."""
    encoder = {**ENCODERS["mlp"], "shortcut": True}
    both = made(engine=engine, encoder=encoder, server={"solve_rounds": 6, "learning_rate": 0.01})
    linear = made(engine=engine, encoder={"name": "linear", "start": "zero"})
    losses = [(both.run_round(), linear.run_round()) for _ in range(6)]
    assert all(ours == pytest.approx(theirs, rel=1e-12) for ours, theirs in losses)
    shortcut = both.model.encoder.shortcut
    assert shortcut is not None and torch.allclose(shortcut, linear.model.theta[0], rtol=1e-10, atol=1e-12)
    assert not both.model.encoder.layers[-1].weight.any()
    solved = shortcut.detach().clone()
    at_solution = [both.run_round() for _ in range(30)]
    assert torch.equal(both.model.encoder.shortcut, solved) and both.model.encoder.layers[-1].weight.any()
    assert at_solution[-1] < at_solution[0] - 1e-4
    again = made(engine=engine, encoder=encoder, server={"solve_rounds": 6, "learning_rate": 0.01})
    again.restore({name: tensor.clone() for name, tensor in both.tensors().items()}, both.facts())
    assert both.run_round() == again.run_round()
    assert all(torch.equal(a, b) for a, b in zip(both.model.theta, again.model.theta, strict=True))


def label_weights(power: float) -> np.ndarray:
    weight = (Y.sum(0) + 30) ** -power
    return np.asarray(weight / weight.max())


def targets(W: Tensor, power: float) -> Tensor:
    """Return Σ_{u∈L} a_u w_u of each instance."""
    return torch.from_numpy(Y * label_weights(power)) @ W


def counted(set_size: str) -> np.ndarray:
    """Return the weight of each instance's ‖g‖², summed over its owners."""
    m = Y.sum(1)
    if set_size == "exact":
        return np.ones(len(Y))
    if set_size == "ignored":
        return m
    mean = np.array([m[Y[:, u] > 0].mean() for u in range(7)])
    return np.asarray(Y @ (1 / mean))


def from_clients(training: FederatedTraining) -> tuple[list[Tensor], float]:
    """Return the clients' averaged change as a gradient of the sum over pairs, and their loss as that sum."""
    chance = Chance(training.settings, 1, training.model.W)
    result = training.engine.run(training.model, training.federation.clients, chance, 1)
    rate = training.settings.client.learning_rate
    return [change / rate * PAIRS for change in result.change], result.loss * PAIRS


def assert_gradients(ours: list[Tensor], objective: Tensor, training: FederatedTraining) -> None:
    wanted = torch.autograd.grad(objective, training.model.theta)
    assert max(gradient.abs().max().item() for gradient in wanted) > 0.1
    for mine, central in zip(ours, wanted, strict=True):
        assert torch.allclose(mine, central, rtol=1e-10, atol=1e-12)


# --- the identity ---


@pytest.mark.parametrize("power", [0.0, 0.2])
@pytest.mark.parametrize("dim", [9, 4])  # an axis for each label, or not: the gradient is the same all the same
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_owners_together_give_the_centralised_gradient(engine: str, encoder: str, dim: int, power: float) -> None:
    """Σ_j ‖g_j - Σ_{u∈L} a_u w_u‖², by autograd. The losses are equal too if the rows are orthonormal."""
    keys: dict[str, Any] = {"encoder": {**ENCODERS[encoder], "dim": dim}, "server": {"optimizer": "sgd"}}
    training = made(engine=engine, client={"label_power": power}, **keys)
    W = training.model.W
    objective = (raw_outputs(training.model.encoder) - targets(W, power)).square().sum()
    ours, loss = from_clients(training)
    assert_gradients(ours, objective, training)
    orthonormal = torch.allclose(W @ W.T, torch.eye(7, dtype=torch.float64), atol=1e-12)
    assert orthonormal == (dim >= 7)
    if orthonormal:
        assert loss == pytest.approx(objective.item(), rel=1e-12)


@pytest.mark.parametrize("power", [0.0, 0.2])
@pytest.mark.parametrize("set_size", ["expected", "ignored"])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_without_m_it_is_a_reweighted_objective(engine: str, encoder: str, set_size: str, power: float) -> None:
    """Σ_j s_j ‖g_j - t_j/s_j‖² with t_j = Σ a_u w_u, and s_j = Σ_{u∈L} 1/E[m|u], or |L_j| where m is ignored."""
    keys: dict[str, Any] = {"encoder": ENCODERS[encoder], "server": {"optimizer": "sgd"}}
    training = made(engine=engine, client={"label_power": power, "set_size": set_size}, **keys)
    s = torch.from_numpy(counted(set_size)).unsqueeze(1)
    target = targets(training.model.W, power)
    objective = (s * (raw_outputs(training.model.encoder) - target / s).square()).sum()
    ours, loss = from_clients(training)
    assert_gradients(ours, objective, training)
    constant = target.square().sum() - (target.square() / s).sum()
    assert loss == pytest.approx((objective + constant).item(), rel=1e-12)


def test_m_comes_through_the_collection_and_is_paid_for() -> None:
    told, untold = (made(client={"set_size": set_size}).knowledge for set_size in ("exact", "expected"))
    assert told is not None and told.set_sizes is not None and untold is not None and untold.set_sizes is None
    np.testing.assert_array_equal(told.set_sizes[LABELLED], Y.sum(1))
    assert (told.bytes_down, untold.bytes_down) == (2 * PAIRS, 0)


@pytest.mark.parametrize("method", ["fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed"])
def test_the_loss_is_there_for_every_method(method: str) -> None:
    training = made(method, client={"loss": "square"}, encoder=ENCODERS["linear"], server={"optimizer": "sgd"})
    assert not training.model.encoder.unit
    objective = (raw_outputs(training.model.encoder) - targets(training.model.W, 0.0)).square().sum()
    assert_gradients(from_clients(training)[0], objective, training)


# --- its solution ---


def dense_solution(training: FederatedTraining, set_size: str, ridge: float, power: float = 0.2) -> np.ndarray:
    """(Xᵀ diag(s) X + ridge·I) θ = Xᵀ (Y diag(a) W)."""
    gram = X.T @ (X * counted(set_size)[:, None]) + ridge * np.eye(X.shape[1])
    return np.asarray(np.linalg.solve(gram, X.T @ targets(training.model.W, power).numpy()))


@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
@pytest.mark.parametrize("dim", [9, 4])
@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_one_round_solves_the_normal_equations(engine: str, dim: int, set_size: str) -> None:
    keys: dict[str, Any] = {"engine": engine, "encoder": {"dim": dim}, "client": {"set_size": set_size}}
    training = made("fedalc-oneshot", server={"ridge": 0.3}, **keys)
    loss = training.run_round()
    (theta,) = training.model.theta
    solved = dense_solution(training, set_size, 0.3)
    np.testing.assert_allclose(theta.detach().numpy(), solved, rtol=0, atol=1e-10)
    assert not np.allclose(solved, dense_solution(training, set_size, 1.0), atol=1e-3)
    # What is reported is the objective: the clients' mean loss there, and the penalty.
    g, s = X @ solved, counted(set_size)
    target = targets(training.model.W, 0.2).numpy()
    pairs = (s * (g**2).sum(1)).sum() - 2 * (g * target).sum() + (Y @ label_weights(0.2) ** 2).sum()
    assert loss == pytest.approx((pairs + 0.3 * (solved**2).sum()) / PAIRS, rel=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
def test_many_rounds_come_to_what_one_round_gives(engine: str, set_size: str) -> None:
    keys: dict[str, Any] = {"engine": engine, "client": {"set_size": set_size}, "server": {"ridge": 3.0}}
    once, many = made("fedalc-oneshot", **keys), made("fedalc-exact", **keys)
    least = once.run_round()
    reported = [many.run_round() for _ in range(X.shape[1] + 1)]
    assert torch.equal(once.model.W, many.model.W)
    assert reported[-1] == pytest.approx(least, rel=1e-12) and reported[5] < reported[2] < reported[0]
    assert torch.allclose(many.model.theta[0], once.model.theta[0], rtol=0, atol=1e-8)


@pytest.mark.long
def test_conjugate_gradients_do_not_depend_on_where_they_start_or_on_the_clients_rate() -> None:
    solutions = []
    for changes in ({}, {"encoder": {"start": "he"}}, {"client": {"learning_rate": 0.003}}):
        training = made(seed=5, **changes)
        for _ in range(X.shape[1] + 2):
            training.run_round()
        solutions.append(training.model.theta[0])
    for other in solutions[1:]:
        assert torch.allclose(solutions[0], other, rtol=0, atol=1e-8)


def test_with_an_axis_for_each_label_it_is_one_vs_rest_ridge() -> None:
    """That regression has all negatives, and all labels of each instance."""
    training = made("fedalc-oneshot", client={"label_power": 0.0}, server={"ridge": 0.7})
    training.run_round()
    scores = X @ training.model.theta[0].detach().numpy() @ training.model.W.numpy().T
    oracle = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(X, Y)
    np.testing.assert_allclose(scores, oracle.predict(X), atol=1e-10)


def test_equations_without_a_single_solution_are_refused() -> None:
    from scipy.sparse import csr_matrix

    empty = csr_matrix(TRAIN.features.toarray() * (np.arange(20) > 0))
    settings = fedalc.experiment({"method": "fedalc-oneshot", "encoder": {"dim": 9}, "server": {"ridge": 0.0}})
    with pytest.raises(fedalc.ConfigError, match=r"server\.ridge"):
        federated(settings, fedalc.Split(empty, TRAIN.labels)).run_round()


def test_one_round_costs_half_a_symmetric_matrix_and_a_vector() -> None:
    training = made("fedalc-oneshot", client={"set_size": "expected"})
    assert training.knowledge is not None
    training.run_round()
    assert training.ledger.up == training.knowledge.bytes_up + 7 * 8 * (20 * 21 // 2 + 20)


# --- a run ---


@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc-oneshot"])
def test_a_saved_model_predicts_the_same(tmp_path: Path, method: str) -> None:
    data = small_dataset()
    run = fedalc.train(data=data, folder=tmp_path / "run", method=method, encoder={"dim": 8})
    labels, scores = run.model.predict(data.test.features, k=4)
    loaded = fedalc.TrainedModel.load(tmp_path / "run" / "model")
    assert loaded.encoder.output == "raw" and not loaded.model.encoder.unit
    for ours, theirs in zip((labels, scores), loaded.predict(data.test.features, k=4), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    features = data.test.features.toarray()
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-30)
    by_hand = features @ loaded.model.encoder.embedding.detach().numpy() @ loaded.model.W.numpy().T
    np.testing.assert_allclose(scores, -np.sort(-by_hand, axis=1)[:, :4], atol=1e-5)


def test_an_interrupted_solution_goes_on_to_the_same_bits() -> None:
    whole, first, second = (made(dtype="float32") for _ in range(3))
    for _ in range(8):
        whole.run_round()
    for _ in range(3):
        first.run_round()
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()}, first.facts())
    for _ in range(5):
        second.run_round()
    assert torch.equal(whole.model.theta[0], second.model.theta[0])


@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc-oneshot"])
def test_noised_counts_are_enough_for_the_expected_size(method: str) -> None:
    privacy = {"mechanism": "counts", "epsilon": 1.0}
    keys: dict[str, Any] = {"encoder": {"dim": 8}, "client": {"set_size": "expected"}, "privacy": privacy}
    run = fedalc.train(data=small_dataset(), method=method, **keys)
    assert 0 < run.result["privacy"]["epsilon"] <= 1.0


@pytest.mark.long
def test_the_oracles_precision_on_bibtex_in_one_round() -> None:
    data = load_dataset("bibtex", real_data("bibtex").parent)
    run = fedalc.train(data=data, dataset="bibtex", method="fedalc-oneshot", selection={"validation": 0.0})
    for name, at_least in (("P@1", 65.0), ("P@3", 39.4), ("P@5", 28.6)):
        assert run.metrics[name] >= at_least
