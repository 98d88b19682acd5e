"""The parts of SLEEC against naive versions that follow the definitions, and a case by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedalc.config.oracle_schema import SleecSettings
from fedalc.config.resolve import experiment
from fedalc.data.dataset import Dataset, Split
from fedalc.models.encoders import scale_rows
from fedalc.oracles import sleec
from fedalc.oracles.sleec import (
    Cluster,
    Sleec,
    cluster_count,
    embedding,
    fit_cluster,
    largest_products,
    masked_step,
    nearest_centres,
    without_smallest,
)
from tests.oracles.following import Counting
from tests.problems import random_split

TRAIN = random_split(50, 15, 6, seed=5)
SCALED = Split(scale_rows(TRAIN.features, "unit"), TRAIN.labels)


def nothing() -> None: ...


def fitted(train: Split = SCALED, **settings: Any) -> tuple[Sleec, Counting]:
    follow = Counting()
    values = experiment({"method": "sleec", "sleec": settings})
    ((_, oracle),) = Sleec.fits(values, train, (None,), follow)
    assert isinstance(oracle, Sleec)
    assert len(follow.steps) == Sleec.steps(values, len(train), train.labels.shape[1], 1)
    return oracle, follow


def test_largest_products() -> None:
    Y = scale_rows(TRAIN.labels, "unit")
    dense = (Y @ Y.T).toarray()
    found = largest_products(Y, 4)
    assert (np.diff(found.indptr) == 4).all()
    for row in range(50):
        own = found[row]
        np.testing.assert_allclose(np.sort(own.data), np.sort(dense[row])[-4:], atol=1e-7)
        np.testing.assert_allclose(own.data, dense[row, own.indices], atol=1e-7)
    assert largest_products(Y, 500).nnz == 50 * 50


def test_a_masked_step_is_a_gradient_step_on_each_factor_in_turn() -> None:
    random = np.random.default_rng(0)
    products = largest_products(scale_rows(TRAIN.labels, "unit"), 7)
    Z, V = (random.normal(size=(50, 3)).astype(np.float32) for _ in range(2))
    places = [(i, j) for i in range(50) for j in products[i].indices]
    target = {place: products[place] for place in places}

    def misfit(Z: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return sum(((Z[i] @ V[j] - float(target[i, j])) ** 2 for i, j in places), torch.zeros((), dtype=torch.float64))

    z, v = (torch.from_numpy(part).double().requires_grad_() for part in (Z, V))
    (gradient,) = torch.autograd.grad(misfit(z, v) / 2, z)
    stepped = (z - 0.1 * gradient).detach()
    (gradient,) = torch.autograd.grad(misfit(stepped, v) / 2, v)
    Z1, V1, size = masked_step(products, Z, V, 0.1)
    np.testing.assert_allclose(Z1, stepped.numpy(), atol=1e-5)
    np.testing.assert_allclose(V1, (v - 0.1 * gradient).detach().numpy(), atol=1e-4)
    assert size == pytest.approx(misfit(z, v).item(), rel=1e-5)


def test_the_embedding_starts_at_the_decomposition() -> None:
    products = largest_products(scale_rows(TRAIN.labels, "unit"), 10)
    start = embedding(products, 5, 0, 0.01, 0, nothing)
    U, sizes, _ = np.linalg.svd(products.toarray())
    np.testing.assert_allclose(np.abs(start[:, 0]), np.abs(U[:, 0] * np.sqrt(sizes[0])), atol=1e-4)
    assert len(start) == 50 and start.shape[1] == 5


def test_the_embedding_is_refined_until_it_gains_little() -> None:
    train = random_split(300, 5, 40, seed=2)
    products = largest_products(scale_rows(train.labels, "unit"), 30)
    counted: list[int] = []
    start, refined = (embedding(products, 10, steps, 0.0, 0, lambda: counted.append(1)) for steps in (0, 5))
    assert len(counted) == 5 and not np.allclose(start, refined)
    few: list[int] = []
    embedding(products, 10, 200, 0.3, 0, lambda: few.append(1))
    assert len(few) < 5


def test_the_smallest_weights_are_dropped() -> None:
    weights = np.array([[3.0, -0.1], [0.5, -2.0]])
    assert without_smallest(weights, 0.5).tolist() == [[3.0, 0.0], [0.0, -2.0]]
    assert without_smallest(weights, 0.2) is weights


def test_nearest_centres() -> None:
    X = csr_matrix(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    centres = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    literal = [min(range(4), key=lambda c: np.linalg.norm(x - centres[c])) for x in X.toarray()]
    assert nearest_centres(X, centres).tolist() == literal


def test_prediction_against_a_slow_twin() -> None:
    oracle, _ = fitted(learners=3, clusters=2, dim=4, neighbours=8, nearest=5)
    X = scale_rows(random_split(20, 15, 6, seed=8).features, "unit").toarray()
    counts = np.zeros((20, 6))
    Y = SCALED.labels.toarray()
    for i, x in enumerate(X):
        for clusters in oracle.learners:
            home = min(clusters, key=lambda c: np.linalg.norm(x - c.centre.numpy()))
            W = np.zeros((15, home.weights.shape[1]))
            W[home.features.numpy()] = home.weights.toarray()
            trained = SCALED.features.toarray()[home.members.numpy()] @ W  # Z = XW, not the raw embedding
            distance = [np.linalg.norm(z - x @ W) for z in trained]
            for near in np.argsort(distance, kind="stable")[:5]:
                counts[i] += Y[home.members.numpy()[near]]
    scores = oracle.scores(csr_matrix(X.astype(np.float32)))(slice(0, 20), slice(0, 6))
    assert (np.floor(scores * 15 + 1e-9) == counts).all(axis=1).mean() >= 0.9  # equal but where distances are tied


def test_sparse_weights_map_as_dense_ones_to_the_bit() -> None:
    oracle, _ = fitted(clusters=2, dim=8, threshold=0.8)
    new = scale_rows(random_split(20, 15, 6, seed=8).features, "unit")
    for cluster in oracle.learners[0]:
        assert cluster.weights.nnz <= 0.2 * np.prod(cluster.weights.shape) + 1
        dense = np.asarray(new[:, cluster.features.numpy()] @ cluster.weights.toarray())
        np.testing.assert_array_equal(cluster.map(new), dense)


def test_the_size_of_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"learners": 2, "clusters": 3, "dim": 5, "neighbours": 8, "nearest": 5}
    whole = fitted(**settings)[0].scores(SCALED.features)(slice(0, 50), slice(0, 6))
    for size in (1, 5000):
        monkeypatch.setattr(sleec, "BLOCK_BYTES", size)
        assert len(list(sleec.row_blocks(50, 24 * 50))) in (50, 13)
        blocked = fitted(**settings)[0].scores(SCALED.features)(slice(0, 50), slice(0, 6))
        np.testing.assert_array_equal(whole, blocked)


def test_memory_counts_the_block_of_products() -> None:
    data = Dataset("small", TRAIN, TRAIN, tuple("abcdef"))
    small, large = (
        Sleec.memory(experiment({"method": "sleec", "sleec": {"threshold": share}}), data) for share in (0.9, 0.0)
    )
    assert large - small == pytest.approx(0.9 * 8 * 100 * 15) and small > 24 * 50**2


def test_worked_by_hand() -> None:
    """Two groups of three: label sets {0, 1} and {2}, and one feature each. Neighbours are in the same group."""
    X = csr_matrix(np.repeat(np.eye(2, dtype=np.float32), 3, axis=0))
    Y = csr_matrix(np.repeat(np.array([[1, 1, 0], [0, 0, 1]], dtype=np.float32), 3, axis=0))
    oracle, _ = fitted(Split(X, Y), neighbours=3, dim=2, cost=0.5, nearest=3, threshold=0.0, steps=0)
    (cluster,) = oracle.learners[0]
    # YYᵀ is all ones within a group, so each group's row of Z has length 1 and the two are orthogonal. Ridge with
    # 1/(2c) = 1 gives 3/(3 + 1) of it. The groups' singular values are equal, so the SVD may rotate Z as it likes.
    weights = cluster.weights.toarray()
    np.testing.assert_allclose(weights @ weights.T, 0.75**2 * np.eye(2), atol=1e-5)
    scores = oracle.scores(csr_matrix(np.eye(2, dtype=np.float32)))(slice(0, 2), slice(0, 3))
    np.testing.assert_allclose(scores, [[1, 1, 0], [0, 0, 1]], atol=1e-6)


def test_of_labels_with_equal_counts_the_first_is_better() -> None:
    Y = csr_matrix(np.array([[0, 1, 1], [0, 1, 0], [0, 0, 1]], dtype=np.float32))
    whole = torch.eye(3)
    cluster = Cluster(torch.zeros(3), torch.arange(3), torch.arange(3), csr_matrix(whole.numpy()), whole)
    scores = Sleec(((cluster,),), Y, 1).scores(csr_matrix(np.eye(3, dtype=np.float32)[:1]))(slice(0, 1), slice(0, 3))
    assert scores[0].argsort()[::-1].tolist() == [1, 2, 0]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"dim": 500, "neighbours": 500, "nearest": 500},
        {"clusters": 50, "dim": 3, "nearest": 2},
        {"clusters": 5000, "learners": 2},
    ],
)
def test_clusters_smaller_than_what_is_asked_of_them(settings: dict[str, int]) -> None:
    oracle, _ = fitted(**settings)
    scores = oracle.scores(SCALED.features)(slice(0, 50), slice(0, 6))
    assert np.isfinite(scores).all()
    for clusters in oracle.learners:
        assert sorted(torch.cat([cluster.members for cluster in clusters]).tolist()) == list(range(50))


def test_instances_without_features_or_labels() -> None:
    empty = csr_matrix((4, 3), dtype=np.float32)
    weights, features = fit_cluster(empty, csr_matrix(np.eye(4, 2)), SleecSettings(), 0, nothing)
    assert weights.shape == (0, 4) and len(features) == 0
    weights, _ = fit_cluster(csr_matrix(np.eye(4, 3)), csr_matrix((4, 2)), SleecSettings(), 0, nothing)
    assert not weights.any()


def test_progress_says_which_learner_and_cluster() -> None:
    _, follow = fitted(learners=2, clusters=2)
    assert follow.steps[0] == "learner 1/2, cluster 1/2" and follow.steps[-1] == "learner 2/2, cluster 2/2"


def test_the_same_seed_gives_the_same_and_learners_differ() -> None:
    one, two = (fitted(learners=2, clusters=3)[0] for _ in range(2))
    members = [[cluster.members.tolist() for cluster in clusters] for clusters in one.learners]
    assert members == [[cluster.members.tolist() for cluster in clusters] for clusters in two.learners]
    assert members[0] != members[1]


def test_one_cluster_for_each_six_thousand_instances() -> None:
    counts = [cluster_count(SleecSettings(), size) for size in (1, 4880, 15539, 1_778_351)]
    assert counts == [1, 1, 3, 296] and cluster_count(SleecSettings(clusters=7), 5) == 5
