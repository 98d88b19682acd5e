"""The sums of the owners of some labels, over the records of these labels alone.

A problem among these labels follows from them exactly as the whole problem follows from the sums of all owners
(docs/exact.md). m, of which an owner counts 1/m of a record, is the number of the record's labels among these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix, diags, hstack
from torch import Tensor

from fedalc.core.sparse_products import WeightedBags
from fedalc.data.federation import Federation
from fedalc.engines.traffic import Ledger


@dataclass(frozen=True)
class GramOfOwners:
    """G, or XᵀX where the owners' records are: a record counts 1/m for each of its m owners, and so 1 in all."""

    matrix: WeightedBags
    transposed: WeightedBags | None = None

    @classmethod
    def of_records(cls, x: csr_matrix) -> GramOfOwners:
        return cls(_bags(x), _bags(x.T.tocsr()))

    def __matmul__(self, dense: Tensor) -> Tensor:
        product = self.matrix @ dense
        return product if self.transposed is None else self.transposed @ product


@dataclass(frozen=True)
class ClusterSums:
    """Rows are the `features` that the records have."""

    features: np.ndarray
    gram: GramOfOwners  # Σ_u Σ_j x xᵀ/m
    diagonal: Tensor  # of G
    cross: csc_matrix  # Σ_j x for each label
    total: Tensor  # Σ_u Σ_j x/m
    records: float  # Σ_u Σ_j 1/m
    traffic: Ledger

    def solve(self, right: Tensor, penalty: float, steps: int, support: Tensor | None = None) -> Tensor:
        """Return θ of (G + penalty·I) θ = right by conjugate gradients, column by column, with the diagonal as
        preconditioner: frequent features would need many steps otherwise. With `support` (ones and zeros) a column has
        numbers only there, and solves the equations of these rows."""
        scale = (1 / (self.diagonal + penalty)).unsqueeze(1)
        theta, left, direction = torch.zeros_like(right), right.clone(), right * scale
        length = (left * direction).sum(0)
        enough = length * torch.finfo(right.dtype).eps ** 2
        for _ in range(steps):
            product = (self.gram @ direction).add_(direction, alpha=penalty)
            if support is not None:
                product *= support
            step = torch.where(length > enough, length / (direction * product).sum(0), 0.0)
            theta.addcmul_(direction, step)
            left.addcmul_(product, step, value=-1)
            scaled = left * scale
            shorter = (left * scaled).sum(0)
            direction.mul_(torch.where(length > enough, shorter / length, 0.0)).add_(scaled)
            length = shorter
        return theta


def sums_at_once(federation: Federation, labels: np.ndarray, dtype: torch.dtype) -> ClusterSums:
    """The records of all owners are here: nobody's own G is formed."""
    instances, owned = federation.pairs_of(labels)
    x, features = _records(federation, instances, dtype)
    cross = (x.T @ owned.astype(x.dtype)).tocsc()
    total = torch.from_numpy(np.asarray(x.sum(axis=0)).ravel())
    traffic = _traffic(np.diff(cross.indptr), owned.nnz, total.element_size())
    diagonal = torch.from_numpy(np.asarray(x.multiply(x).sum(axis=0)).ravel())
    return ClusterSums(features, GramOfOwners.of_records(x), diagonal, cross, total, float(len(instances)), traffic)


def sums_of_each(federation: Federation, labels: np.ndarray, dtype: torch.dtype) -> ClusterSums:
    """What each owner sends, added up over all features."""
    x, _ = _records(federation, np.arange(0), dtype)
    width = federation.feature_count
    gram, total = csr_matrix((width, width), dtype=x.dtype), np.zeros(width, x.dtype)
    cross, held, counted = [], 0, 0.0
    for label in labels:
        instances = federation.instances_of(label)
        x = csr_matrix(federation.features[instances]).astype(x.dtype)
        share = 1 / federation.labels[instances][:, labels].getnnz(axis=1).astype(x.dtype)
        gram = gram + x.T @ diags(share) @ x
        total += x.T @ share
        cross.append(csc_matrix(x.T @ csr_matrix(np.ones((len(instances), 1), x.dtype))))
        held, counted = held + len(instances), counted + float(share.sum())
    sent = hstack(cross, format="csc")
    features = np.unique(sent.indices)
    own, diagonal = gram[features][:, features], torch.from_numpy(gram.diagonal()[features])
    traffic = _traffic(np.diff(sent.indptr), held, total.itemsize)
    whole = GramOfOwners(_bags(own)), diagonal
    return ClusterSums(features, *whole, sent[features], torch.from_numpy(total[features]), counted, traffic)


def _records(federation: Federation, instances: np.ndarray, dtype: torch.dtype) -> tuple[csr_matrix, np.ndarray]:
    """Return the records with the features that they have, and the numbers of these."""
    x = csr_matrix(federation.features[instances])
    features, places = np.unique(x.indices, return_inverse=True)
    kept = (x.data.astype(str(dtype).removeprefix("torch.")), places, x.indptr)
    return csr_matrix(kept, shape=(len(instances), len(features))), features


def _traffic(own_features: np.ndarray, pairs: int, number: int) -> Ledger:
    """An owner gets m of each record (2 bytes). It sends half of a symmetric matrix over the features that it has, two
    vectors, and which features these are (4 bytes each)."""
    own = own_features.astype(np.int64)
    return Ledger(2 * pairs, int((number * (own * (own + 1) // 2 + 2 * own) + 4 * own).sum()))


def _bags(matrix: csr_matrix) -> WeightedBags:
    return WeightedBags.from_csr(matrix, torch.from_numpy(matrix.data).dtype, "cpu")
