"""The engines give the same θ and W in float64 for every method: `fused` must equal the literal `clients`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Split
from fedalc.engines.fused import FusedEngine
from fedalc.errors import ConfigError
from fedalc.models.encoders import Chance
from fedalc.testing import assert_engines_equal
from fedalc.training.federated import FederatedTraining
from tests.problems import changed, federated, random_split

TRAIN = random_split(50, 20, 7, seed=11)
FEW = random_split(9, 20, 7, seed=12)
SMALL = {
    "dtype": "float64",
    "block_rows": 7,  # several blocks, the last one short
    "encoder": {"name": "mlp", "dim": 6, "embedding": 5, "hidden": (8, 7), "dropout": 0.0},
    "server": {"optimizer": "adam", "learning_rate": 0.05, "weight_decay": 0.1, "ema": 0.5},
    "client": {"learning_rate": 0.5, "row_learning_rate": 0.8},
    "regularizer": {"lambda": 10.0, "rate": 0.01, "neighbours": 2},
    "fixed": {"steps": 5, "rate": 0.1},
}
CONSTANT: dict[str, Any] = {"name": "linear", "constant": 0.7}
RANDOM: dict[str, Any] = {"name": "random-features", "random_features": 9, "constant": 0.7}
DESIGNS = [{"name": "linear"}, CONSTANT, RANDOM, {**RANDOM, "activation": "cosine", "linear_part": False}]
BY_STEPS = [method for method in METHODS if not METHODS[method].one_round]  # the others have a linear encoder


def settings(engine: str, **changes: Any) -> Any:
    return experiment({**changed(SMALL, changes), "engine": engine})


def after(rounds: int, engine: str, train: Split = TRAIN, **changes: Any) -> tuple[FederatedTraining, list[float]]:
    training = federated(settings(engine, **changes), train)
    return training, [training.run_round() for _ in range(rounds)]


def assert_equal(rounds: int = 3, train: Split = TRAIN, **changes: Any) -> None:
    assert_engines_equal(changed(SMALL, changes), train, rounds)


@pytest.mark.few(7)
@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("method", BY_STEPS)
def test_every_method(method: str, weights: str, participation: float) -> None:
    assert_equal(method=method, server={"weights": weights, "participation": participation})


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("set_size", "participation"),
    [
        ("exact", 1.0),
        ("expected", 0.4),
        ("ignored", 1.0),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("exact", 0.4), ("expected", 1.0), ("ignored", 0.4))
        ),
    ],
)
@pytest.mark.parametrize("method", [method for method in BY_STEPS if method != "feduv"])  # which has its own loss
def test_every_method_with_the_square_loss(method: str, set_size: str, participation: float) -> None:
    client = {"loss": "square", "set_size": set_size, "label_power": 0.3}
    # Not adam, as with dropout.
    assert_equal(method=method, client=client, server={"optimizer": "momentum", "participation": participation})


@pytest.mark.few(4)
@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
@pytest.mark.parametrize("method", ["fedalc-exact", "fedavg-fixed", "fedalc-fixed"])
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_conjugate_gradients(method: str, set_size: str, design: dict[str, Any]) -> None:
    client = {"loss": "square", "set_size": set_size}
    encoder = {**design, "start": "zero"}
    server = {"optimizer": "cg", "weights": "samples", "ema": 0.0}
    assert_equal(6, method=method, client=client, encoder=encoder, server=server)


@pytest.mark.few(5)
@pytest.mark.parametrize("dim", [7, 9])
@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
@pytest.mark.parametrize("constant", [0.0, 0.7])
def test_conjugate_gradients_with_an_axis_per_label(dim: int, set_size: str, constant: float) -> None:
    """With as many axes as labels the columns of θ are computed block by block; with more, all at once."""
    changes: dict[str, Any] = {
        "method": "fedalc-exact",
        "client": {"loss": "square", "set_size": set_size, "label_power": 0.3},
        "encoder": {"name": "linear", "constant": constant, "dim": dim, "start": "zero"},
        "embeddings": {"start": "by-frequency"},
        "server": {"optimizer": "cg", "weights": "samples", "ema": 0.0},
    }
    assert_equal(6, **changes)
    engine = federated(settings("fused", **changes), TRAIN).engine
    assert isinstance(engine, FusedEngine) and (engine._by_columns is not None) == (dim == 7)


@pytest.mark.parametrize("train", [TRAIN, FEW], ids=["many records", "fewer records than columns"])
@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_one_round(set_size: str, design: dict[str, Any], train: Split) -> None:
    changes: dict[str, Any] = {"client": {"set_size": set_size, "label_power": 0.3}, "encoder": design}
    changes["server"] = {"ema": 0.0}
    assert_equal(1, train=train, method="fedalc-oneshot", **changes)
    ours, literal = (
        training.engine.sums(training.model, training.federation.clients)
        for engine in ("fused", "clients")
        for training in [federated(settings(engine, method="fedalc-oneshot", **changes), train)]
    )
    assert torch.allclose(ours.gram, literal.gram, rtol=1e-12, atol=1e-14)
    assert torch.allclose(ours.cross, literal.cross, rtol=1e-12, atol=1e-14)
    assert ours.constant == pytest.approx(literal.constant, rel=1e-12)
    assert ours.pairs == literal.pairs == train.labels.nnz


@pytest.mark.parametrize("method", ["fedncm", "fed3r"])
def test_one_round_with_an_axis_per_label(method: str) -> None:
    server = {"weights": "samples", "ema": 0.0}
    assert_equal(1, method=method, encoder={"name": "linear"}, client={"set_size": "ignored"}, server=server)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
def test_every_server_optimiser(optimizer: str) -> None:
    assert_equal(method="fedalc", server={"optimizer": optimizer})


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": {"name": "linear"}},
        {"encoder": CONSTANT},
        {"encoder": RANDOM},
        {"encoder": {**RANDOM, "activation": "cosine", "linear_part": False}},
        # Not adam: it would blow a gradient of 1e-18, which is 0 in the other engine, up to a step of 1e-11.
        {"encoder": {"dropout": 0.4}, "server": {"optimizer": "momentum"}},
        {"encoder": {"input_dropout": 0.3, "embedding": None}, "server": {"optimizer": "momentum"}},
        {"client": {"sample": 0.4}, "server": {"optimizer": "momentum"}},
        {"client": {"sample": 0.05}, "server": {"optimizer": "momentum"}},  # most clients have none of their instances
        {"client": {"weight_decay": 0.3}},
        {"client": {"momentum": 0.9}},  # one step: momentum has nothing to remember yet
        {"encoder": {"start": "framework"}},
        {"regularizer": {"candidates": 4}},
        {"regularizer": {"form": "full"}},
        {"regularizer": {"margin": "adaptive"}},
        {"regularizer": {"weighting": "gamma"}},
        {"regularizer": {"weighting": "conditional", "margin": 2.0}},
        {"block_rows": 1},
    ],
    ids=str,
)
def test_every_setting_both_can_express(changes: dict[str, Any]) -> None:
    assert_equal(1 if "block_rows" in changes else 3, method="fedalc", **changes)


MANY_FEATURES = random_split(50, 400, 7, seed=12)
MANY_FEATURES.features.data[np.random.default_rng(1).random(MANY_FEATURES.features.nnz) < 0.95] = 0
MANY_FEATURES.features.eliminate_zeros()  # about six each, so that few clients have few of them


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("fedalc", "sgd"),
        ("fedavg-fixed", "momentum"),
        ("fedmlh", "momentum"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("fedalc", "momentum"), ("fedavg-fixed", "sgd"), ("fedmlh", "sgd"))
        ),
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {"server": {"participation": 0.3}},
        {"client": {"sample": 0.2}},
        {"client": {"sample": 0.2}, "encoder": {"input_dropout": 0.3}},
        {"server": {"participation": 0.3, "weight_decay": 0.0}, "encoder": {"name": "linear"}},
        {"server": {"participation": 0.3, "weight_decay": 0.0}, "encoder": CONSTANT},
        {"server": {"participation": 0.3}, "encoder": RANDOM},
        {"client": {"weight_decay": 0.2}, "server": {"participation": 0.3}},
        {"server": {"participation": 0.3}, "regularizer": {"rows": "participants", "candidates": 5}},
    ],
    ids=str,
)
def test_a_round_of_few_looks_at_their_features_only(method: str, optimizer: str, changes: dict[str, Any]) -> None:
    changes = {**changes, "server": {"optimizer": optimizer, "learning_rate": 0.7, **changes.get("server", {})}}
    assert_equal(rounds=5, train=MANY_FEATURES, method=method, **changes)


def test_the_change_of_few_clients_is_of_few_rows() -> None:
    some = federated(settings("fused", method="fedavg-fixed"), MANY_FEATURES)
    client = some.federation.clients[:1]
    result = some.engine.run(some.model, client, Chance(some.settings, 1, some.model.W), 1)
    held = MANY_FEATURES.features[some.federation.instances_of(int(client[0]))]
    assert result.change[0].is_sparse
    assert result.change[0].indices()[0].tolist() == sorted(set(held.indices.tolist()))
    assert not any(change.is_sparse for change in result.change[1:])
    assert some.model.theta[0].grad is None


def test_rows_of_absent_clients_stay() -> None:
    training = federated(settings("fused", method="fedavg", server={"participation": 0.3}), TRAIN)
    before = training.model.W.clone()
    training.run_round()
    moved = (before != training.model.W).any(dim=1)
    assert 0 < moved.sum() == round(0.3 * len(training.federation.clients))


def test_a_round_is_one_gradient_step_on_the_weighted_objective() -> None:
    """Compare with the objective written without either engine: Σ p_u mean_j max(0, 0.9 - g(x_j)ᵀw_u)²."""
    changes = {"method": "fedavg-fixed", "server": {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0}}
    training = federated(settings("fused", **changes), TRAIN)
    encoder, W = copy.deepcopy(training.model.encoder), training.model.W
    X = torch.from_numpy(TRAIN.features.toarray()).double()
    h = X @ encoder.embedding
    for depth, layer in enumerate(encoder.layers):
        h = layer(torch.relu(h) if depth else h)
    g = h / h.norm(dim=1, keepdim=True).clamp(min=1e-300)
    Y = TRAIN.labels.toarray().astype(np.float64)
    n = Y.sum(0)
    objective = sum(
        n[u]
        / n.sum()
        * torch.stack([torch.clamp(0.9 - g[j] @ W[u], min=0) ** 2 for j in np.flatnonzero(Y[:, u])]).mean()
        for u in range(7)
    )
    assert isinstance(objective, torch.Tensor)
    objective.backward()
    assert training.run_round() == pytest.approx(objective.item(), rel=1e-12)
    for after_round, parameter in zip(training.model.theta, encoder.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(after_round, parameter - 0.5 * parameter.grad, rtol=1e-10, atol=1e-13)


def test_several_local_steps_are_what_a_plain_loop_does() -> None:
    """Engine `clients` with three full-batch epochs and one client equals plain gradient descent."""
    only = TRAIN.rows(np.flatnonzero(TRAIN.labels.toarray()[:, 2]))
    labels = only.labels.toarray() * (np.arange(7) == 2)
    split = Split(only.features, csr_matrix(labels.astype(np.float32)))
    changes = {"method": "fedavg", "client": {"epochs": 3}, "encoder": {"name": "linear"}}
    changes["server"] = {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0}
    training = federated(settings("clients", **changes), split)
    E = training.model.encoder.embedding.detach().clone().requires_grad_()
    w = training.model.W[2].clone().requires_grad_()
    X = torch.from_numpy(split.features.toarray()).double()
    for _ in range(3):
        g = X @ E
        g = g / g.norm(dim=1, keepdim=True).clamp(min=1e-300)
        loss = torch.clamp(0.9 - g @ w, min=0).square().mean()
        grad_E, grad_w = torch.autograd.grad(loss, (E, w))
        with torch.no_grad():
            E -= 0.5 * grad_E
            w -= 0.8 * grad_w
            w /= w.norm()
    training.run_round()
    assert torch.allclose(training.model.encoder.embedding, E, rtol=1e-10, atol=1e-12)
    assert torch.allclose(training.model.W[2], w, rtol=1e-10, atol=1e-12)


def test_batches_cover_every_instance_once_an_epoch() -> None:
    training = federated(settings("clients", client={"batch_size": 2, "epochs": 2}), TRAIN)
    engine: Any = training.engine
    chance = Chance(training.settings, 1, training.model.W)
    for client in training.federation.clients.tolist():
        batches = engine._batches(client, chance, 0, 1)
        assert max(map(len, batches)) <= 2
        assert sorted(np.concatenate(batches)) == training.federation.instances_of(client).tolist()
    first, again = engine._batches(0, chance, 0, 1), engine._batches(0, chance, 0, 1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("client", [{"epochs": 2}, {"batch_size": 8}])
def test_fused_refuses_what_it_cannot_express(client: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"client\.{next(iter(client))}.*cannot compute"):
        experiment({"engine": "fused", "client": client})
