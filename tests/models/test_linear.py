"""Linear models in numpy: the scores of `TrainedModel`, and nothing but linear models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalc
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.errors import DataError, FedalcError
from fedalc.models.linear import load_linear
from fedalc.models.trained import TrainedModel
from fedalc.workflows.load_model import light_model

DATA = make_demo(DemoSize(train=120, test=40, words=100))
FEW: dict[str, Any] = {"rounds": 2, "selection": {"validation": 0.0}}
SETTINGS: list[dict[str, Any]] = [
    {"tune": False},  # an axis per label
    {"method": "fedalc-oneshot", "encoder": {"dim": 16, "constant": 1.0}, "dtype": "float64"},
    {"method": "fedavg", "encoder": {"dim": 16}, **FEW},  # cosines
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_it_predicts_as_the_trained_model_does(settings: dict[str, Any], tmp_path: Path) -> None:
    data = fedalc.Dataset(
        "x", DATA.train.rows(np.flatnonzero(DATA.train.labels[:, 0].toarray().ravel() == 0)), DATA.test
    )
    trained = fedalc.train(data, **settings).model
    assert not trained.held[0]  # a label without a client
    trained.save(tmp_path / "model")
    linear = load_linear(tmp_path / "model")
    assert linear is not None
    features = data.test.features
    labels, scores = trained.predict(features, 7)
    ours, our_scores = linear.predict(features, 7)
    np.testing.assert_allclose(our_scores, scores, rtol=1e-4, atol=1e-5)
    clear = (np.abs(np.diff(scores, axis=1)) > 1e-4).all(axis=1)
    assert clear.any()
    np.testing.assert_array_equal(ours[clear], labels[clear])
    np.testing.assert_allclose(linear.scores(features), trained.scores(features), rtol=1e-4, atol=1e-5)
    if trained.calibration is not None:
        np.testing.assert_allclose(linear.predict_proba(features), trained.predict_proba(features), atol=1e-4)
    assert linear.predict(features, 1000)[0].shape == trained.predict(features, 1000)[0].shape
    with pytest.raises(DataError, match="the model was trained on 100 features, but these have 5"):
        linear.predict(features[:, :5])


def test_other_models_are_left_to_torch(tmp_path: Path) -> None:
    for name, settings in (
        ("mlp", {"method": "fedavg", "encoder": {"name": "mlp", "embedding": 8, "hidden": [8], "dim": 8}, **FEW}),
        ("copies", {"method": "fedmlh", "encoder": {"dim": 8}, **FEW}),
        ("oracle", {"method": "ovr", "ovr": {"penalties": [1.0]}}),
    ):
        fedalc.train(DATA, **settings).model.save(tmp_path / name)
        assert load_linear(tmp_path / name) is None
        assert light_model(tmp_path / name, "-", "cpu").predict(DATA.test.features, 3)[0].shape == (40, 3)


def test_a_damaged_model_is_refused_as_before(tmp_path: Path) -> None:
    model = fedalc.train(DATA, tune=False).model
    assert isinstance(model, TrainedModel)
    model.model.W[0, 0] = float("nan")
    model.save(tmp_path / "model")
    assert load_linear(tmp_path / "model") is None
    with pytest.raises(FedalcError, match="not finite"):
        light_model(tmp_path / "model", "-", "cpu")


@pytest.mark.long
def test_predict_does_not_import_what_it_does_not_need(tmp_path: Path) -> None:
    """A new process: start-up of a small prediction is mostly imports (docs/predictions.md)."""
    fedalc.train(DATA, tune=False).model.save(tmp_path / "model")
    (tmp_path / "new.txt").write_text("2 100 0\n 1:1 2:1\n 3:1\n")
    code = (
        "import sys\nfrom fedalc.cli.main import main\n"
        "sys.argv = ['fedalc', 'predict', 'model', 'new.txt', '--threshold', 'f1', '--out', 'out.csv']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = 'torch matplotlib sklearn transformers pandas scipy.optimize scipy.stats jinja2 flwr'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.stdout == "[]\n", ended.stdout + ended.stderr
    assert (tmp_path / "out.csv").read_text().startswith("instance,rank,label,name,score,probability\n")
