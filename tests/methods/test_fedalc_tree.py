"""fedalc-tree and fedalc-columns beside a literal twin: each regression by its normal equations, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.clusters import balanced_clusters, random_clusters, unit_vectors
from fedalc.models.column_scoring import ColumnScorer
from fedalc.models.trained import TrainedModel
from fedalc.testing import assert_engines_equal
from fedalc.training.federated import FederatedTraining
from tests.problems import changed, federated, random_split

TRAIN = random_split(60, 20, 9, seed=3)
NEW = random_split(12, 20, 9, seed=4).features
ALL = np.ones(9, dtype=bool)
EXACT: dict[str, Any] = {
    "dtype": "float64",
    "encoder": {"features": "raw"},
    "client": {"label_offset": 0.0},
    "server": {"ridge": 1.0},
    "options": {"steps": 60},
}
METHODS = ("fedalc-tree", "fedalc-columns")


def trained(method: str = "fedalc-tree", **changes: Any) -> FederatedTraining:
    training = federated(fedalc.experiment(changed({"method": method, **EXACT}, changes)), TRAIN)
    training.run_round()
    return training


def scorer(training: FederatedTraining, held: np.ndarray = ALL) -> ColumnScorer:
    return ColumnScorer(training.model, csr_matrix(NEW), held)


def ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)


def log(p: np.ndarray) -> np.ndarray:
    return np.where(p > 0.01, np.log(np.maximum(p, 0.01)), p / 0.01 + np.log(0.01) - 1)


def twin(trees: list[list[np.ndarray]], power: float = 0.2) -> np.ndarray:
    """The scores, with a record's negatives in plain sight. `trees`: the cluster of each label, level by level."""
    x, Y, new = TRAIN.features.toarray().astype(float), TRAIN.labels.toarray().astype(float), NEW.toarray()
    scores = np.zeros((len(new), Y.shape[1]))
    for label in range(Y.shape[1]):
        own_records = Y[:, label] > 0
        for levels in trees:
            above = Y.any(axis=1)
            for cluster in levels:
                below = Y[:, cluster == cluster[label]].any(axis=1)
                if len(np.unique(cluster)) > 1:
                    column = ridge(x[above], below[above].astype(float), 1.0)
                    scores[:, label] += 0.7 * log(new @ column) / len(trees)
                above = below
            support = x[own_records].any(axis=0)
            column = ridge(x[above][:, support], Y[above, label], 1.0)
            scores[:, label] += log(new[:, support] @ column) / len(trees)
        mean = x[own_records].sum(axis=0)
        scores[:, label] += 2 * new @ mean / np.linalg.norm(mean) - power * np.log(own_records.sum())
    return scores + power * np.log(Y.sum(axis=0).min())


def trees_of(training: FederatedTraining) -> list[list[np.ndarray]]:
    """The clusters that W says, by tree and level."""
    columns = training.model.columns
    assert columns is not None
    levels = [part.argmax(1).numpy() for part in training.model.W.split(columns.sizes * len(columns.weights), dim=1)]
    return [levels[at : at + len(columns.sizes)] for at in range(0, len(levels), len(columns.sizes))]


@pytest.mark.parametrize("engine", ["fused", "clients"])
@pytest.mark.parametrize(("method", "sizes"), [("fedalc-tree", [2, 4]), ("fedalc-columns", [1])])
def test_scores_are_those_of_the_twin(method: str, sizes: list[int], engine: str) -> None:
    training = trained(method, engine=engine)
    trees = trees_of(training)
    assert [[len(np.unique(level)) for level in tree] for tree in trees] == [sizes] * (3 if len(sizes) > 1 else 1)
    assert (training.model.W.sum(1) == len(trees) * len(sizes)).all()
    expected = twin(trees)
    np.testing.assert_allclose(scorer(training).of_labels(slice(0, 9)).numpy(), expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(scorer(training).of_instances(slice(2, 5)).numpy(), expected[2:5], rtol=1e-8, atol=1e-9)


def test_levels_of_a_tree_are_nested_and_trees_differ() -> None:
    first, *others = trees_of(trained())
    for level, above in zip(first[1:], first, strict=False):
        assert len(np.unique(np.stack([level, above]), axis=1).T) == len(np.unique(level))
    assert any(not np.array_equal(tree[-1], first[-1]) for tree in others)
    one = trained(options={"trees": 1, "levels": 1})
    assert one.model.columns is not None and one.model.columns.sizes == [4] and one.model.W.shape == (9, 4)


def test_a_cluster_without_labels_is_none() -> None:
    """Five of nine labels have no record: fewer labels than clusters would have at two each."""
    few = Split(TRAIN.features, csr_matrix(TRAIN.labels.toarray() * (np.arange(9) < 3)))
    training = federated(fedalc.experiment({"method": "fedalc-tree", **EXACT}), few)
    training.run_round()
    labels, scores = ColumnScorer(training.model, csr_matrix(NEW), np.arange(9) < 3).top(3)
    assert (labels < 3).all() and torch.isfinite(scores).all()


@pytest.mark.parametrize("kind", ["features", "correlations", "both", "random"])
def test_engines_agree(kind: str) -> None:
    values = changed({"method": "fedalc-tree", **EXACT}, {"options": {"clusters_from": kind}})
    assert_engines_equal(values, TRAIN, rounds=1)
    ours, literal = (trained(engine=engine, options={"clusters_from": kind}).model for engine in ("fused", "clients"))
    for one, other in zip(ours.columns.tensors().values(), literal.columns.tensors().values(), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_beam_of_all_clusters_is_exact() -> None:
    exact = scorer(trained()).of_labels(slice(0, 9))
    labels, scores = scorer(trained(options={"beam": 4, "trees": 3})).top(5)
    torch.testing.assert_close(scores, exact.topk(5).values)
    torch.testing.assert_close(exact.gather(1, labels), scores)


def test_a_beam_of_one_ranks_the_best_cluster_and_as_many_more_as_k_labels_need() -> None:
    training = trained(options={"beam": 1})
    upper, lower = (torch.from_numpy(level) for level in trees_of(training)[0])
    of_clusters = torch.from_numpy(log(scorer(training).encoded[:, :6].numpy()))
    best = (of_clusters[:, :2].repeat_interleave(2, 1) + of_clusters[:, 2:]).argmax(1)
    found = scorer(training).top(1)[0].squeeze(1)
    assert (lower[found] == best).all() and (upper[found] == best // 2).all()
    labels, scores = scorer(training).top(9)
    assert (labels.sort(1).values == torch.arange(9)).all() and torch.isfinite(scores).all()


def test_a_label_without_client_is_never_given() -> None:
    held = ALL.copy()
    held[4] = False
    labels, _ = scorer(trained(), held).top(9)
    assert labels.shape[1] == 8 and (labels != 4).all()
    assert (scorer(trained(), held).of_labels(slice(0, 9))[:, 4] == -torch.inf).all()


def test_clusters_are_halves_of_labels_that_belong_together() -> None:
    groups = np.random.default_rng(0).permutation(np.repeat([0, 1], 8))
    vectors = unit_vectors(csr_matrix(np.eye(2)[groups] + 0.3 * np.random.default_rng(1).random((16, 2))))
    found = balanced_clusters(vectors, 2, np.random.default_rng(2))
    assert np.array_equal(found == found[0], groups == groups[0])
    assert np.bincount(balanced_clusters(vectors, 4, np.random.default_rng(2))).tolist() == [4, 4, 4, 4]
    assert np.bincount(random_clusters(11, 4, np.random.default_rng(0))).tolist() == [3, 3, 3, 2]
    np.testing.assert_allclose(unit_vectors(csr_matrix([[3.0, 4.0], [0, 0]])).toarray(), [[0.6, 0.8], [0, 0]])


@pytest.mark.parametrize("method", METHODS)
def test_a_run_predicts_evaluates_and_loads_again(method: str, tmp_path: Path) -> None:
    names = tuple(f"label {number}" for number in range(9))
    data = Dataset("small", TRAIN, random_split(30, 20, 9, seed=5), names)
    run = fedalc.train(data, method=method, folder=tmp_path / "run", selection={"calibrate": False})
    again = fedalc.load_run(tmp_path / "run")
    assert again.evaluate(data).metrics["P@1"] == run.metrics["P@1"]
    for one, other in zip(run.model.predict(NEW), again.model.predict(NEW), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_saved_training_is_restored() -> None:
    training, other = trained(), federated(fedalc.experiment({"method": "fedalc-tree", **EXACT}), TRAIN)
    other.restore(training.tensors(), training.facts())
    torch.testing.assert_close(scorer(other).top(5), scorer(training).top(5), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine": "flower"}, "engine: fedalc-tree runs on the engines fused and clients"),
        ({"secure_sums": {"on": True}}, "secure_sums.on: fedalc-tree has no secure sums"),
        ({"privacy": {"mechanism": "sums"}}, "privacy"),
        ({"client": {"set_size": "expected"}}, "client.set_size: fedalc-tree needs the number of labels"),
        ({"collection": {"by": "sums"}}, "collection: fedalc-tree needs label sets"),
        ({"encoder": {"constant": 1.0}}, "encoder: fedalc-tree is for encoder linear without a constant"),
        ({"options": {"beam": 0}}, "options.beam"),
        ({"options": {"levels": 9}}, "options.levels"),
    ],
)
def test_what_it_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        fedalc.experiment({"method": "fedalc-tree", **values})


def test_damaged_columns_are_refused(tmp_path: Path) -> None:
    names = tuple(f"label {number}" for number in range(9))
    data = Dataset("small", TRAIN, TRAIN, names)
    model = fedalc.train(data, method="fedalc-tree", selection={"calibrate": False}).model
    columns = model.model.columns
    assert columns is not None
    columns.starts[1] = columns.starts[-1] + 1
    model.save(tmp_path / "model")
    with pytest.raises(FedalcError, match="its parts do not fit together"):
        TrainedModel.load(tmp_path / "model")
