"""One-vs-rest against scikit-learn, a case by hand, and the optimality conditions of a solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.oracles.logistic import LogisticProblem
from fedalc.oracles.one_vs_rest import OneVsRest, logistic, ridge
from tests.oracles.following import Counting
from tests.problems import random_split

TRAIN = random_split(80, 12, 7, seed=3)
PENALTIES = [2.0, 0.3]


def solved(solve: object, penalties: list[float], train: Split = TRAIN, block: int = 3) -> list[np.ndarray]:
    return [V.numpy() for V, _ in solve(train, penalties, block, torch.float64, Counting())]  # type: ignore[operator]


def test_ridge_is_that_of_scikit_learn() -> None:
    X, Y = TRAIN.features.toarray().astype(np.float64), TRAIN.labels.toarray()
    for penalty, V in zip(PENALTIES, solved(ridge, PENALTIES), strict=True):
        theirs = Ridge(alpha=penalty, fit_intercept=False).fit(X, Y).coef_.T
        np.testing.assert_allclose(V[:-1], theirs, atol=1e-10)
        assert not V[-1].any()


def test_ridge_worked_by_hand() -> None:
    """X = diag(2, 1), Y = I, λ = 1: XᵀX + λI = diag(5, 2) and XᵀY = diag(2, 1)."""
    (V,) = solved(ridge, [1.0], Split(csr_matrix(np.diag([2.0, 1.0])), csr_matrix(np.eye(2))))
    np.testing.assert_allclose(V, [[0.4, 0], [0, 0.5], [0, 0]], atol=1e-12)


def test_ridge_with_more_features_than_instances() -> None:
    train = random_split(10, 40, 5, seed=1)
    (V,) = solved(ridge, [0.5], train)
    theirs = Ridge(alpha=0.5, fit_intercept=False).fit(train.features.toarray(), train.labels.toarray()).coef_.T
    np.testing.assert_allclose(V[:-1], theirs, atol=1e-5)


def test_logistic_is_that_of_scikit_learn() -> None:
    X, Y = TRAIN.features.toarray().astype(np.float64), TRAIN.labels.toarray()
    for penalty in PENALTIES:
        V = (
            LogisticProblem(TRAIN.features, torch.float64)
            .solve(torch.from_numpy(Y).double(), penalty, tolerance=1e-9)
            .numpy()
        )
        for label in range(Y.shape[1]):
            theirs = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=1000).fit(X, Y[:, label])
            np.testing.assert_allclose(V[:-1, label], theirs.coef_[0], atol=2e-5)
            assert V[-1, label] == pytest.approx(theirs.intercept_[0], abs=2e-5)


@pytest.mark.parametrize("penalty", [100.0, 1.0, 1e-3])
def test_the_logistic_gradient_is_zero_at_the_solution(penalty: float) -> None:
    Y = torch.from_numpy(TRAIN.labels.toarray()).double()
    V = LogisticProblem(TRAIN.features, torch.float64).solve(Y, penalty, tolerance=1e-8).requires_grad_()
    margin = torch.from_numpy(TRAIN.features.toarray()).double() @ V[:-1] + V[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(margin, Y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss + penalty / 2 * V[:-1].square().sum(), V)
    assert gradient.abs().max() < 1e-6


def test_a_label_gets_what_it_would_get_alone_and_from_any_start() -> None:
    problem, Y = LogisticProblem(TRAIN.features, torch.float64), torch.from_numpy(TRAIN.labels.toarray()).double()
    together = problem.solve(Y, 0.5, tolerance=1e-9)
    alone = problem.solve(Y[:, 2:3], 0.5, tolerance=1e-9)
    elsewhere = problem.solve(Y, 0.5, start=torch.randn(together.shape), tolerance=1e-9)
    assert torch.allclose(together[:, 2:3], alone, atol=1e-7)
    assert torch.allclose(together, elsewhere, atol=1e-6)


def test_labels_that_do_not_converge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, Y = LogisticProblem(TRAIN.features, torch.float64), torch.from_numpy(TRAIN.labels.toarray()).double()
    problem.solve(Y, 0.5, tolerance=1e-6)
    assert problem.unconverged == 0
    monkeypatch.setattr("fedalc.oracles.logistic.STEPS", 1)
    assert torch.isfinite(problem.solve(Y, 0.5, tolerance=1e-6)).all() and problem.unconverged == 7
    counts = [count for _, count in logistic(TRAIN, [1e-3], 3, torch.float64, Counting())]
    assert 0 < counts[0] <= 7


def test_logistic_of_a_label_that_all_or_none_have() -> None:
    Y = TRAIN.labels.toarray()
    Y[:, 0], Y[:, 1] = 1, 0
    V = LogisticProblem(TRAIN.features, torch.float64).solve(torch.from_numpy(Y).double(), 0.5)
    assert not V[:-1, :2].any() and V[-1, 0] == pytest.approx(np.log(80.5 / 0.5)) and V[-1, 1] == -V[-1, 0]
    assert V[:-1, 2:].any() and torch.isfinite(V).all()


@pytest.mark.parametrize("solve", [ridge, logistic])
def test_blocks_and_paths_change_nothing_but_rounding(solve: object) -> None:
    one, several = solved(solve, [0.3], block=100)[-1], solved(solve, [2.0, 0.3], block=2)[-1]
    np.testing.assert_allclose(one, several, atol=0.1 if solve is logistic else 1e-12)  # logistic: to its tolerance


@pytest.mark.parametrize("loss", ["ridge", "logistic"])
def test_it_does_the_steps_it_announces(loss: str) -> None:
    settings = experiment({"method": "ovr", "ovr": {"loss": loss, "block_labels": 3}})
    candidates = OneVsRest.candidates(settings)
    assert candidates == tuple(sorted(candidates, reverse=True)) and len(candidates) > 1
    follow = Counting()
    fitted = list(OneVsRest.fits(settings, TRAIN, candidates, follow))
    assert [candidate for candidate, _ in fitted] == list(candidates)
    assert len(follow.steps) == OneVsRest.steps(settings, 80, 7, len(candidates)) == 3 * len(candidates)


def test_scores_are_those_of_the_regressions() -> None:
    oracle = OneVsRest(torch.tensor([[1.0, -1.0], [0.5, 2.0]]), torch.tensor([0.25, 0.0]))
    scores = oracle.scores(csr_matrix(np.array([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0]], dtype=np.float32)))
    assert scores(slice(0, 3), slice(0, 2)).tolist() == [[2.25, 3.0], [0.75, 2.0], [0.25, 0.0]]
    assert scores(slice(1, 2), slice(1, 2)).tolist() == [[2.0]]
