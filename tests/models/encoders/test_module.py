"""The user's own torch.nn.Module as encoder, by name or as an object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

import fedalc
from fedalc.config.schema import EncoderSettings
from fedalc.core.registry import ENCODERS
from fedalc.models.encoders import SparseRows, make_encoder
from fedalc.testing import assert_engines_equal
from tests.problems import random_split, small_dataset, small_pictures

FEW: dict[str, Any] = {"method": "fedavg-fixed", "rounds": 3, "selection": {"validation": 0}}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Remove registrations after each test."""
    before = dict(ENCODERS._registered)
    yield
    ENCODERS._registered.clear()
    ENCODERS._registered.update(before)


class Net(nn.Module):
    def __init__(self, feature_count: int, settings: EncoderSettings) -> None:
        super().__init__()
        self.first = nn.Linear(feature_count, 9)
        self.norm = nn.LayerNorm(9)
        self.last = nn.Linear(9, settings.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.mark.few(5)
@pytest.mark.parametrize("changes", [{}, {"server": {"participation": 0.3}}, {"client": {"sample": 0.5}}], ids=str)
@pytest.mark.parametrize("method", ["fedalc", "fedmlh", "fedavg-fixed"])
def test_engines_are_equal(method: str, changes: dict[str, Any]) -> None:
    fedalc.register_encoder("net")(Net)
    settings: dict[str, Any] = {
        "method": method,
        "block_rows": 7,
        "encoder": {"name": "net", "dim": 5},
        "server": {"optimizer": "momentum", "learning_rate": 0.5, **changes.get("server", {})},
        "client": {"learning_rate": 0.5, **changes.get("client", {})},
    }
    assert_engines_equal(settings, random_split(40, 60, 6, seed=3))


def test_the_start_follows_from_the_seed_and_leaves_torchs_generator_alone() -> None:
    fedalc.register_encoder("net")(Net)
    before = torch.get_rng_state()

    def weights(seed: int) -> Tensor:
        settings = EncoderSettings(name="net", dim=4)
        return next(make_encoder(20, settings, torch.Generator().manual_seed(seed)).parameters())

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dense_block_is_the_sparse_one() -> None:
    for share in (0.1, 0.9):  # kept sparse, kept dense
        X = np.random.default_rng(0).random((6, 8)) * (np.random.default_rng(1).random((6, 8)) < share)
        assert np.allclose(SparseRows(csr_matrix(X), np.arange(6), torch.float64, "cpu").dense(), X)


def test_a_module_is_taken_as_it_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    data = small_dataset()
    network = nn.Sequential(nn.Linear(data.feature_count, 9), nn.ReLU(), nn.Linear(9, 6))
    start = network[0].weight.detach().clone()
    run = fedalc.train(dataset=data, encoder=network, folder=tmp_path / "run", **FEW)
    assert torch.equal(network[0].weight, start), "the user's module was changed"
    name = run.settings.encoder.name
    assert name.startswith("Sequential-") and run.settings.encoder.dim == 6
    model = run.model
    assert isinstance(model, fedalc.TrainedModel)
    trained = dict(model.model.encoder.named_parameters())["module.0.weight"]
    assert trained.shape == start.shape and not torch.equal(trained, start)
    again = fedalc.load_run(tmp_path / "run").model
    assert np.array_equal(again.predict(data.test.features)[0], model.predict(data.test.features)[0])
    other = nn.Sequential(nn.Linear(data.feature_count, 9), nn.Tanh(), nn.Linear(9, 6))
    assert fedalc.train(dataset=data, encoder=other, **FEW).settings.encoder.name != name
    again = fedalc.load_run(tmp_path / "run").model
    assert np.array_equal(again.predict(data.test.features)[0], model.predict(data.test.features)[0])
    ENCODERS._registered.pop(name)
    with pytest.raises(fedalc.FedalcError, match=rf"unknown encoder '{name}'.*--plugin"):
        fedalc.load_run(tmp_path / "run")
    fedalc.register_encoder(name)(network)
    assert fedalc.load_run(tmp_path / "run").model.feature_count == data.feature_count


def test_a_module_stays_in_evaluation_mode() -> None:
    class Dropping(nn.Module):
        dim = 6

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 6)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.layer(x), 0.5, training=self.training)

    data = small_dataset()
    first, second = (fedalc.train(dataset=data, encoder=Dropping().eval().train(), **FEW) for _ in range(2))
    assert np.array_equal(*(first.model.predict(data.test.features)[0] for _ in range(2)))
    assert second.settings == first.settings


def test_pictures() -> None:
    class Tiny(nn.Module):
        pictures: ClassVar[bool] = True

        def __init__(self, feature_count: int, settings: EncoderSettings) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.last = nn.Linear(4, settings.dim)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layers(x))

    fedalc.register_encoder("tiny")(Tiny)
    data = small_pictures()
    run = fedalc.train(dataset=data, encoder={"name": "tiny", "dim": 5}, images={"size": 16}, **FEW)
    assert run.model.predict(data.test.features)[0].shape == (12, 4)
    with pytest.raises(fedalc.ConfigError, match="tiny does not fit"):
        fedalc.train(dataset=small_dataset(), encoder={"name": "tiny", "dim": 5}, **FEW)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((nn.Linear(20, 6), nn.Dropout(0.5)), "Dropout, which would drop different units"),
        ((nn.Linear(20, 6), nn.BatchNorm1d(6)), "BatchNorm1d, whose output depends"),
        ((nn.Linear(20, 6), nn.Linear(6, 4), nn.Flatten(0)), "expected: set it to the width"),
        ((nn.ReLU(),), "the output width of Sequential is unknown"),
    ],
    ids=str,
)
def test_modules_that_cannot_be_encoders_are_refused(layers: tuple[nn.Module, ...], said: str) -> None:
    with pytest.raises(fedalc.ConfigError, match=said):
        fedalc.train(dataset=small_dataset(), encoder=nn.Sequential(*layers), **FEW)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"encoder": {"name": "net", "dropout": 0.5}}, r"encoder\.dropout: the encoder net does not support"),
        ({"encoder": {"name": "net", "shortcut": True}}, r"encoder\.shortcut"),
        ({"encoder": {"name": "net"}, "engine": "flower"}, "real parties train built-in encoders only"),
        ({"encoder": {"name": "net"}, "method": "fedalc-oneshot"}, "quadratic only with encoder.name"),
    ],
)
def test_settings_that_need_a_built_in_encoder_are_refused(settings: dict[str, Any], said: str) -> None:
    fedalc.register_encoder("net")(Net)
    with pytest.raises(fedalc.ConfigError, match=said):
        fedalc.experiment({"method": "fedavg-fixed", **settings})


def test_fedalc_exact_takes_steps() -> None:
    fedalc.register_encoder("net")(Net)
    settings = fedalc.experiment({"method": "fedalc-exact", "encoder": {"name": "net"}})
    assert settings.server.optimizer == "adam" and settings.client.loss == "square"


def test_what_is_not_a_module_is_refused() -> None:
    for wrong in (int, "net", lambda x: x):
        with pytest.raises(fedalc.ConfigError, match="is not an encoder"):
            fedalc.register_encoder("wrong")(wrong)
