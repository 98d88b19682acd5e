"""Users as clients: each label of each user is a client, so a label may have several. The engines stay equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Dataset, Split
from fedalc.data.federation import Federation
from fedalc.engines.base import mean_rows
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from tests.engines.test_equality import BY_STEPS, TRAIN, after, assert_equal, settings
from tests.problems import federated, small_dataset

SIZES = [0.4, 0.2, 0.15, 0.1, 0.1, 0.05]
DRAWN = np.random.default_rng(5).choice(6, size=len(TRAIN), p=SIZES)
OF_USERS = replace(TRAIN, users=tuple(f"user {number}" for number in DRAWN))


def of_users(rounds: int = 2, **changes: Any) -> None:
    assert_equal(rounds, OF_USERS, clients="users", **changes)


# --- the engines are equal ---


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("weights", "participation"),
    [
        ("uniform", 0.5),
        ("samples", 1.0),
        pytest.param("uniform", 1.0, marks=pytest.mark.long),
        pytest.param("samples", 0.5, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("method", BY_STEPS)
def test_every_method(method: str, weights: str, participation: float) -> None:
    of_users(method=method, server={"weights": weights, "participation": participation})


@pytest.mark.few(2)
@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
@pytest.mark.parametrize("method", ["fedalc-exact", "fedalc", "flag"])
def test_the_square_loss(method: str, set_size: str) -> None:
    client = {"loss": "square", "set_size": set_size, "label_power": 0.3}
    of_users(method=method, client=client, server={"optimizer": "momentum", "participation": 0.5})


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "changes",
    [
        {"client": {"sample": 0.4}, "server": {"optimizer": "momentum", "participation": 0.5}},
        {"client": {"sample": 0.05}, "server": {"optimizer": "momentum"}},  # most clients have none of their instances
        {"client": {"weight_decay": 0.3}},
        {"encoder": {"name": "linear"}},
        {"encoder": {"dropout": 0.4}, "server": {"optimizer": "momentum"}},
        {"block_rows": 1},
        {"block_rows": 1000},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["fedalc", "fedavg-fixed"])
def test_every_setting_both_can_express(method: str, changes: dict[str, Any]) -> None:
    of_users(method=method, **changes)


@pytest.mark.parametrize("set_size", ["exact", "expected"])
def test_methods_that_solve(set_size: str) -> None:
    linear = {"encoder": {"name": "linear", "start": "zero"}, "client": {"loss": "square", "set_size": set_size}}
    of_users(6, method="fedalc-exact", server={"optimizer": "cg", "weights": "samples", "ema": 0.0}, **linear)
    of_users(1, method="fedalc-oneshot", server={"ema": 0.0}, **linear)


@pytest.mark.parametrize("method", ["fedncm", "fed3r"])
def test_methods_of_one_round_with_an_axis_per_label(method: str) -> None:
    of_users(1, method=method, encoder={"name": "linear"}, server={"weights": "samples", "ema": 0.0})


# --- what they are equal to ---


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_a_round_of_two_users_who_share_a_label(weights: str, engine: str) -> None:
    """g(x) = x E with E = I, w = (1, 0), all rates 1. The loss of x is (0.9 - x_1)², here with r = 0.9 - x_1.

    User a has x = (0.4, 1.8), r = 0.5, and (0.9, 5), r = 0, so R_a = 0.125 and, with 2r/n = 0.5,
    E_a = I + 0.5 xᵀw = (1.2, 0 | 0.9, 1) and w_a = unit(w + 0.5 x) = unit(1.2, 0.9) = (0.8, 0.6).
    User b has x = (-0.1, -0.3), r = 1, so R_b = 1 and, with 2r/n = 2, E_b = (0.8, 0 | -0.6, 1) and w_b = (0.8, -0.6).
    """
    X = csr_matrix(np.array([[0.4, 1.8], [-0.1, -0.3], [0.9, 5.0]], dtype=np.float32))
    train = Split(X, csr_matrix(np.ones((3, 1))), ("a", "b", "a"))
    training = federated(
        experiment(
            {
                "method": "fedavg",
                "engine": engine,
                "clients": "users",
                "dtype": "float64",
                "block_rows": 2,
                "encoder": {"name": "linear", "dim": 2, "output": "raw", "features": "raw", "dropout": 0.0},
                "client": {"learning_rate": 1.0, "row_learning_rate": 1.0, "margin": 0.9},
                "server": {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0, "ema": 0, "weights": weights},
            }
        ),
        train,
    )
    with torch.no_grad():
        training.model.theta[0].copy_(torch.eye(2))
    training.model.W = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    loss, (E,), W = training.run_round(), training.model.theta, training.model.W
    if weights == "samples":  # 2/3 and 1/3: E = I + (0.2 / 3, 0 | 0.4, 0), w = unit(0.8, 0.2)
        wanted, row, mean = [[1 + 0.2 / 3, 0], [0.4, 1]], [4 / 17**0.5, 1 / 17**0.5], 2 / 3 * 0.125 + 1 / 3
    else:  # 1/2 and 1/2: E = I + (0, 0 | 0.15, 0), w = unit(0.8, 0)
        wanted, row, mean = [[1, 0], [0.15, 1]], [1.0, 0.0], 0.5625
    assert loss == pytest.approx(mean, rel=1e-6)
    assert E.detach().numpy() == pytest.approx(np.array(wanted), abs=1e-6)
    assert W[0].numpy() == pytest.approx(np.array(row), abs=1e-6)
    assert training.ledger == Ledger(2 * 32 + 2 * 16, 2 * 32 + 2 * 16)


@pytest.mark.few(6)
@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].encoders])
def test_a_user_for_each_label_is_a_client_for_each_label(method: str, participation: float) -> None:
    """If instances have at most one label, and each label is one user's, results are equal to the last bit."""
    own = np.arange(len(TRAIN)) % 8
    train = Split(TRAIN.features, csr_matrix(np.eye(8)[own][:, :7]), tuple(f"of {label % 7}" for label in own))
    changes: dict[str, Any] = {"method": method, "server": {"participation": participation}}
    engine = "clients" if method == "fedavg" else "fused"
    if engine == "clients":
        changes["client"] = {"batch_size": 3, "epochs": 2}
    if METHODS[method].one_round:
        changes = {"method": method, "server": {"ema": 0.0}, "encoder": {"name": "linear"}}
    by_labels, losses = after(3, engine, train, **changes)
    by_users, same = after(3, engine, train, clients="users", **changes)
    assert losses == same and by_labels.ledger == by_users.ledger
    assert torch.equal(by_labels.model.W, by_users.model.W)
    for ours, theirs in zip(by_labels.model.theta, by_users.model.theta, strict=True):
        assert torch.equal(ours, theirs)


def test_with_fixed_rows_and_weights_by_instances_it_makes_no_difference_whose_they_are() -> None:
    """Σ_u n_u/n R_u is a mean over all (instance, label) pairs."""
    changes: dict[str, Any] = {"method": "fedalc-fixed", "server": {"weights": "samples"}}
    by_labels, losses = after(4, "fused", OF_USERS, **changes)
    by_users, same = after(4, "fused", OF_USERS, clients="users", **changes)
    assert losses == pytest.approx(same, rel=1e-10)
    for ours, theirs in zip(by_labels.model.theta, by_users.model.theta, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_rows_of_several_clients_are_averaged_by_weight() -> None:
    copies = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
    labels, rows = mean_rows(torch.tensor([0, 2, 0]), copies, torch.tensor([0.4, 0.3, 0.3]))
    assert labels.tolist() == [0, 2]
    assert rows.numpy() == pytest.approx(np.array([[0.8, 0.6], [0.0, -1.0]]))


# --- who they are ---


def test_a_client_is_a_label_of_a_user() -> None:
    """User 0 has instances 0 and 3, user 1 has 1, and user 2 has 4 and, without a label, 2."""
    labels = csr_matrix(np.array([[1, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 1], [1, 0, 1]], dtype=np.float32))
    federation = Federation(csr_matrix((5, 1)), labels, users=np.array([0, 1, 2, 0, 2]))
    assert list(zip(federation.user_of.tolist(), federation.label_of.tolist(), strict=True)) == [
        (0, 0), (0, 2), (1, 2), (2, 0), (2, 2),
    ]  # fmt: skip
    assert federation.counts.tolist() == [1, 2, 1, 1, 1]
    assert federation.clients.tolist() == [0, 1, 2, 3, 4]
    assert [federation.instances_of(client).tolist() for client in range(5)] == [[0], [0, 3], [1], [4], [4]]
    assert federation.held.toarray().tolist() == [
        [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 1],
    ]  # fmt: skip
    assert federation.sender_count(np.array([0, 1, 3])) == 2 and federation.label_count == 3


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("method", ["fedavg", "fedavg-fixed"])
def test_a_users_labels_share_the_way_of_theta(method: str, engine: str) -> None:
    training, _ = after(2, engine, OF_USERS, clients="users", method=method)
    pairs = {(user, label) for user, row in zip(DRAWN, TRAIN.labels, strict=True) for label in row.indices}
    theta = 8 * sum(parameter.numel() for parameter in training.model.theta)
    rows = len(pairs) * 8 * 6
    assert len({user for user, _ in pairs}) == 6 and len(pairs) == len(training.federation.clients)
    up = 2 * (6 * theta + rows) if method == "fedavg" else 2 * 6 * theta
    assert training.ledger == Ledger(up if method == "fedavg" else up + rows, up)


def test_sums_are_sent_once_by_a_user() -> None:
    changes: dict[str, Any] = {"method": "fedalc-oneshot", "server": {"ema": 0.0}, "encoder": {"name": "linear"}}
    training, _ = after(1, "fused", OF_USERS, clients="users", **changes)
    collected = federated(settings("fused", clients="users", **changes), OF_USERS).ledger
    clients = len(training.federation.clients)
    assert training.ledger.up - collected.up == 8 * (6 * 20 * 21 // 2 + clients * 20)


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_rows_of_labels_that_no_sampled_user_has_stay(engine: str) -> None:
    training = federated(settings(engine, method="fedavg", clients="users", server={"participation": 0.2}), OF_USERS)
    before = training.model.W.clone()
    heard: list[np.ndarray] = []
    run = training.engine.run
    training.engine.run = lambda model, who, *rest: heard.append(who) or run(model, who, *rest)  # type: ignore
    training.run_round()
    (who,) = heard
    federation = training.federation
    (user,) = set(federation.user_of[who])
    assert who.tolist() == np.flatnonzero(federation.user_of == user).tolist()
    moved = (before != training.model.W).any(dim=1).numpy()
    assert np.flatnonzero(moved).tolist() == federation.label_of[who].tolist() and not moved.all()


def test_a_run_says_how_many_users_there_were() -> None:
    data = small_dataset(seed=3)
    train = replace(data.train, users=tuple(f"u{at % 5}" for at in range(60)))
    data = Dataset("small", train, data.test, data.label_names)
    labels = data.train.labels
    whole: dict[str, Any] = {"encoder": {"dim": 8}, "rounds": 3, "selection": {"every": 1}}
    run = fedalc.train(data=data, method="fedalc", clients="users", **whole)
    pairs = {(at % 5, label) for at in range(60) for label in labels[at].indices}
    assert (run.result["clients"], run.result["users"]) == (len(pairs), 5)  # after refit: of all of train
    assert run.result["labels_without_client"] == 0
    assert fedalc.train(data=data, method="fedalc", **whole).result["users"] is None


def test_without_users_it_is_refused() -> None:
    why = r"clients: this dataset has no users \(these have: mosaics, flair, flair-fine, and"
    with pytest.raises(ConfigError, match=why):
        federated(settings("fused", clients="users"), TRAIN)
    with pytest.raises(ConfigError, match="clients: real parties own labels"):
        experiment({"engine": "flower", "clients": "users"})
