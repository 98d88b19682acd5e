"""The engines compute the same: `clients` is literal, `fused` and `lockstep` have to equal it in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.resolve import experiment
from fedalc.data.dataset import Split
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated

TOLERANCE = 1e-10


def random_split(instances: int, features: int, labels: int, seed: int, per_instance: int = 3) -> Split:
    """Draw sparse instances with up to `per_instance` labels each; some have none, and some have no features."""
    random = np.random.default_rng(seed)
    X = random.random((instances, features)) * (random.random((instances, features)) < 0.3)
    Y = np.zeros((instances, labels))
    for row in Y:
        row[random.choice(labels, random.integers(0, min(per_instance, labels) + 1), replace=False)] = 1
    return Split(csr_matrix(X.astype(np.float32)), csr_matrix(Y.astype(np.float32)))


def start_training(settings: Mapping[str, Any], train: Split, engine: str) -> FederatedTraining:
    """Begin a training in float64, with labels collected as in a run."""
    resolved = experiment({**settings, "dtype": "float64", "engine": engine})
    return simulated(resolved, train, knowledge_for(resolved, train))


def assert_engines_equal(
    settings: Mapping[str, Any], train: Split, rounds: int = 4, engines: tuple[str, str] = ("fused", "clients")
) -> None:
    """Assert that two engines give the same losses, θ, W, averaged weights and bytes."""
    ours, literal = (start_training(settings, train, engine) for engine in engines)
    start = [tensor.detach().clone() for tensor in ours.model.theta]
    between = f"between the engines {' and '.join(engines)}"
    for number in range(1, rounds + 1):
        losses = ours.run_round(), literal.run_round()
        assert np.isclose(*losses, rtol=TOLERANCE), f"round {number}: the losses are {losses[0]} and {losses[1]}"
        assert_same(ours.model.theta, literal.model.theta, f"θ after round {number}", between)
        assert_same([ours.model.W], [literal.model.W], f"W after round {number}", between)
    assert_same(ours.averaged_model().values, literal.averaged_model().values, "the averaged weights", between)
    assert ours.ledger == literal.ledger, f"the engines count {ours.ledger} and {literal.ledger}"
    moved = max(float((before - now).detach().abs().max()) for before, now in zip(start, ours.model.theta, strict=True))
    assert moved > 1e-3, "the encoder has not learned anything, so the engines' equality says nothing"


def assert_same(ours: Sequence[Tensor], theirs: Sequence[Tensor], what: str, between: str) -> None:
    for one, other in zip(ours, theirs, strict=True):
        difference = float((one - other).detach().abs().max()) if one.numel() else 0.0
        close = torch.allclose(one, other, rtol=TOLERANCE, atol=1e-12)
        assert close, f"{what} differs by {difference:.1e} {between}"
