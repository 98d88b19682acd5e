"""`server.trained_rows`: whether the server keeps the rows that clients trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedalc
from fedalc.config.resolve import experiment
from fedalc.data import load_dataset
from fedalc.training.federated import knowledge_for, simulated


def after(**settings: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    keys = {"rounds": 2, "encoder": {"name": "linear", "dim": 16}, "dtype": "float64", **settings}
    chosen = experiment({"dataset": "demo", "preset": "paper", **keys})
    data = load_dataset("demo")
    training = simulated(chosen, data.train, knowledge_for(chosen, data.train))
    for _ in range(chosen.rounds):
        training.run_round()
    return training.model.W, list(training.model.theta)


def test_without_a_server_step_discarded_rows_never_change() -> None:
    start = after(method="fedavg", rounds=1, client={"row_learning_rate": 0.0})[0]
    two_steps = {"epochs": 2, "learning_rate": 0.5, "row_learning_rate": 0.5}
    W, _ = after(method="fedavg", engine="lockstep", client=two_steps, server={"trained_rows": "discard"})
    assert torch.allclose(W, start, atol=1e-12)
    kept, _ = after(method="fedavg", engine="lockstep", client=two_steps)
    assert not torch.allclose(kept, start, atol=1e-3)


@pytest.mark.parametrize(("epochs", "same"), [(1, True), (2, False)])
def test_with_one_local_step_it_is_a_row_rate_of_zero(epochs: int, same: bool) -> None:
    """With two steps a client's second step sees its own moved row, so θ differs."""
    client = {"epochs": epochs, "learning_rate": 0.5}
    keys: dict[str, Any] = {"method": "fedalc", "engine": "lockstep"}
    still = after(**keys, client=client | {"row_learning_rate": 0.0})
    discarded = after(**keys, client=client | {"row_learning_rate": 0.5}, server={"trained_rows": "discard"})
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(still[1], discarded[1], strict=True)) == same


def test_it_is_a_setting() -> None:
    with pytest.raises(fedalc.FedalcError, match="trained_rows"):
        experiment({"dataset": "demo", "server": {"trained_rows": "maybe"}})
