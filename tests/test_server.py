"""The server's side of θ, by hand: each optimiser's first two steps with decay, averaged weights, who takes part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedalc.config import ServerSettings
from fedalc.server import AveragedWeights, ServerOptimizer, sample_clients

CHANGES = (0.5, -0.2)  # the averaged change of a θ that starts at 1


def two_steps(**keys: object) -> float:
    theta = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = ServerOptimizer([theta], ServerSettings(**keys))  # type: ignore[arg-type]
    for change in CHANGES:
        optimizer.apply([torch.tensor([change], dtype=torch.float64)])
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
    whole.apply([torch.tensor([0.5, 0.1])])
    other, restored = fresh()
    with torch.no_grad():
        other.copy_(theta)
    restored.load_tensors({name: tensor.clone() for name, tensor in whole.tensors().items()})
    for server in (whole, restored):
        server.apply([torch.tensor([-0.3, 0.4])])
    assert torch.equal(theta, other)


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
    clients = np.array([1, 4, 5, 8, 9, 12, 20, 21])
    first, again = (sample_clients(clients, 0.5, seed=3, round_number=1) for _ in range(2))
    assert first.tolist() == again.tolist() == sorted(set(first.tolist()) & set(clients.tolist()))
    assert len(first) == 4
    assert any(sample_clients(clients, 0.5, 3, t).tolist() != first.tolist() for t in range(2, 6))
    assert len(sample_clients(clients, 0.01, 3, 1)) == 1
    assert sample_clients(clients, 1.0, 3, 1) is clients
