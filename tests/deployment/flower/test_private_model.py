"""A private model with real parties: each adds its share of the noise under its mask, as in the simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.core.seeds import derived_seed
from fedalc.data.dataset import Split
from fedalc.deployment.flower import party_noise
from fedalc.deployment.flower.census import Census
from fedalc.deployment.twin import in_one_process
from fedalc.labels.privacy import SecureGenerator
from fedalc.training.federated import FederatedTraining
from tests.deployment.flower.local_grid import LocalGrid
from tests.deployment.flower.problem import NAMES, RUN_ID, Nodes, asked, overrides, run

SUMS: dict[str, Any] = {
    "encoder.name": "linear",
    "encoder.dim": 8,
    "dtype": "float64",
    "privacy.mechanism": "sums",
    "privacy.epsilon": 4.0,
}
UPDATES = SUMS | {"privacy.mechanism": "updates", "client.loss": "softmax", "server.optimizer": "sgd"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "diagonal": ("fedalc-oneshot", SUMS),
    "full": ("fedalc-oneshot", SUMS | {"privacy.moments": "full", "privacy.noise_dropouts": 1}),
    "updates": ("fedalc-exact", UPDATES),
}


@pytest.fixture
def private(parties: Nodes, tmp_path: Path) -> Nodes:
    return {node: config | {"state": str(tmp_path / f"state {node}")} for node, config in parties.items()}


def config_of(case: str, **more: Any) -> dict[str, Any]:
    method, settings = CASES[case]
    return asked(method, settings, **{"secure-sums": "auto", **more})


def seeded(census: Census) -> Callable[..., SecureGenerator]:
    """The noise of the simulation: by round, question and number of the party."""

    def generator(work: Any, question: Any, parties: int) -> SecureGenerator:
        number = census.roster.parties.index(work.context.node_config["client"])
        purpose, task = f"record noise {work.question['what']}", work.message.content["task"]
        return SecureGenerator.seeded(derived_seed(0, purpose, task.get("round", 1), number))

    return generator


def simulated(case: str, train: Split, key: str, owner: np.ndarray) -> FederatedTraining:
    method, settings = CASES[case]
    more = {"secure_sums.on": True, "privacy.noise": "seeded", "seed": 0}
    keys = {"method": method, "engine": "clients", "rounds": 3}
    training = in_one_process(experiment(keys, overrides=overrides(settings | more)), train, NAMES, key, RUN_ID, owner)
    for _ in range(1 if training.method.one_round else 3):
        training.run_round()
    return training


@pytest.mark.parametrize("case", CASES)
def test_with_the_same_seeds_the_model_is_that_of_the_simulation_to_the_last_bit(
    case: str, private: Nodes, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(LocalGrid(private), tmp_path / "first", config_of(case))
    census = Census.load(tmp_path / "first")
    assert census is not None
    monkeypatch.setattr(party_noise, "generator", seeded(census))
    again = {node: config | {"state": config["state"] + " again"} for node, config in private.items()}
    found = run(LocalGrid(again), tmp_path / "run", config_of(case, seed=0))
    training = simulated(case, train, str(private[7]["key"]), census.roster.owner)
    assert torch.equal(found.model.theta[0], training.model.theta[0])
    assert found.model.theta[0].abs().max() > 0
