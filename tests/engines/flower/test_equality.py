"""Real apps through a grid in one process: θ and W are those of engine `clients`, whoever holds which labels.

Messages carry float32 as it is, and the sums differ only in the order of addition: float32 results agree to 1e-5 of
their size, float64 ones to 1e-10.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fedalc.collection.hashing import Hasher, canonical_sparse
from fedalc.collection.keys import Key
from fedalc.collection.messages import byte_order
from fedalc.config import FEDERATED, Experiment
from fedalc.data.clients import Federation
from fedalc.data.dataset import Split
from fedalc.encoders import scale_rows
from fedalc.engines import make_engine
from fedalc.engines.flower.server_app import app as server_app
from fedalc.federated import FederatedTraining, knowledge_for
from fedalc.resolution import experiment
from fedalc.trained import TrainedModel
from tests.engines.flower.local_grid import LocalGrid, write_party
from tests.problems import random_split

NAMES = [f"label {u}" for u in range(7)]
OWNED = {101: [0, 4], 7: [1, 2, 3], 55: [5], 9: [6]}  # node → labels
ROUNDS = 3
SETTINGS: dict[str, Any] = {
    "encoder.name": "mlp",
    "encoder.dim": 6,
    "encoder.embedding": 5,
    "encoder.hidden": [8, 7],
    "encoder.dropout": 0.2,
    "client.learning_rate": 0.5,
    "client.row_learning_rate": 0.8,
    "server.learning_rate": 0.05,
    "server.optimizer": "momentum",
    "regularizer.lambda": 10.0,
    "regularizer.rate": 0.01,
    "regularizer.neighbours": 2,
    "fixed.steps": 5,
    "fixed.rate": 0.1,
    "hashing.tables": 2,
    "hashing.buckets": 5,
}
LINEAR: dict[str, Any] = {"encoder.name": "linear", "encoder.dim": 8, "encoder.start": "zero", "encoder.output": "raw"}
LINEAR |= {"client.loss": "square"}


@pytest.fixture(scope="module")
def train() -> Split:
    """Every instance different, so that `content` tells them apart as their row numbers do."""
    split = random_split(50, 20, 7, seed=11)
    kept = np.flatnonzero((split.labels.getnnz(axis=1) > 0) & (split.features.getnnz(axis=1) > 0))
    return split.rows(kept)


@pytest.fixture
def parties(tmp_path: Path, train: Split) -> dict[int, dict[str, Any]]:
    key = tmp_path / "key"
    Key.fresh().write(key)
    nodes = {}
    for node, labels in OWNED.items():
        folder = write_party(tmp_path / f"party {node}", train, labels, [NAMES[u] for u in labels])
        nodes[node] = {"data": str(folder), "key": str(key), "client": f"party {node}"}
    return nodes


def literal_twin(settings: Experiment, train: Split, key: str) -> FederatedTraining:
    """The same in one process, with labels in the order of their pseudonyms and instances' digests as their keys."""
    hasher = Hasher("hmac-sha256", Key.read(key))
    labels = train.labels[:, byte_order(hasher.labels(NAMES))]
    digests = hasher.instances(canonical_sparse(train.features))
    keys = np.ascontiguousarray(digests[:, :8]).view("<i8").ravel()
    federation = Federation(scale_rows(train.features, settings.encoder.features), labels, keys=keys)
    knowledge = knowledge_for(settings, Split(train.features, labels))
    return FederatedTraining(settings, federation, partial(make_engine, settings, federation), knowledge)


def asked(method: str, settings: dict[str, Any], **config: Any) -> dict[str, Any]:
    lines = "\n".join(f"{key}={value!r}".replace("'", '"') for key, value in settings.items())
    return {
        "method": method, "num-server-rounds": ROUNDS, "set": lines, "held-out-share": 0.0, "wait": 5.0,
        "round-timeout": 5.0, "num-parties": len(OWNED), **config,
    }  # fmt: skip


def run(grid: LocalGrid, folder: Path, config: dict[str, Any]) -> TrainedModel:
    server_app(grid, Context(1, 1, {}, RecordDict(), {"run-folder": str(folder), **config}))
    return TrainedModel.load(folder / "model")


def assert_equal(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str, settings: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    found = run(LocalGrid(parties), folder, asked(method, settings))
    overrides = [f"{key}={value!r}".replace("'", '"') for key, value in settings.items()]
    literal_settings = experiment({"method": method, "engine": "clients", "rounds": ROUNDS}, overrides=overrides)
    literal = literal_twin(literal_settings, train, parties[7]["key"])
    start = [parameter.clone() for parameter in literal.model.theta]
    for _ in range(1 if literal.method.one_round else ROUNDS):
        literal.run_round()
    close = {"rtol": 1e-5, "atol": 1e-6} if literal_settings.dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    expected = literal.averaged_model()
    moved = max((before - after).abs().max().item() for before, after in zip(start, expected.theta, strict=True))
    assert moved > 1e-3, "nothing was learnt"
    for ours, theirs in zip(found.model.theta, expected.theta, strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    torch.testing.assert_close(found.model.W, expected.W, **close)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("method", [method for method in FEDERATED if method != "fedalc-oneshot"])
def test_every_method(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str, weights: str
) -> None:
    assert_equal(tmp_path, train, parties, method, SETTINGS | {"server.weights": weights})


@pytest.mark.parametrize("method", ["fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed"])
def test_in_float64_with_minibatches_and_some_clients_a_round(
    tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], method: str
) -> None:
    local = {"dtype": "float64", "client.epochs": 2, "client.batch_size": 3, "server.participation": 0.6}
    assert_equal(tmp_path, train, parties, method, SETTINGS | local)


@pytest.mark.parametrize("set_size", ["exact", "expected", "ignored"])
def test_the_square_loss(tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], set_size: str) -> None:
    square = {"client.set_size": set_size, "client.label_power": 0.3, "server.optimizer": "cg", "dtype": "float64"}
    assert_equal(tmp_path, train, parties, "fedalc-exact", LINEAR | square)


@pytest.mark.parametrize("set_size", ["exact", "expected"])
def test_one_round(tmp_path: Path, train: Split, parties: dict[int, dict[str, Any]], set_size: str) -> None:
    square = {"client.set_size": set_size, "client.label_power": 0.3, "dtype": "float64"}
    assert_equal(tmp_path, train, parties, "fedalc-oneshot", LINEAR | square)
