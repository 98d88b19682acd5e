"""embeddings.secret: clients turn all rows of W under their key. Training gives the same scores, with another θ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedalc
from fedalc.config.schema import LARGEST_SECRET
from fedalc.core.registry import METHODS
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.secret_rows import turned
from fedalc.methods.losses import SET_LOSSES
from fedalc.models.class_embeddings import secret_rotation
from fedalc.testing.engines import assert_engines_equal
from fedalc.training.federated import FederatedTraining
from fedalc.training.settings_for_data import with_axes
from tests.problems import changed, federated, random_split, small_dataset

TRAIN = random_split(50, 20, 7, seed=11)
X = torch.from_numpy(TRAIN.features.toarray().astype(np.float64))
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    Key(bytes(range(7, 47))).write(tmp_path / "key")
    return tmp_path / "key"


def started(settings: dict[str, Any], engine: str, key: Path | None) -> FederatedTraining:
    """Return a training in float64; with secret rows if a key is given."""
    secret = {} if key is None else {"embeddings": {"secret": True}, "collection": {"key": str(key)}}
    values = changed({"dtype": "float64", "engine": engine, "method": "fedalc-exact", "block_rows": 7}, settings)
    return federated(fedalc.experiment(changed(values, secret)), TRAIN)


def scores(training: FederatedTraining) -> Tensor:
    """The scores of all labels for all instances, by the definition."""
    (theta,) = training.model.theta
    return (X @ theta @ training.model.W.T).detach()


def assert_same_scores(settings: dict[str, Any], engine: str, key: Path, rounds: int = 3) -> FederatedTraining:
    plain, secret = started(settings, engine, None), started(settings, engine, key)
    for _ in range(rounds):
        assert plain.run_round() == pytest.approx(secret.run_round(), rel=1e-9)
    assert scores(plain).abs().max() > 1e-2, "nothing was learnt"
    torch.testing.assert_close(scores(secret), scores(plain), **CLOSE)
    assert (secret.model.theta[0] - plain.model.theta[0]).abs().max() > 1e-2, "θ is not turned"
    return secret


LINEAR: dict[str, Any] = {"name": "linear", "start": "zero", "output": "raw", "features": "raw"}
ROWS: dict[str, dict[str, Any]] = {
    "orthonormal": {"encoder": LINEAR | {"dim": 9}, "embeddings": {"start": "orthogonal"}},
    "fewer dimensions than labels": {"encoder": LINEAR | {"dim": 4}, "embeddings": {"start": "by-frequency"}},
}
STEPS: dict[str, dict[str, Any]] = {
    "sgd": {"server": {"optimizer": "sgd", "learning_rate": 1.0}, "client": {"learning_rate": 0.3}},
    "newton": {"server": {"optimizer": "newton", "newton_rounds": 2, "ridge": 0.3}},
    "cg": {"server": {"optimizer": "cg", "ridge": 0.3}},
}


@pytest.mark.few(5)
@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("loss", "steps"),
    [*((loss, steps) for loss in SET_LOSSES for steps in ("sgd", "newton")), ("square", "sgd"), ("square", "cg")],
)
def test_scores_are_those_of_rows_that_are_not_turned(key: Path, engine: str, rows: str, loss: str, steps: str) -> None:
    settings = changed(changed(ROWS[rows], STEPS[steps]), {"client": {"loss": loss}})
    assert_same_scores(settings, engine, key)


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize("dim", [4, 9])
def test_one_round(key: Path, engine: str, dim: int) -> None:
    """Each client multiplies its sum by its row, so it sends a matrix in place of a vector."""
    settings = {"method": "fedalc-oneshot", "encoder": LINEAR | {"dim": dim}, "client": {"label_power": 0.3}}
    secret, plain = assert_same_scores(settings, engine, key, rounds=1), started(settings, engine, None)
    plain.run_round()
    clients, features = len(plain.federation.clients), X.shape[1]
    assert secret.ledger.up - plain.ledger.up == 8 * clients * features * (dim - 1)
    assert secret.ledger.down - plain.ledger.down == 8 * clients * dim, "its row"


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", ["logistic", "squared-hinge"])
def test_an_axis_per_label_ends_where_it_does_without_the_turn(key: Path, loss: str) -> None:
    """Newton steps go column by column with axes and not with turned ones, so only the minimum is the same."""
    values: dict[str, Any] = {
        "encoder": LINEAR | {"dim": 7, "constant": 1.0},
        "embeddings": {"start": "by-frequency"},
        "client": {"loss": loss},
        "server": {"optimizer": "newton", "newton_rounds": 30, "ridge": 1.0},
    }
    plain, secret = started(values, "fused", None), started(values, "fused", key)
    assert plain.method.has_axes and not secret.method.has_axes
    for _ in range(90):
        plain.run_round()
        secret.run_round()
    found, expected = (training.model.theta[0] @ training.model.W.T for training in (secret, plain))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].trains_rows])
def test_engines_agree_or_the_method_is_refused_by_name(key: Path, method: str) -> None:
    values = {
        "method": method,
        "encoder": {"dim": 9, "dropout": 0.0, "name": "linear", "start": "he"},
        "embeddings": {"secret": True},
        "collection": {"key": str(key)},
    }
    if method in ("feduv", "fedmlh", "fedncm", "fed3r", "fedalc-plda", "fedalc-tree", "fedalc-columns"):
        with pytest.raises(ConfigError, match=rf"embeddings\.secret: {method} "):
            fedalc.experiment(values)
    else:
        assert_engines_equal(values, TRAIN, rounds=1 if METHODS[method].one_round else 3)


@pytest.mark.parametrize("loss", ["square", "softmax"])
def test_an_mlp(key: Path, loss: str) -> None:
    """θ does not start at zero, so the training is another one: only the engines are compared."""
    mlp = {"name": "mlp", "embedding": 5, "hidden": (8, 7), "dim": 6, "dropout": 0.2, "shortcut": False}
    settings = {"method": "fedalc-exact", "encoder": mlp, "client": {"loss": loss}, "server": {"optimizer": "adam"}}
    assert_engines_equal(settings | {"embeddings": {"secret": True}, "collection": {"key": str(key)}}, TRAIN)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "fedalc"}, r"embeddings\.secret: fedalc trains rows"),
        ({"method": "ovr"}, r"embeddings\.secret: ovr is centralised"),
        ({"collection": {"key": None}}, r"name its file \(--key FILE, .*; make one: fedalc key new FILE\)"),
        ({"collection": {"key": None, "algorithm": "sha256"}}, r"name its file \(--key FILE"),
        ({"tuning": {"search": True}}, r"leave it out \(--no-tune, in Python tune=False\)"),
        ({"encoder": {"dim": LARGEST_SECRET + 1}}, r"4097 is too large to turn: at most 4096"),
    ],
)
def test_what_does_not_go_with_it(key: Path, values: dict[str, Any], message: str) -> None:
    secret = {"method": "fedalc-exact", "embeddings": {"secret": True}, "collection": {"key": str(key)}}
    fedalc.experiment(secret)
    with pytest.raises(ConfigError, match=message):
        fedalc.experiment(changed(secret, values))


def test_a_key_file_that_is_missing_is_named(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"embeddings": {"secret": True}, "collection": {"key": str(tmp_path / "none")}}
    with pytest.raises(FedalcError, match="there is no such key file"):
        fedalc.train(data=small_dataset(), method="fedalc-oneshot", **keys)


def test_a_run_predicts_as_without(tmp_path: Path, key: Path) -> None:
    """In a simulation the key is here, so the saved model is complete."""
    data = small_dataset()
    keys: dict[str, Any] = {"embeddings": {"secret": True}, "collection": {"key": str(key)}}
    runs = [
        fedalc.train(data=data, method="fedalc-oneshot", dtype="float64", folder=tmp_path / name, **more)
        for name, more in (("secret", keys), ("plain", {}))
    ]
    assert runs[0].metrics == pytest.approx(runs[1].metrics)
    (_, secret), (_, plain) = (fedalc.load_run(run.folder).model.predict(data.test.features) for run in runs)
    np.testing.assert_allclose(secret, plain, **CLOSE)


def test_the_fixed_setting_keeps_a_dimension_per_label(key: Path) -> None:
    data, secret = small_dataset(), {"embeddings": {"secret": True}, "collection": {"key": str(key)}}
    settings = fedalc.experiment({"method": "fedalc-oneshot", **secret})
    assert with_axes(settings, data).encoder.dim == data.label_count
    many = small_dataset(labels=LARGEST_SECRET + 1, instances=3)
    assert with_axes(settings, many) == settings


# --- the rotation ---


def hasher(secret: int = 7, run: str = "") -> Hasher:
    return Hasher("hmac-sha256", Key(bytes(range(secret, secret + 40))), run=run)


def test_a_rotation_belongs_to_a_key_and_a_run() -> None:
    W = torch.eye(6, dtype=torch.float64)
    different = [turned(W, hasher(*of)) for of in ((7,), (8,), (7, "march"), (7, "april"))]
    for number, R in enumerate(different):
        torch.testing.assert_close(R @ R.T, W)
        assert not any(torch.allclose(R, other) for other in different[:number])
    assert torch.equal(turned(W, hasher(7, "march")), different[2])
    assert turned(W.float(), hasher()).dtype == torch.float32
    with pytest.raises(FedalcError, match="sha256 uses no key"):
        turned(W, Hasher("sha256", None))


def test_a_row_is_turned_by_itself_as_with_all_others() -> None:
    W = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(turned(W, hasher())[[4]], turned(W[[4]], hasher()))


def test_rotations_are_uniform() -> None:
    """First and fourth moments of the entries, and of the determinant, over 4,000 of them: those of O(3)."""
    drawn = torch.stack([secret_rotation(number.to_bytes(8, "big"), 3) for number in range(4000)])
    assert drawn.mean(0).abs().max() < 0.04  # standard error 0.009
    assert (drawn.square().mean(0) - 1 / 3).abs().max() < 0.02
    assert (drawn.pow(4).mean(0) - 1 / 5).abs().max() < 0.02
    assert drawn.det().mean().abs() < 0.06 and bool((drawn.det().abs() - 1).abs().max() < 1e-12)


def test_a_rotation_is_always_the_same() -> None:
    """Parties of a run may have other versions: what is drawn for a key may not change."""
    cosine, sine = 0.3574265325489756, 0.9339412582330948
    expected = torch.tensor([[cosine, sine], [sine, -cosine]], dtype=torch.float64)
    torch.testing.assert_close(secret_rotation(b"a secret", 2), expected, rtol=0, atol=1e-12)
