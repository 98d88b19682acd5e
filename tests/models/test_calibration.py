"""Probabilities and thresholds as scores; what is saved and refused; what a model gives with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedalc
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.errors import ConfigError, DataError, FedalcError
from fedalc.models.calibration import PREFIX, Calibration, sigmoid
from fedalc.models.thresholds import count_at_levels
from fedalc.workflows.load_model import load_model

DATA = make_demo(DemoSize(train=300, test=100, words=150))


def example(label_count: int = 3) -> Calibration:
    generator = np.random.default_rng(0)
    labels = generator.integers(label_count, size=600)
    truth = generator.random(600) < 0.3
    counts = count_at_levels(generator.normal(size=600) + truth, labels, truth, np.ones(600), label_count)
    offsets = np.linspace(-1, 1, label_count).astype(np.float32)
    return Calibration(np.array([0.1, 0.4]), np.array([20.0, 5.0, 8.0]), offsets, counts, 600)


@pytest.fixture(scope="module")
def run() -> fedalc.Run:
    return fedalc.train(data=DATA, tune=False)


def test_log_odds_by_hand() -> None:
    scores = np.array([[0.0, 0.1, 0.2], [0.4, 0.5, -np.inf]])
    expected = np.array([[-2 - 1, 0, 0.5 + 1], [1.5 - 1, 1.5 + 0.8, -np.inf]])
    np.testing.assert_allclose(example().log_odds(scores), expected, rtol=1e-6)
    np.testing.assert_allclose(example().probabilities(scores), sigmoid(expected), rtol=1e-6)
    np.testing.assert_allclose(example().log_odds(np.array([0.5]), np.array([1])), [2.3])


@pytest.mark.parametrize("rule", ["f1", "precision=0.5", 0.05, 0.5, 0.95])
def test_a_score_reaches_its_threshold_where_its_probability_does(rule: str | float) -> None:
    calibration = example(40)
    scores = np.random.default_rng(1).normal(0.2, 0.4, size=(200, 40))
    by_score = scores >= calibration.score_thresholds(rule)
    by_probability = calibration.probabilities(scores) >= calibration.thresholds(rule)
    assert by_score.any() and not by_score.all()
    np.testing.assert_array_equal(by_score, by_probability)


def test_saved_and_loaded_it_is_the_same() -> None:
    one = example()
    two = Calibration.from_parts(one.parts() | {"W": np.zeros(3)}, 3)
    assert two is not None and two.records == one.records
    for name, part in one.parts().items():
        np.testing.assert_array_equal(part, two.parts()[name])
    assert Calibration.from_parts({"W": np.zeros(3)}, 3) is None


def test_damage_is_refused() -> None:
    parts = example().parts()
    for name, damaged in (
        ("knots", np.array([0.4, 0.1])),
        ("slopes", np.array([20.0, 0.0, 8.0])),
        ("slopes", np.array([20.0, 5.0])),
        ("offsets", np.array([0, np.nan, 0], np.float32)),
        ("offsets", np.zeros(4, np.float32)),
        ("records", np.array([1.5])),
    ):
        with pytest.raises(ValueError, match="calibration"):
            Calibration.from_parts(parts | {PREFIX + name: damaged}, 3)
    with pytest.raises(KeyError):
        Calibration.from_parts({f"{PREFIX}knots": parts[f"{PREFIX}knots"]}, 3)


def test_a_loaded_model_gives_the_same(run: fedalc.Run, tmp_path: Path) -> None:
    run.model.save(tmp_path / "model")
    again, features = load_model(tmp_path / "model"), DATA.test.features
    np.testing.assert_array_equal(again.predict_proba(features), run.model.predict_proba(features))
    for rule in ("f1", "precision=0.8", 0.3):
        assert (again.predict_sets(features, rule) != run.model.predict_sets(features, rule)).nnz == 0


def test_the_best_labels_have_the_probabilities_of_all(run: fedalc.Run) -> None:
    features = DATA.test.features
    every = run.model.predict_proba(features)
    assert every.shape == DATA.test.labels.shape and (every >= 0).all() and (every <= 1).all()
    labels, best = run.model.predict_proba(features, k=4)
    np.testing.assert_array_equal(labels, run.model.predict(features, 4)[0])
    np.testing.assert_allclose(best, np.take_along_axis(every, labels, axis=1), rtol=1e-6)


def test_sets_are_the_labels_whose_probability_is_large_enough(run: fedalc.Run) -> None:
    features, model = DATA.test.features, run.model
    probabilities, calibration = model.predict_proba(features), model.calibration
    assert calibration is not None
    for rule in ("f1", "precision=0.8", 0.3):
        sets = model.predict_sets(features, rule).toarray() > 0
        np.testing.assert_array_equal(sets, probabilities >= calibration.thresholds(rule))
        some = model.predict_sets(features, rule, abstain_below=0.6).toarray() > 0
        np.testing.assert_array_equal(some, sets & (probabilities.max(1) >= 0.6)[:, None])
    assert model.predict_sets(features, 0.3, abstain_below=1.0).nnz == 0


def test_labels_without_a_client_are_never_given(run: fedalc.Run) -> None:
    held = run.model.held.copy()
    held[:3] = False
    model = replace(run.model, held=held)
    assert (model.predict_proba(DATA.test.features)[:, :3] == 0).all()
    assert model.predict_sets(DATA.test.features, 0.01)[:, :3].nnz == 0


def test_what_is_refused(run: fedalc.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    features = DATA.test.features
    with pytest.raises(FedalcError, match=r"no probabilities.*fedalc calibrate"):
        replace(run.model, calibration=None).predict_proba(features)
    with pytest.raises(ConfigError, match="abstain_below"):
        run.model.predict_sets(features, abstain_below=2.0)
    with pytest.raises(DataError, match="features"):
        run.model.predict_sets(features[:, :5])
    monkeypatch.setattr("fedalc.models.predicting.DENSE_LIMIT", 10)
    with pytest.raises(ConfigError, match="give k"):
        run.model.predict_proba(features)


def test_no_instances(run: fedalc.Run) -> None:
    nothing = DATA.test.features[:0]
    assert run.model.predict_proba(nothing).shape == (0, DATA.label_count)
    assert run.model.predict_sets(nothing).shape == (0, DATA.label_count)
