"""The centralised mlp against the same training written with torch's own layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.seeds import torch_generator
from fedalc.oracles.mlp import MLP, _dropped, _start
from tests.oracles.following import Counting
from tests.problems import random_split, small_dataset

TRAIN = random_split(50, 12, 7, seed=3)
LAST: dict[str, Any] = {"selection": {"validation": 0.0}}


def settings(**mlp: Any) -> Any:
    base = {"hidden": 6, "batch_size": 16, "learning_rate": 0.02, "epochs": 3, "dropout": 0.0, "input_dropout": 0.0}
    return experiment({"method": "mlp", "dtype": "float64", "mlp": {**base, **mlp}})


@pytest.mark.parametrize(("loss", "theirs"), [("square", nn.MSELoss), ("logistic", nn.BCEWithLogitsLoss)])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_it_is_torchs_network_and_adam(loss: str, theirs: Any, decay: float) -> None:
    fits = list(MLP.fits(settings(loss=loss, weight_decay=decay), TRAIN, (1, 2, 3), Counting()))
    generator = torch_generator(0, "mlp")
    layers = [layer.double() for layer in _start(12, 6, 7, generator)]
    net = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 7)).double()
    for parameter, start in zip(net.parameters(), layers, strict=True):
        parameter.data = (start.T if start.ndim == 2 else start).clone()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=decay)
    X, Y = (torch.from_numpy(matrix.toarray()).double() for matrix in (TRAIN.features, TRAIN.labels))
    for epoch, (candidate, oracle) in enumerate(fits, start=1):
        for records in torch.randperm(50, generator=generator).split(16):
            optimizer.zero_grad()
            (theirs()(net(X[records]), Y[records]) * 7).backward()
            optimizer.step()
        found = oracle.scores(TRAIN.features)(slice(0, 50), slice(2, 7))
        assert candidate == epoch
        np.testing.assert_allclose(found, net(X)[:, 2:].detach().numpy(), atol=1e-6)


def test_dropout_keeps_the_mean_and_is_off_when_it_scores() -> None:
    dropped = _dropped(torch.ones(200, 500), 0.2, torch_generator(0, "test"))
    assert dropped.unique().tolist() == [0, 1.25] and abs(dropped.mean() - 1) < 0.01
    ((_, oracle),) = MLP.fits(settings(dropout=0.5, input_dropout=0.2), TRAIN, (1,), Counting())
    one, two = (oracle.scores(TRAIN.features)(slice(0, 5), slice(0, 7)) for _ in range(2))
    assert (one == two).all()


def test_validation_chooses_the_epochs_and_they_are_trained_again() -> None:
    data = small_dataset()
    mlp = {"hidden": 8, "epochs": 4, "batch_size": 16, "learning_rate": 0.05}
    run = fedalc.train(data=data, method="mlp", mlp=mlp)
    tried = run.result["selection"]["tried"]
    assert [one["epochs"] for one in tried] == [1, 2, 3, 4]
    assert run.result["selection"]["value"] == max(one["value"] for one in tried)
    again = fedalc.train(data=data, method="mlp", mlp=mlp | {"epochs": run.result["selection"]["epochs"]}, **LAST)
    assert again.metrics == run.metrics
