"""SLEEC (Bhatia et al., 2015), centralised: nearest neighbours in an embedding that preserves similar label sets.

Each learner clusters the instances. In each cluster it embeds the label sets so that the products of the most similar
ones are preserved (Z), and fits a regression from features to embeddings (X → Z). To score a new instance, each learner
maps it in its nearest cluster; the score of a label counts the nearest training instances of all learners that have it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.oracle_schema import SleecSettings
from fedalc.core.saved_parts import numbers, places
from fedalc.core.seeds import derived_seed
from fedalc.data.dataset import Dataset, Split
from fedalc.models.encoders import scale_rows
from fedalc.oracles.base import Follow, Oracle, Scores, blocks

KMEANS_STEPS = 7
PRODUCT_BYTES = 24  # per product of two label sets: sparse, dense, negated and sorted
CLUSTER_SIZE = 6000  # average, if the number of clusters is not set
BLOCK_BYTES = 2**28  # memory for dense intermediates of one block of instances


@dataclass(frozen=True)
class Cluster:
    """The training instances nearest to one centre, and the map from features to their embeddings."""

    centre: Tensor
    members: Tensor  # row numbers of train
    features: Tensor  # the features that occur in the cluster; all others have weight zero
    weights: csr_matrix  # one row per feature of the cluster; on large data most weights are zero
    embedded: Tensor  # the members, mapped from their features like any new instance

    def map(self, features: csr_matrix) -> np.ndarray:
        used = features[:, self.features.numpy()]
        mapped = np.empty((features.shape[0], self.weights.shape[1]), np.float32)
        for rows in row_blocks(features.shape[0], 16 * self.weights.shape[1]):  # the sparse product and the dense one
            mapped[rows] = (used[rows] @ self.weights).toarray()
        return mapped

    def nearest(self, features: csr_matrix, k: int) -> np.ndarray:
        """Return the row numbers of the k nearest members of each instance, or of all members if there are fewer."""
        from sklearn.neighbors import NearestNeighbors  # slow to load, as below

        search = NearestNeighbors(n_neighbors=min(k, len(self.members)), algorithm="brute")
        neighbours = search.fit(self.embedded.numpy()).kneighbors(self.map(features), return_distance=False)
        return self.members.numpy()[neighbours]


@dataclass(frozen=True)
class Sleec(Oracle):
    """The score of label u is the share of neighbours, over all learners, that have it. Ties: the first label wins."""

    learners: tuple[tuple[Cluster, ...], ...]
    labels: csr_matrix  # of the training instances
    neighbours: int

    kind = "sleec"
    help = "nearest neighbours in learned embeddings of label sets"
    use_when = "To compare with the oracle of the paper"
    colour = "#8A3B52"  # wine
    sections = ("sleec",)

    @staticmethod
    def candidates(settings: Experiment) -> tuple[float | None, ...]:
        return (None,)

    @staticmethod
    def steps(settings: Experiment, instances: int, labels: int, candidates: int) -> int:
        return candidates * settings.sleec.learners * cluster_count(settings.sleec, instances)

    @staticmethod
    def memory(settings: Experiment, data: Dataset) -> float:
        ours, instances = settings.sleec, len(data.train)
        clusters = cluster_count(ours, instances)
        largest = min(instances, 2 * instances / clusters)
        used = min(data.feature_count, data.train.features.nnz / clusters)
        weights = 2 * (1 - ours.threshold) * clusters * used  # nonzero values and their positions
        model = ours.learners * 4 * (ours.dim * (instances + weights) + 2 * clusters * data.feature_count)
        solving = 16 * min(used, largest) ** 2 + 24 * used * ours.dim + largest * (24 * ours.neighbours + 32 * ours.dim)
        return model + solving + min(BLOCK_BYTES, PRODUCT_BYTES * largest**2)

    @classmethod
    def fits(
        cls, settings: Experiment, train: Split, candidates: tuple[float | None, ...], follow: Follow
    ) -> Iterator[tuple[float | None, Oracle]]:
        ours = settings.sleec
        learners = tuple(fit_learner(train, ours, settings.seed, number, follow) for number in range(ours.learners))
        for candidate in candidates:
            yield candidate, cls(learners, train.labels, ours.nearest)

    @property
    def feature_count(self) -> int:
        return len(self.learners[0][0].centre)

    def scores(self, features: csr_matrix) -> Scores:
        total = len(self.learners) * self.neighbours
        counts = sum(self._counts(features, clusters) for clusters in self.learners)
        tie = np.linspace(1e-6, 0, self.labels.shape[1])

        def of(rows: slice, labels: slice) -> np.ndarray:
            return np.asarray((counts[rows, labels].toarray() + tie[labels]) / total)

        return of

    def _counts(self, features: csr_matrix, clusters: tuple[Cluster, ...]) -> csr_matrix:
        """Return how many of each instance's neighbours have each label: instances × labels."""
        home = nearest_centres(features, torch.stack([cluster.centre for cluster in clusters]).numpy())
        rows, neighbours = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for number, cluster in enumerate(clusters):
            here = np.flatnonzero(home == number)
            if len(here):
                near = cluster.nearest(features[here], self.neighbours)
                rows.append(np.repeat(here, near.shape[1]))
                neighbours.append(near.ravel())
        pairs = (np.concatenate(rows), np.concatenate(neighbours))
        shape = (features.shape[0], self.labels.shape[0])
        return csr_matrix((np.ones(len(pairs[0])), pairs), shape=shape) @ self.labels

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            f"{learner}.{number}.{name}": tensor
            for learner, clusters in enumerate(self.learners)
            for number, cluster in enumerate(clusters)
            for name, tensor in _cluster_parts(cluster).items()
        }
        tensors |= {"labels.starts": torch.from_numpy(self.labels.indptr.astype(np.int64))}
        tensors |= {"labels.index": torch.from_numpy(self.labels.indices.astype(np.int64))}
        return tensors, {"neighbours": self.neighbours}

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Sleec:
        index = places(tensors, "labels.index", len(facts["labels"]))
        labels = _sparse(tensors, "labels", torch.ones(len(index)), len(facts["labels"]))
        names = {tuple(map(int, key.split(".")[:2])) for key in tensors if key.endswith(".centre")}
        learners = tuple(
            tuple(_cluster(tensors, f"{a}.{b}.", labels.shape[0]) for a, b in own)
            for _, own in groupby(sorted(names), key=lambda place: place[0])
        )
        if not learners or len({len(cluster.centre) for clusters in learners for cluster in clusters}) > 1:
            raise ValueError("no learner, or centres of different lengths")
        neighbours = facts["neighbours"]
        if type(neighbours) is not int or neighbours < 1:
            raise ValueError(f"{neighbours!r} neighbours")
        return cls(learners, labels, neighbours)


def _cluster_parts(cluster: Cluster) -> dict[str, Tensor]:
    weights = cluster.weights
    return {
        "centre": cluster.centre,
        "members": cluster.members,
        "features": cluster.features,
        "weights.starts": torch.from_numpy(weights.indptr.astype(np.int64)),
        "weights.index": torch.from_numpy(weights.indices.astype(np.int64)),
        "weights.values": torch.from_numpy(weights.data),
        "embedded": cluster.embedded,
    }


def _cluster(tensors: Mapping[str, Tensor], prefix: str, instances: int) -> Cluster:
    centre, embedded = numbers(tensors, prefix + "centre", 1), numbers(tensors, prefix + "embedded", 2)
    members = places(tensors, prefix + "members", instances)
    features = places(tensors, prefix + "features", len(centre))
    if prefix + "weights" in tensors:  # as they were saved at first, zeros and all
        weights = csr_matrix(numbers(tensors, prefix + "weights", 2).numpy())
    else:
        values = numbers(tensors, prefix + "weights.values", 1)
        weights = _sparse(tensors, prefix + "weights", values, embedded.shape[1])
    if (
        weights.shape != (len(features), embedded.shape[1])
        or len(embedded) != len(members)
        or not len(members)
        or not embedded.shape[1]
    ):
        raise ValueError(f"cluster {prefix[:-1]}: the sizes of its tensors differ")
    return Cluster(centre, members, features, weights, embedded)


def _sparse(tensors: Mapping[str, Tensor], name: str, values: Tensor, width: int) -> csr_matrix:
    index, starts = places(tensors, f"{name}.index", width), places(tensors, f"{name}.starts", len(values) + 1)
    if not len(starts):
        raise ValueError(f"{name}: no rows")
    matrix = csr_matrix((values.numpy(), index.numpy(), starts.numpy()), shape=(len(starts) - 1, width))
    matrix.check_format()
    return matrix


def cluster_count(settings: SleecSettings, instances: int) -> int:
    return min(settings.clusters or max(1, round(instances / CLUSTER_SIZE)), instances)


def fit_learner(train: Split, settings: SleecSettings, seed: int, number: int, follow: Follow) -> tuple[Cluster, ...]:
    """Fit one learner. Learners start k-means at different points, so their clusters differ."""
    from sklearn.cluster import KMeans

    X, count = train.features, cluster_count(settings, len(train))
    means = KMeans(
        count, init="random", n_init=1, max_iter=KMEANS_STEPS, random_state=derived_seed(seed, "sleec", number) % 2**32
    )
    with warnings.catch_warnings():  # with fewer distinct instances than clusters there are fewer clusters
        warnings.simplefilter("ignore")
        home = means.fit_predict(X)
    clusters = []
    for cluster in range(count):
        members = np.flatnonzero(home == cluster)
        if len(members):
            random = derived_seed(seed, "sleec", number, cluster) % 2**32
            weights, features = fit_cluster(X[members], train.labels[members], settings, random, follow.check)
            embedded = np.asarray(X[members][:, features] @ weights, dtype=np.float32)
            arrays = (means.cluster_centers_[cluster].astype(np.float32), members, features, embedded)
            centre_, members_, features_, embedded_ = map(torch.from_numpy, arrays)
            clusters.append(Cluster(centre_, members_, features_, csr_matrix(weights), embedded_))
        follow.done(f"learner {number + 1}/{settings.learners}, cluster {cluster + 1}/{count}")
    return tuple(clusters)


def fit_cluster(
    X: csr_matrix, Y: csr_matrix, settings: SleecSettings, random: int, check: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the map from features to embeddings, and the features that occur: the rows of the map."""
    from sklearn.linear_model import Ridge

    products = largest_products(scale_rows(Y, "unit"), settings.neighbours)
    Z = embedding(products, settings.dim, settings.steps, settings.tolerance, random, check)
    features = np.unique(X.indices).astype(np.int64)
    used = X[:, features].astype(np.float64)
    if not len(features):
        return np.zeros((0, Z.shape[1]), dtype=np.float32), features
    # The solver decomposes features × features or instances × instances, whichever is smaller.
    regression = Ridge(alpha=0.5 / settings.cost, fit_intercept=False, solver="cholesky").fit(
        used, Z.astype(np.float64)
    )
    weights = np.atleast_2d(regression.coef_).T
    return without_smallest(weights, settings.threshold).astype(np.float32), features


def largest_products(Y: csr_matrix, count: int) -> csr_matrix:
    """Return P_Ω(YYᵀ): the `count` largest products of label sets in each row, including zeros."""
    size = Y.shape[0]
    count = min(count, size)
    index, value = np.zeros((size, count), dtype=np.int64), np.zeros((size, count), dtype=np.float32)
    for rows in row_blocks(size, PRODUCT_BYTES * size):
        products = (Y[rows] @ Y.T).toarray()
        largest = np.argpartition(-products, count - 1, axis=1)[:, :count]
        largest.sort(axis=1)
        index[rows], value[rows] = largest, np.take_along_axis(products, largest, axis=1)
    starts = np.arange(0, size * count + 1, count)
    return csr_matrix((value.ravel(), index.ravel(), starts), shape=(size, size))


def embedding(
    products: csr_matrix, dim: int, steps: int, tolerance: float, random: int, check: Callable[[], None]
) -> np.ndarray:
    """Return Z with (Z Vᵀ)_Ω near the products: a singular value decomposition, then alternating steps on Z and V.

    The decomposition treats entries outside Ω as zero; the gradient steps ignore them.
    """
    from sklearn.utils.extmath import randomized_svd

    U, sizes, Vt = randomized_svd(products, min(dim, products.shape[0]), random_state=random)
    Z, V = (np.ascontiguousarray(part * np.sqrt(sizes), dtype=np.float32) for part in (U, Vt.T))
    length = float(np.linalg.norm(products.data))
    if length == 0:
        return Z  # no instance has a label
    rate, before, best = 1 / (0.3 * length), np.inf, Z
    for _ in range(steps):
        check()
        stepped, V, misfit = masked_step(products, Z, V, rate)
        if misfit < before:
            best = Z
        if misfit > (1 - tolerance) * before:
            return best
        Z, before = stepped, misfit
    return Z


def masked_step(
    products: csr_matrix, Z: np.ndarray, V: np.ndarray, rate: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Take a gradient step of ½‖P_Ω(Z Vᵀ - YYᵀ)‖² on Z, then one on V. Return both, and twice the value before."""
    residual = _residual(products, Z, V)
    Z = Z - rate * (residual @ V)
    V = V - rate * (_residual(products, Z, V).T @ Z)
    return Z, V, float(np.square(residual.data, dtype=np.float64).sum())


def _residual(products: csr_matrix, Z: np.ndarray, V: np.ndarray) -> csr_matrix:
    with warnings.catch_warnings():  # torch warns that sparse matrices are in beta; no other kernel computes this
        warnings.simplefilter("ignore", UserWarning)
        starts, index, value = map(torch.from_numpy, (products.indptr, products.indices, products.data))
        target = torch.sparse_csr_tensor(starts, index, value, size=products.shape)
        sampled = torch.sparse.sampled_addmm(target, torch.from_numpy(Z), torch.from_numpy(V).T, beta=-1.0)
    return csr_matrix((sampled.values().numpy(), products.indices, products.indptr), shape=products.shape)


def without_smallest(weights: np.ndarray, share: float) -> np.ndarray:
    """Return the weights with the smallest `share` of them, by absolute value, set to zero."""
    drop = int(share * weights.size)
    if not drop:
        return weights
    smallest = np.argpartition(np.abs(weights), drop - 1, axis=None)[:drop]
    thinned = weights.copy()
    thinned.ravel()[smallest] = 0
    return thinned


def nearest_centres(features: csr_matrix, centres: np.ndarray) -> np.ndarray:
    """Return the nearest centre of each instance: argmin ‖x - c‖ = argmax xᵀc - ‖c‖²/2."""
    half, nearest = 0.5 * np.square(centres).sum(axis=1), np.zeros(features.shape[0], dtype=np.int64)
    for rows in row_blocks(features.shape[0], 8 * len(centres)):
        nearest[rows] = (np.asarray(features[rows] @ centres.T) - half).argmax(axis=1)
    return nearest


def row_blocks(rows: int, bytes_each: int) -> Iterator[slice]:
    """Yield blocks of as many rows as fit into `BLOCK_BYTES`."""
    return blocks(rows, max(1, BLOCK_BYTES // max(1, bytes_each)))
