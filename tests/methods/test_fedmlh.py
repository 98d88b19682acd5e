"""FedMLH against its sub-models trained separately: the same models, the same scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils import murmurhash3_32

import fedalc
from fedalc.config.resolve import experiment
from fedalc.engines import make_engine
from fedalc.errors import ConfigError
from fedalc.methods.fedmlh import FedMLH
from fedalc.models.model import Model
from fedalc.models.scoring import Scorer
from fedalc.training.federated import FederatedTraining
from fedalc.training.server_optimizers import make_optimizer
from tests.problems import federated, random_split, small_dataset

TRAIN = random_split(60, 20, 8, seed=4)
SMALL: dict[str, Any] = {
    "dtype": "float64",
    "encoder": {"name": "mlp", "dim": 6, "embedding": 5, "hidden": (7,), "dropout": 0.0},
    "server": {"optimizer": "adam", "learning_rate": 0.05, "weight_decay": 0.1},
    "client": {"learning_rate": 0.5},
}


def together(tables: int = 3, buckets: int = 4, **changes: Any) -> FederatedTraining:
    hashing = {"tables": tables, "buckets": buckets}
    return federated(experiment({**SMALL, "method": "fedmlh", "hashing": hashing, **changes}), TRAIN)


def test_labels_of_a_bucket_share_its_row() -> None:
    W, method = together().model.W, together().method
    assert isinstance(method, FedMLH)
    for table, part in enumerate(method.parts):
        for label in range(8):
            bucket = murmurhash3_32(label, seed=table, positive=True) % 4
            assert method.buckets[table][label] == bucket
            for other in range(8):
                same = murmurhash3_32(other, seed=table, positive=True) % 4 == bucket
                cosine = (W[label, part] @ W[other, part]).item()
                assert cosine == pytest.approx(1.0 if same else 0.0, abs=1e-12)  # 4 buckets in 6 dimensions: orthogonal


@pytest.mark.parametrize("engine", ["fused", "clients"])
def test_the_sub_models_train_as_if_each_were_alone(engine: str) -> None:
    whole = together(engine=engine)
    alone = [one_table(whole, table, engine) for table in range(3)]
    for _ in range(4):
        loss = whole.run_round()
        assert loss == pytest.approx(sum(training.run_round() for training in alone) / 3, rel=1e-10)
    ours = list(whole.model.encoder.encoders)  # type: ignore[union-attr,arg-type]
    for sub_model, training in zip(ours, alone, strict=True):
        for mine, theirs in zip(sub_model.parameters(), training.model.theta, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-12)


def one_table(whole: FederatedTraining, table: int, engine: str) -> FederatedTraining:
    """Return fedavg-fixed with this sub-model's encoder and rows, from the same initial weights."""
    training = federated(experiment({**SMALL, "method": "fedavg-fixed", "engine": engine}), TRAIN)
    encoder = whole.model.encoder.encoders[table]  # type: ignore[union-attr,index]
    fresh = {name: value.clone() for name, value in encoder.state_dict().items()}
    training.model.encoder.load_state_dict(fresh)
    training.model.W = whole.model.W[:, whole.method.parts[table]].clone()
    training.engine = make_engine(training.settings, training.federation, training.method)
    training.server = make_optimizer(training.model.theta, training.settings, 1)
    return training


def test_a_labels_score_is_the_sum_over_tables() -> None:
    training = together()
    training.run_round()
    everyone = np.ones(8, dtype=bool)
    scores = Scorer(training.model, TRAIN.features, everyone).of_labels(slice(None))
    parts = [
        Scorer(Model(encoder, training.model.W[:, part]), TRAIN.features, everyone).of_labels(slice(None))
        for encoder, part in zip(training.model.encoder.encoders, training.method.parts, strict=True)  # type: ignore[union-attr,arg-type]
    ]
    assert torch.allclose(scores, torch.stack(parts).sum(0), rtol=1e-12)


def test_sub_models_start_apart_and_drop_different_units() -> None:
    training = together(encoder={**SMALL["encoder"], "dropout": 0.5})
    first, second, _ = training.model.encoder.encoders  # type: ignore[union-attr,misc]
    assert not torch.equal(first.embedding, second.embedding)
    assert (first.first_layer, second.first_layer) == (0, 2)


def test_bytes_are_those_of_all_sub_models() -> None:
    one, four = together(tables=1), together(tables=4)
    for training in (one, four):
        training.run_round()
    assert four.ledger.up == 4 * one.ledger.up
    assert four.ledger.down == 4 * one.ledger.down


def test_saved_and_loaded(tmp_path: Path) -> None:
    data = small_dataset()
    run = fedalc.train(data=data, method="fedmlh", rounds=2, folder=tmp_path / "run")
    again = fedalc.load_run(tmp_path / "run").model
    assert again.feature_count == data.feature_count
    for ours, theirs in zip(run.model.predict(data.test.features), again.predict(data.test.features), strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"embeddings": {"start": "by-frequency"}}, "embeddings.start"),
        ({"server": {"optimizer": "cg"}, "client": {"loss": "square"}}, "server.optimizer"),
        ({"hashing": {"tables": 0}}, "hashing.tables"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        experiment({"method": "fedmlh", "encoder": {"name": "linear"}, **changes})
