"""The naive example gives the same results as the library."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from tests.problems import federated, random_split

NAIVE = Path(__file__).parents[1] / "examples" / "fedalc_naive.py"
TWIN = runpy.run_path(str(NAIVE))
TRAIN = random_split(30, 10, 5, seed=4)
COMMON: dict[str, Any] = {
    "dtype": "float64",
    "encoder": {"name": "linear", "dim": 6, "features": "raw"},
    "client": {"margin": 0.9, "learning_rate": 0.7, "row_learning_rate": 0.4},
    "server": {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "weights": "samples", "ema": 0.0},
    "regularizer": {"form": "full", "weighting": "sigma", "lambda": 5.0, "rate": 0.1, "margin": 1.2},
    "fixed": {"form": "full", "weighting": "sigma", "steps": 4, "rate": 0.2, "margin": 1.1, "alpha": 0.3, "beta": 2.0},
    "embeddings": {"start": "random"},
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "fedalc": {"margin": 0.9, "rate": 0.7, "row_rate": 0.4, "step": 0.5, "nu": 1.2},
    "fedalc-fixed": {"margin": 0.9, "rate": 0.7, "steps": 4, "step": 0.2, "nu": 1.1, "alpha": 0.3, "beta": 2.0},
}


@pytest.mark.parametrize("engine", ["clients", "fused"])
@pytest.mark.parametrize("method", ARGUMENTS)
def test_the_naive_twin(method: str, engine: str) -> None:
    training = federated(fedalc.experiment({**COMMON, "method": method, "engine": engine}), TRAIN)
    start = fedalc.experiment({**COMMON, "method": "fedavg", "engine": engine})  # W as it is before Algorithm 2
    theta, W = federated(start, TRAIN).model.theta[0].detach().numpy().copy(), federated(start, TRAIN).model.W.numpy()
    X, Y = TRAIN.features.toarray(), TRAIN.labels.toarray()
    ours = TWIN[method.replace("-", "_")](theta, W.copy(), X, Y, 3, **ARGUMENTS[method])
    for _ in range(3):
        training.run_round()
    assert np.allclose(ours[0], training.model.theta[0].detach().numpy(), rtol=1e-10, atol=1e-12)
    assert np.allclose(ours[1], training.model.W.numpy(), rtol=1e-10, atol=1e-12)
    assert not np.allclose(ours[0], theta, atol=1e-3)


def test_it_is_short() -> None:
    assert len(NAIVE.read_text().splitlines()) < 120
