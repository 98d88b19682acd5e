"""A job as a file: instances, their clients, class embeddings, the initial weights and the local schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

RATE, MARGIN = 0.1, 0.9
HIDDEN, DIM = (1024, 1024), 512
SAMPLE = 200  # clients of eurlex15k, for engines that would take too long on all clients
DENSE_CLIENTS, DENSE_INSTANCES, DENSE_FEATURES = 200, 25, 5000


@dataclass(frozen=True)
class Job:
    """`features` is a sparse matrix or, for dense inputs, an array. Each column of `labels` is a client."""

    features: csr_matrix | np.ndarray
    labels: csr_matrix
    rows: np.ndarray  # W
    theta: list[np.ndarray]  # the embedding (features × 512), then weight and bias of each layer
    epochs: int = 1  # of each client in a round
    batch: int | None = None  # None: all instances of the client

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.labels.tocsc().indptr)

    @property
    def parameters(self) -> int:
        return sum(part.size for part in self.theta)

    def sampled(self, size: int) -> Job:
        """Return a job with `size` clients, taken at equal steps in order of size, so that all sizes occur."""
        step = len(self.counts) / size
        first = np.random.default_rng(0).uniform(0, step)
        by_size = np.argsort(self.counts, kind="stable")
        chosen = np.sort(by_size[(first + step * np.arange(size)).astype(int)])
        labels = self.labels[:, chosen]
        held = np.flatnonzero(np.diff(labels.indptr))
        return replace(self, features=self.features[held], labels=labels[held], rows=self.rows[chosen])

    def save(self, path: Path) -> None:
        arrays = {"rows": self.rows, **{f"theta.{place}": part for place, part in enumerate(self.theta)}}
        arrays["schedule"] = np.array([self.epochs, self.batch or 0])
        for name, matrix in (("features", self.features), ("labels", self.labels)):
            if isinstance(matrix, np.ndarray):
                arrays[name] = matrix
            else:
                parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
                arrays |= {f"{name}.{part}": np.asarray(values) for part, values in parts.items()}
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Job:
        with np.load(path) as file:

            def matrix(name: str) -> csr_matrix | np.ndarray:
                if name in file:
                    return file[name]
                parts = tuple(file[f"{name}.{part}"] for part in ("data", "indices", "indptr"))
                return csr_matrix(parts, shape=tuple(file[f"{name}.shape"]))

            count = sum(name.startswith("theta.") for name in file)
            theta = [file[f"theta.{place}"] for place in range(count)]
            epochs, batch = file["schedule"].tolist()
            return cls(matrix("features"), matrix("labels"), file["rows"], theta, epochs, batch or None)


def dataset_job(name: str, encoder: str = "mlp") -> Job:
    """Return the job for a dataset's train split. Each label with an instance is a client."""
    from fedalc.data import load_dataset
    from fedalc.models.encoders import scale_rows

    train = load_dataset(name).train
    labels = train.labels[:, np.flatnonzero(train.labels.getnnz(axis=0))]
    held = np.flatnonzero(np.diff(labels.indptr))
    return _started(scale_rows(train.features, "unit")[held], labels[held], encoder)


def dense_job(encoder: str = "mlp") -> Job:
    """Return a job of 200 clients with 25 random dense instances, as wide as eurlex15k (4.7 million parameters)."""
    size = DENSE_CLIENTS * DENSE_INSTANCES
    features = np.random.default_rng(0).standard_normal((size, DENSE_FEATURES), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    owner = np.repeat(np.arange(DENSE_CLIENTS), DENSE_INSTANCES)
    ones = np.ones(size, dtype=np.float32)
    return _started(features, csr_matrix((ones, owner, np.arange(size + 1)), shape=(size, DENSE_CLIENTS)), encoder)


def _started(features: csr_matrix | np.ndarray, labels: csr_matrix, encoder: str) -> Job:
    """Return the job with fedalc's initial weights."""
    from peers.fedalc_engines import training

    model = training(features, labels, "fused", encoder).model
    return Job(features, labels, model.W.numpy(), [part.detach().numpy() for part in model.theta])
