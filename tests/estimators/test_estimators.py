"""The estimators pass scikit-learn's own checks, and do in pipelines and searches what others do."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import f1_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedalc


@parametrize_with_checks([fedalc.FedALCClassifier(), fedalc.FedALCEmbedder()])
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    """All of them: no exceptions are declared. (scikit-learn itself skips one, of array libraries that fedalc does not
    name in its tags, unless SCIPY_ARRAY_API is set.)"""
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(y))[:600]  # in their order, writers follow each other
    return X[some] / 16, y[some]


@pytest.fixture(scope="module")
def tagged() -> tuple[np.ndarray, np.ndarray]:
    X, Y = make_multilabel_classification(1000, 20, n_classes=5, random_state=0)
    return X, Y


def test_the_default_is_ridge_regression_without_negatives(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """Clients that have one class each come to what scikit-learn computes from all records in one place."""
    X, y = digits
    even = {"client": {"label_power": 0}}  # all labels count alike, as there
    ours = fedalc.FedALCClassifier(settings=even).fit(X, y)
    chosen = ours.model_.predict(X, k=1)[0][:, 0]
    centralised = RidgeClassifier(alpha=1.0).fit(np.hstack([X, np.ones((len(X), 1))]), y)
    assert (chosen == centralised.predict(np.hstack([X, np.ones((len(X), 1))]))).mean() > 0.99


def test_classes_may_be_words(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    words = np.array(["zero", "one", "two", "three", "four"])
    few = y < 5
    model = fedalc.FedALCClassifier().fit(X[few], words[y[few]])
    assert list(model.classes_) == sorted(words) and set(model.predict(X[few])) == set(words)
    assert model.model_.label_names == tuple(sorted(words)) and model.score(X[few], words[y[few]]) > 0.9


def test_sparse_and_dense_give_the_same(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits[0][:150], digits[1][:150]
    dense = fedalc.FedALCClassifier().fit(X, y).predict_proba(X)
    for sparse in (csr_matrix, csr_array):
        assert np.array_equal(dense, fedalc.FedALCClassifier().fit(sparse(X), y).predict_proba(sparse(X)))


def test_probabilities_are_calibrated(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    model = fedalc.FedALCClassifier().fit(X[:400], y[:400])
    found = model.predict_proba(X[400:])
    assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
    confidence, right = found.max(axis=1).mean(), model.score(X[400:], y[400:])
    assert abs(confidence - right) < 0.1
    assert log_loss(y[400:], found) < 1.5 * log_loss(
        y[400:], LogisticRegression(max_iter=500).fit(X[:400], y[:400]).predict_proba(X[400:])
    )


def test_two_classes(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    two = y < 2
    model = fedalc.FedALCClassifier().fit(X[two], y[two] == 1)
    decision = model.decision_function(X[two])
    assert decision.shape == (two.sum(),) and np.array_equal(decision > 0, model.predict(X[two]))


def test_multilabel(tagged: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = tagged
    model = fedalc.FedALCClassifier().fit(X, Y)
    found, probabilities = model.predict(X), model.predict_proba(X)
    assert found.shape == Y.shape and set(np.unique(found)) == {0, 1}
    some = Y.any(axis=1)  # clients have no records without a label, so that probabilities are those of the others
    assert abs(probabilities[some].mean() - Y[some].mean()) < 0.03 and (found == Y).mean() > 0.7
    sparse = fedalc.FedALCClassifier().fit(X, csr_matrix(Y)).predict(X)
    assert np.array_equal(sparse.toarray(), found)


def test_a_label_that_no_record_has(tagged: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = tagged
    Y = np.hstack([Y, np.zeros((len(Y), 1), int)])
    model = fedalc.FedALCClassifier().fit(X, Y)
    assert not model.predict(X)[:, -1].any() and np.isfinite(model.decision_function(X)).all()
    assert (model.predict_proba(X)[:, -1] == 0).all()


def test_after_a_vectorizer_in_a_grid_search() -> None:
    texts = [f"{'red apple' if n % 2 else 'blue sky'} number {n % 7}" for n in range(60)]
    kinds = ["fruit" if n % 2 else "weather" for n in range(60)]
    pipeline = make_pipeline(TfidfVectorizer(), fedalc.FedALCClassifier())
    search = GridSearchCV(pipeline, {"fedalcclassifier__ridge": [0.1, 1.0]}, cv=3).fit(texts, kinds)
    assert search.best_score_ == 1 and search.predict(["an apple"]) == ["fruit"]


def test_raw_texts() -> None:
    texts = [f"{'red apples' if n % 2 else 'blue skies'} and number {n % 7}" for n in range(60)]
    kinds = ["fruit" if n % 2 else "weather" for n in range(60)]
    model = fedalc.FedALCClassifier(settings={"text": {"words": [1, 1]}}).fit(texts, kinds)
    assert list(model.predict(["apples!", "more skies"])) == ["fruit", "weather"]
    assert model.model_.text is not None and model.score(np.array(texts), kinds) == 1
    assert cross_val_score(fedalc.FedALCClassifier(), texts, kinds, cv=3).min() == 1
    embedded = fedalc.FedALCEmbedder(dim=4).fit(texts, kinds).transform(texts)
    assert embedded.shape == (60, 4)
    with pytest.raises(fedalc.DataError, match="expected a list of texts"):
        model.predict(np.ones((2, 3)))
    for wrong, message in (([], "at least one text"), ([None], "text 0 is missing"), ("apples", r"give \[text\]")):
        with pytest.raises(ValueError, match=message):
            model.predict(wrong)


def test_a_table_of_texts_is_refused_with_what_to_give() -> None:
    texts = np.array(["red apples", "blue skies"] * 10)[:, None]
    for table in (texts, texts.astype(object), texts.tolist()):
        with pytest.raises(ValueError, match=r"found texts.*one column of a table: frame\['text'\]"):
            fedalc.FedALCClassifier().fit(table, ["fruit", "weather"] * 10)
    model = fedalc.FedALCClassifier().fit(texts[:, 0], ["fruit", "weather"] * 10)
    with pytest.raises(ValueError, match=r"expected a list of texts, as in fit, found a table"):
        model.predict(texts)


def test_thresholds(tagged: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = tagged
    model = fedalc.FedALCClassifier(threshold=0.5).fit(X[:700], Y[:700])
    half = model.predict(X[700:])
    assert np.array_equal(half, (model.predict_proba(X[700:]) >= 0.5).astype(int))
    f1 = model.set_params(threshold="f1").predict(X[700:])
    assert f1_score(Y[700:], f1, average="macro") > f1_score(Y[700:], half, average="macro")
    precise = model.set_params(threshold="precision=0.9").predict(X[700:])
    assert precise.sum() < half.sum()
    with pytest.raises(fedalc.ConfigError, match="threshold"):
        model.set_params(threshold="best").predict(X)


@pytest.mark.long
def test_no_probabilities_where_they_would_cost_privacy(tagged: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = tagged
    private = {"privacy": {"epsilon": 1.0}}
    model = fedalc.FedALCClassifier("fedalc", rounds=2, settings=private).fit(X, Y)
    assert model.decision_function(X).shape == Y.shape
    with pytest.raises(fedalc.FedalcError, match="no probabilities"):
        model.predict_proba(X)


def test_parties(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """Records of a label may lie at several parties. The exact method comes to the same model."""
    X, y = digits[0][:300], digits[1][:300]
    parties = np.array(["north", "south", "west"])[np.arange(len(y)) % 3]
    alone, shared = fedalc.FedALCClassifier().fit(X, y), fedalc.FedALCClassifier().fit(X, y, parties=parties)
    assert shared.settings_.clients == "parties" and shared.run_.result["clients"] == 30
    assert np.allclose(alone.decision_function(X), shared.decision_function(X), atol=1e-4)
    with config_context(enable_metadata_routing=True):
        classifier = fedalc.FedALCClassifier().set_fit_request(parties=True)
        scores = cross_val_score(classifier, X, y, cv=2, params={"parties": parties})
        assert scores.min() > 0.7
        pipeline = make_pipeline(classifier).fit(X, y, parties=parties)
        assert pipeline[-1].settings_.clients == "parties"


def test_the_embedder_sets_its_output(digits: tuple[np.ndarray, np.ndarray]) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = digits
    frame = fedalc.FedALCEmbedder(dim=16).set_output(transform="pandas").fit(X, y).transform(X)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns[:2]) == ["fedalcembedder0", "fedalcembedder1"] and frame.shape == (600, 16)


def test_embeddings_times_class_embeddings_are_the_scores(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    embedder, classifier = fedalc.FedALCEmbedder(dim=32).fit(X, y), fedalc.FedALCClassifier(dim=32).fit(X, y)
    products = embedder.transform(X) @ embedder.class_embeddings_.T
    assert np.allclose(products, classifier.model_.scores(X), atol=1e-4)
    assert make_pipeline(embedder, LogisticRegression(max_iter=300)).fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize("method", ["fedalc", "fedalc-exact", "fedavg", "ovr"])
def test_other_methods(method: str, digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    rounds = None if method == "ovr" else 3
    model = fedalc.FedALCClassifier(method, rounds=rounds).fit(X[:200], y[:200])
    assert model.settings_.method == method and model.predict_proba(X).shape == (600, 10)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.predict(X), again.predict(X))
    assert clone(model).get_params() == model.get_params()


def test_the_search(tagged: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = tagged
    model = fedalc.FedALCClassifier(tune=True).fit(X[:50], Y[:50, :3])
    assert model.run_.result["tuning"]["tried"] and model.predict(X).shape == (len(X), 3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "fedalk"}, "did you mean"),
        ({"settings": 3}, "expected a dict"),
        ({"settings": {"encoder": 3}, "dim": 4}, "not both"),
        ({"settings": {"nonsense": 1}}, "nonsense"),
        ({"ridge": "big"}, "ridge"),
        ({"device": "gpu"}, "device"),
        ({"random_state": -1}, "seed"),
        ({"threshold": "best"}, "threshold: expected f1"),
        ({"threshold": 7}, "threshold: expected f1"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(fedalc.ConfigError, match=message) as found:
        fedalc.FedALCClassifier(**parameters).fit([[1.0], [2.0]], [0, 1])
    assert isinstance(found.value, ValueError)


def test_wrong_data(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    wrong: list[tuple[str, Any, Any, Any]] = [
        ("MultiLabelBinarizer", X[:2], [["a"], ["a", "b"]], None),
        ("inconsistent", X[:3], y[:2], None),
        ("continuous", X[:3], [0.1, 0.2, 0.3], None),
        ("NaN", np.full((2, 2), np.nan), [0, 1], None),
        ("parties", X[:3], y[:3], "north"),
        ("2 .*for 3", X[:3], y[:3], ["a", "b"]),
        (r"parties: record 1 has no party \(None\)", X[:3], y[:3], ["a", None, "b"]),
        ("parties: record 0 has no party", X[:3], y[:3], np.array([np.nan, 1, 2])),
        (r"y: labels of several types: record 0 has 1 \(int\), and record 1 '1' \(text\)", X[:3], [1, "1", 2], None),
        ("y: labels of several types", X[:3], np.array([1, "1", 2], dtype=object), None),
        (r"y: the label of record 1 is missing \(None\): leave", X[:3], ["a", None, "b"], None),
        (r"y: the label of record 2 is missing \(nan\): leave", X[:3], ["a", "b", np.nan], None),
    ]
    for message, features, labels, parties in wrong:
        with pytest.raises(fedalc.DataError, match=message) as found:
            fedalc.FedALCClassifier().fit(features, labels, parties=parties)
        assert isinstance(found.value, ValueError)
    with pytest.raises(NotFittedError):
        fedalc.FedALCClassifier().predict(X)
    with pytest.raises(fedalc.ConfigError, match="has no embeddings"):
        fedalc.FedALCEmbedder("ovr").fit(X, y)


def test_classes_are_the_names_of_an_indicator_frame() -> None:
    pandas = pytest.importorskip("pandas")
    Y = pandas.DataFrame(np.eye(3, dtype=int)[np.arange(60) % 3], columns=list("pqr"))
    fitted = fedalc.FedALCClassifier(tune=False).fit(np.eye(60), Y)
    assert fitted.classes_.tolist() == list("pqr") and fitted.predict(np.eye(60)).shape == (60, 3)
