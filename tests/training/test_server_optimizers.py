"""Server optimisers by hand: the first two steps of each with decay, averaged weights, sampled clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedalc.config.schema import ServerSettings
from fedalc.training.server_optimizers import AveragedWeights, ConjugateGradients, ServerOptimizer, sample_clients

CHANGES = (0.5, -0.2)  # the averaged change of a θ that starts at 1


def two_steps(**keys: object) -> float:
    theta = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = ServerOptimizer([theta], ServerSettings(**keys))  # type: ignore[arg-type]
    for change in CHANGES:
        assert optimizer.apply([torch.tensor([change], dtype=torch.float64)], loss=7.0) == 7
    return theta.item()


def test_sgd_with_rate_one_is_plain_averaging() -> None:
    assert two_steps(optimizer="sgd") == pytest.approx(1 - 0.5 + 0.2)


def test_decay_shrinks_before_the_step() -> None:
    first = 1 * (1 - 0.1 * 0.3) - 0.1 * 0.5
    assert two_steps(optimizer="sgd", learning_rate=0.1, weight_decay=0.3) == pytest.approx(first * 0.97 + 0.1 * 0.2)


def test_momentum() -> None:
    assert two_steps(optimizer="momentum", learning_rate=0.1) == pytest.approx(1 - 0.1 * 0.5 - 0.1 * (0.9 * 0.5 - 0.2))


def test_adam() -> None:
    m = v = 0.0
    theta = 1.0
    for t, g in enumerate(CHANGES, 1):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        theta -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)) ** 0.5 + 1e-8)
    assert two_steps(optimizer="adam", learning_rate=0.1, beta2=0.99) == pytest.approx(theta)


def test_adagrad() -> None:
    total, theta = 0.0, 1.0
    for g in CHANGES:
        total += g * g
        theta -= 0.1 * g / (total**0.5 + 1e-8)
    assert two_steps(optimizer="adagrad", learning_rate=0.1) == pytest.approx(theta)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
def test_the_optimisers_memory_survives_saving(optimizer: str) -> None:
    def fresh() -> tuple[torch.Tensor, ServerOptimizer]:
        theta = torch.tensor([1.0, 2.0], requires_grad=True)
        return theta, ServerOptimizer([theta], ServerSettings(optimizer=optimizer))  # type: ignore[arg-type]

    theta, whole = fresh()
    whole.apply([torch.tensor([0.5, 0.1])], loss=0.0)
    other, restored = fresh()
    with torch.no_grad():
        other.copy_(theta)
    restored.load_tensors({name: tensor.clone() for name, tensor in whole.tensors().items()})
    for server in (whole, restored):
        server.apply([torch.tensor([-0.3, 0.4])], loss=0.0)
    assert torch.equal(theta, other)


# --- conjugate gradients ---


@dataclass
class Quadratic:
    """tr(θᵀ G θ) - 2 tr(θᵀ B) over `pairs` pairs, as answered by clients; G has rank 4, eigenvalues 1 to 4."""

    ridge: float = 0.5
    rate: float = 0.3
    pairs: int = 10

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        rows, _ = torch.linalg.qr(torch.randn(9, 4, generator=generator, dtype=torch.float64))
        self.gram = rows @ torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64)) @ rows.T
        self.cross = self.gram @ torch.randn(9, 3, generator=generator, dtype=torch.float64)

    @property
    def solution(self) -> torch.Tensor:
        return torch.linalg.solve(self.gram + self.ridge * torch.eye(9, dtype=torch.float64), self.cross)

    def server(self, start: torch.Tensor | None = None) -> ConjugateGradients:
        theta = torch.zeros(9, 3, dtype=torch.float64) if start is None else start.clone()
        settings = ServerSettings(optimizer="cg", ridge=self.ridge)
        return ConjugateGradients([theta.requires_grad_()], settings, self.pairs, self.rate)

    def loss(self, theta: torch.Tensor) -> float:
        """Return the clients' loss, without the penalty; 7 is the part that does not depend on θ."""
        return ((theta * (self.gram @ theta - 2 * self.cross)).sum().item() + 7) / self.pairs

    def round(self, server: ConjugateGradients) -> float:
        server.aim()
        asked = server.theta.detach().clone()
        gradient = 2 * (self.gram @ asked - self.cross) / self.pairs
        return server.apply([self.rate * gradient], self.loss(asked))

    def rounds(self, server: ConjugateGradients, count: int) -> torch.Tensor:
        for _ in range(count):
            self.round(server)
        return server.theta.detach()


def textbook_solution(A: np.ndarray, b: np.ndarray, steps: int) -> np.ndarray:
    """Return the solution by textbook conjugate gradients, starting from 0."""
    x, r = np.zeros_like(b), b.copy()
    p = r.copy()
    for _ in range(steps):
        alpha = (r @ r) / (p @ A @ p)
        x, smaller = x + alpha * p, r - alpha * (A @ p)
        p = smaller + (smaller @ smaller) / (r @ r) * p
        r = smaller
    return x


@pytest.mark.parametrize("ridge", [0.5, 0.0])
def test_conjugate_gradients_solve_in_rank_plus_one_rounds(ridge: float) -> None:
    problem = Quadratic(ridge)
    wanted = problem.solution if ridge else torch.linalg.pinv(problem.gram) @ problem.cross
    assert torch.allclose(problem.rounds(problem.server(), 5), wanted, rtol=0, atol=1e-8)
    assert not torch.allclose(problem.rounds(problem.server(), 4), wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_conjugate_gradients_are_the_textbooks(rounds: int) -> None:
    """All columns of θ at once: one long vector with a block-diagonal matrix. Round 1 only asks for a gradient."""
    problem = Quadratic()
    A = np.kron((problem.gram + problem.ridge * torch.eye(9)).numpy(), np.eye(3))
    literal = textbook_solution(A, problem.cross.flatten().numpy(), rounds - 1)
    ours = problem.rounds(problem.server(), rounds).flatten().numpy()
    np.testing.assert_allclose(ours, literal, rtol=0, atol=1e-10)


def test_conjugate_gradients_from_anywhere() -> None:
    problem = Quadratic()
    start = torch.randn(9, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    assert torch.allclose(problem.rounds(problem.server(start), 6), problem.solution, rtol=0, atol=1e-8)


@pytest.mark.parametrize("start", [0.0, 0.4])
def test_conjugate_gradients_report_the_objective_where_they_have_come_to(start: float) -> None:
    problem = Quadratic()
    server = problem.server(torch.full((9, 3), start, dtype=torch.float64))
    reported = []
    for _ in range(8):
        reported.append(problem.round(server))
        theta = server.theta.detach()
        here = problem.loss(theta) + problem.ridge / problem.pairs * theta.square().sum().item()
        assert reported[-1] == pytest.approx(here, rel=1e-12)
    assert reported[:5] == sorted(reported[:5], reverse=True)


@pytest.mark.parametrize("done", [1, 3])
def test_conjugate_gradients_resume_to_the_same_bits(done: int) -> None:
    problem = Quadratic()
    whole = problem.rounds(problem.server(), 5)
    first = problem.server()
    second = problem.server(problem.rounds(first, done))
    second.load_tensors({name: tensor.clone() for name, tensor in first.tensors().items()})
    assert torch.equal(problem.rounds(second, 5 - done), whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_solved_stays_solved(dtype: torch.dtype) -> None:
    problem = Quadratic()
    wanted = problem.solution.to(dtype)
    problem.gram, problem.cross = problem.gram.to(dtype), problem.cross.to(dtype)
    after = problem.rounds(problem.server(torch.zeros(9, 3, dtype=dtype)), 300)
    assert torch.allclose(after, wanted, rtol=0, atol=1e-8 if dtype == torch.float64 else 1e-4)
    problem.cross.zero_()  # nothing to do from the start
    assert torch.equal(problem.rounds(problem.server(torch.zeros(9, 3, dtype=dtype)), 5), torch.zeros(9, 3))


def test_averaged_weights_by_hand() -> None:
    """Round 1: decay min(0.5, 1/10); round 9: min(0.5, 9/18)."""
    average = AveragedWeights([torch.tensor([0.0])], decay=0.5)
    average.update([torch.tensor([1.0])], round_number=1)
    assert average.values[0].item() == pytest.approx(0.9)
    average.update([torch.tensor([2.0])], round_number=9)
    assert average.values[0].item() == pytest.approx(0.5 * 0.9 + 0.5 * 2)


def test_without_decay_the_average_is_the_last() -> None:
    average = AveragedWeights([torch.tensor([0.0])], decay=0.0)
    average.update([torch.tensor([7.0])], round_number=3)
    assert average.values[0].item() == 7


def test_sampled_clients_change_with_the_round_and_only_with_it() -> None:
    clients, alone = np.array([1, 4, 5, 8, 9, 12, 20, 21]), np.arange(22)
    first, again = (sample_clients(clients, alone, 0.5, seed=3, round_number=1) for _ in range(2))
    assert first.tolist() == again.tolist() == sorted(set(first.tolist()) & set(clients.tolist()))
    assert len(first) == 4
    assert any(sample_clients(clients, alone, 0.5, 3, t).tolist() != first.tolist() for t in range(2, 6))
    assert len(sample_clients(clients, alone, 0.01, 3, 1)) == 1
    assert sample_clients(clients, alone, 1.0, 3, 1) is clients


def test_users_are_sampled_with_all_their_clients() -> None:
    clients, user_of = np.arange(7), np.array([0, 0, 0, 2, 5, 5, 6])  # four users, some with several clients
    drawn = {tuple(sample_clients(clients, user_of, 0.5, 3, t).tolist()) for t in range(50)}
    of = {0: (0, 1, 2), 2: (3,), 5: (4, 5), 6: (6,)}
    assert drawn == {tuple(sorted(of[a] + of[b])) for a in of for b in of if a < b}
