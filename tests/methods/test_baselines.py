"""fedncm, fed3r, fedetf and feduv, each beside a literal twin in numpy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.data.dataset import Split
from fedalc.errors import ConfigError
from fedalc.labels.collection.keys import Key
from fedalc.methods import make_method
from fedalc.models.class_embeddings import codeword_rows, simplex_rows
from fedalc.models.scoring import Scorer
from fedalc.testing import check_method
from fedalc.training.federated import FederatedTraining
from tests.problems import federated, random_split, small_dataset

TRAIN = random_split(50, 20, 7, seed=11)
X = TRAIN.features.toarray().astype(np.float64)
Y = TRAIN.labels.toarray().astype(np.float64)
ONE_ROUND = ["fedncm", "fed3r"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained(method: str, train: Split = TRAIN, **keys: Any) -> FederatedTraining:
    training = federated(fedalc.experiment({"method": method, "dtype": "float64", "block_rows": 7, **keys}), train)
    training.run_round()
    return training


def scores(training: FederatedTraining, features: np.ndarray) -> np.ndarray:
    scorer = Scorer(training.model, csr_matrix(features), np.ones(training.federation.label_count, dtype=bool))
    return scorer.of_labels(slice(0, training.federation.label_count)).numpy()


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["fedncm", "fed3r", "fedetf", "feduv"])
def test_it_passes_the_checks_of_all_methods(method: str) -> None:
    refused = check_method(method)
    assert not any(reason.startswith("the plain case") for reason in refused)
    assert len(refused) == {"fedncm": 5, "fed3r": 5, "fedetf": 0, "feduv": 1}[method]


# --- fedncm ---


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_fedncm_scores_by_the_cosine_to_each_class_mean(engine: str) -> None:
    training = trained("fedncm", engine=engine)
    for label, column in enumerate(scores(training, X).T):
        sent = [X[j] for j in range(len(X)) if Y[j, label]]  # what client `label` holds
        mean = sum(sent) / len(sent)
        np.testing.assert_allclose(column, X @ mean / np.linalg.norm(mean), rtol=1e-12, atol=1e-14)


def test_fedncm_by_hand() -> None:
    """Label 0 has (1, 0) and (0, 1), so its mean points to (1, 1); label 1 has (0, 1)."""
    train = Split(csr_matrix([[1.0, 0.0], [0.0, 1.0]]), csr_matrix([[1.0, 0.0], [1.0, 1.0]]))
    training = trained("fedncm", train)
    np.testing.assert_allclose(scores(training, np.eye(2)), [[0.5**0.5, 0], [0.5**0.5, 1]], atol=1e-15)
    fresh = federated(training.settings, train)
    assert fresh.run_round() == pytest.approx(1 - (2 * 0.5**0.5 + 1) / 3)


def test_clients_of_fedncm_send_a_vector() -> None:
    assert trained("fedncm").ledger.up == 8 * 7 * 20 and trained("fedncm").ledger.down == 0
    assert trained("fed3r").ledger.up == 8 * 7 * (20 + 20 * 21 // 2)


# --- fed3r ---


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_fed3r_is_ridge_on_one_example_per_record_and_label(engine: str) -> None:
    training = trained("fed3r", engine=engine, server={"ridge": 0.3})
    examples = [(X[j], label) for j in range(len(X)) for label in range(7) if Y[j, label]]
    A = sum(np.outer(x, x) for x, _ in examples) + 0.3 * np.eye(20)
    B = np.zeros((20, 7))
    for x, label in examples:
        B[:, label] += x
    solution = np.linalg.solve(A, B)
    np.testing.assert_allclose(
        scores(training, X), X @ (solution / np.linalg.norm(solution, axis=0)), rtol=1e-9, atol=1e-12
    )
    assert training.knowledge is None, "Fed3R collects no label sets"


def test_before_scaling_fed3r_is_fedalc_oneshot_without_set_sizes() -> None:
    keys: dict[str, Any] = {"client": {"set_size": "ignored", "label_power": 0.0}, "encoder": {"dim": 7}}
    ours, theirs = trained("fed3r"), trained("fedalc-oneshot", **keys)
    unscaled = scores(theirs, np.eye(20))
    np.testing.assert_allclose(scores(ours, np.eye(20)), unscaled / np.linalg.norm(unscaled, axis=0), rtol=1e-9)
    exact = scores(trained("fedalc-oneshot", encoder={"dim": 7}), np.eye(20))
    assert not np.allclose(unscaled, exact), "m makes a difference where records have several labels"


def test_with_one_label_per_record_set_sizes_make_no_difference() -> None:
    """Then fedalc-oneshot is Fed3R, but for the scaling of columns."""
    first = np.zeros_like(Y)
    for row, own in enumerate(Y):
        first[row, own.argmax()] = own.max()
    train = Split(TRAIN.features, csr_matrix(first))
    keys: dict[str, Any] = {"client": {"label_power": 0.0}, "encoder": {"dim": 7}}
    solved = scores(trained("fedalc-oneshot", train, **keys), np.eye(20))
    held = first.any(0)
    scaled = solved[:, held] / np.linalg.norm(solved[:, held], axis=0)
    np.testing.assert_allclose(scores(trained("fed3r", train), np.eye(20))[:, held], scaled, rtol=1e-9, atol=1e-12)


# --- an axis per label ---


@pytest.mark.parametrize("method", ONE_ROUND)
def test_there_is_an_axis_for_each_label_whatever_the_dimension(method: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="encoder.dim has no effect"):
        run = fedalc.train(data=small_dataset(), method=method, folder=tmp_path / "r", encoder={"dim": 3})
    again = fedalc.load_run(tmp_path / "r")
    assert run.settings.encoder.dim == 7 and again.settings == run.settings
    features = small_dataset().test.features
    np.testing.assert_array_equal(run.model.predict(features)[0], again.model.predict(features)[0])
    assert torch.equal(run.model.model.W, torch.eye(7))


@pytest.mark.parametrize("method", ONE_ROUND)
def test_a_comparison_takes_up_finished_runs(method: str, tmp_path: Path) -> None:
    first, second = (fedalc.compare([method], dataset=small_dataset(), folder=tmp_path / "c") for _ in range(2))
    assert first.runs[0].metrics == second.runs[0].metrics


@pytest.mark.parametrize("method", ONE_ROUND)
def test_what_one_round_cannot_do_is_refused(method: str) -> None:
    for keys in ({"set_size": "exact"}, {"set_size": "expected"}, {"label_power": 0.2}):
        with pytest.raises(ConfigError, match=r"client\.set_size: .* uses neither label sets nor counts"):
            fedalc.experiment({"method": method, "client": keys})
    with pytest.raises(ConfigError, match="linear encoder"):
        fedalc.experiment({"method": method, "encoder": {"name": "resnet-small"}})


# --- fedetf ---


@pytest.mark.parametrize(("rows", "dim"), [(2, 1), (2, 5), (7, 6), (7, 7), (7, 20), (100, 128)])
def test_a_simplex_has_one_angle(rows: int, dim: int) -> None:
    W = simplex_rows(rows, dim, seeded(), torch.float64)
    wanted = torch.full((rows, rows), -1 / (rows - 1), dtype=torch.float64).fill_diagonal_(1)
    assert torch.allclose(W @ W.T, wanted, atol=1e-12)
    assert torch.allclose(W.sum(0), torch.zeros(dim, dtype=torch.float64), atol=1e-10)


def test_more_labels_than_corners_come_in_runs() -> None:
    W = simplex_rows(10, 3, seeded(), torch.float64)
    for run in (W[:4], W[4:8]):
        assert torch.allclose((run @ run.T)[0, 1:], torch.full((3,), -1 / 3, dtype=torch.float64))
    assert (W[8] @ W[9]).item() == pytest.approx(-1)
    assert torch.equal(simplex_rows(10, 3, seeded(), torch.float64, slice(3, 9)), W[3:9])
    assert simplex_rows(1, 3, seeded(), torch.float64).norm().item() == pytest.approx(1)


def test_fedetf_says_when_there_is_no_simplex_for_all() -> None:
    with pytest.warns(UserWarning, match=r"7 labels have no simplex in encoder.dim = 5: .* encoder.dim = 6 gives one"):
        make_method(fedalc.experiment({"method": "fedetf", "encoder": {"dim": 5}}), 7).start(seeded())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_method(fedalc.experiment({"method": "fedetf", "encoder": {"dim": 6}}), 7).start(seeded())


# --- feduv ---


@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (2, 1), (4, 2), (7, 6), (30, 16), (200, 64), (300, 65)])
def test_codewords_differ_in_a_quarter_of_their_places(rows: int, dim: int) -> None:
    W = codeword_rows(rows, dim, seeded(3), torch.float64)
    signs = W * dim**0.5
    assert torch.allclose(signs.abs(), torch.ones_like(signs))
    places = torch.stack([(signs.round() != row).sum(1) for row in signs.round()])
    assert places.fill_diagonal_(dim).min() >= dim / 4
    assert torch.equal(codeword_rows(rows, dim, seeded(3), torch.float64, slice(1, 2)), W[1:2])


def test_more_codewords_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.dim: there are no 5 different codewords of 2 bits"):
        codeword_rows(5, 2, seeded(), torch.float64)
    with pytest.warns(UserWarning, match="small for 79 codewords: some differ in only 1 places"):
        W = codeword_rows(79, 8, seeded(), torch.float64)
    assert len(W.unique(dim=0)) == 79
    monkeypatch.setattr("fedalc.models.class_embeddings.LOOKED_AT", 10)  # as with very many labels
    with pytest.raises(ConfigError, match=r"encoder\.dim: too small for 50 codewords: use 223"):
        codeword_rows(50, 222, seeded(), torch.float64)
    assert len(codeword_rows(50, 223, seeded(), torch.float64)) == 50


def test_codewords_follow_from_the_key_if_there_is_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Key.fresh().write(tmp_path / name)

    def drawn(key: str | None, seed: int = 0) -> torch.Tensor:
        collection = {} if key is None else {"key": str(tmp_path / key)}
        settings = {"method": "feduv", "seed": seed, "collection": collection, "encoder": {"dim": 64}}
        return make_method(fedalc.experiment(settings), 9).start(seeded(seed))

    assert torch.equal(drawn("a"), drawn("a")) and torch.equal(drawn(None), drawn(None))
    different = [drawn(None), drawn(None, 1), drawn("a"), drawn("a", 1), drawn("b")]
    assert not any(torch.equal(one, other) for i, one in enumerate(different) for other in different[:i])


def test_a_key_of_feduv_has_an_effect(tmp_path: Path) -> None:
    Key.fresh().write(tmp_path / "key")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keys: dict[str, Any] = {"encoder": {"dim": 16}, "collection": {"key": str(tmp_path / "key")}}
        run = fedalc.train(data=small_dataset(), method="feduv", rounds=1, **keys)
    assert run.metrics


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_a_round_of_feduv_literally(engine: str) -> None:
    """θ ← θ - η ∇ Σ_u (n_u/Σn) mean_j max(0, 1 - cos(xᵀθ, w_u)), by autograd over plain loops."""
    keys: dict[str, Any] = {
        "encoder": {"name": "linear", "dim": 6, "start": "he", "features": "raw"},
        "client": {"learning_rate": 0.5},
        "server": {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "weights": "samples"},
    }
    settings = fedalc.experiment({"method": "feduv", "dtype": "float64", "engine": engine, **keys})
    training = federated(settings, TRAIN)
    W = training.model.W.clone()
    theta = training.model.theta[0].detach().clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for j, label in zip(*np.nonzero(Y), strict=True):
        g = torch.from_numpy(X[j]) @ theta
        total = total + torch.clamp(1 - (g / g.norm().clamp(min=1e-12)) @ W[label], min=0)
    (total / Y.sum()).backward()
    assert training.run_round() == pytest.approx(total.item() / Y.sum(), rel=1e-10)
    assert theta.grad is not None
    assert torch.allclose(training.model.theta[0], theta.detach() - 0.5 * theta.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["fedetf", "feduv"])
def test_the_rows_are_the_methods_own(method: str) -> None:
    drawn = [
        make_method(fedalc.experiment({"method": method, "embeddings": start}), 9).start(seeded())
        for start in ({}, {"start": "random"})
    ]
    assert torch.equal(*drawn)
    rows = {"fedetf": "simplex", "feduv": "codewords"}[method]
    assert fedalc.experiment({"method": method}).embeddings.start == rows
    same = make_method(fedalc.experiment({"method": "fedavg-fixed", "embeddings": {"start": rows}}), 9).start(seeded())
    assert torch.equal(same, drawn[0])


def test_feduv_has_its_own_loss() -> None:
    with pytest.raises(ConfigError, match=r"client\.loss: feduv has a loss of its own"):
        fedalc.experiment({"method": "feduv", "client": {"loss": "square"}})
