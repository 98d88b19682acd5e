"""What a fused round works on: the instances that take part, and whose they are, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse
from torch import Tensor

from fedalc.core import distributed
from fedalc.core.sparse_products import WeightedBags
from fedalc.data.federation import Federation
from fedalc.models.encoders import Batch, Chance, make_batch


@dataclass(frozen=True)
class Block:
    """Some instances and their (instance, client) pairs, in CSR order."""

    rows: Batch
    instances: Tensor  # their row numbers
    starts: Tensor  # CSR row pointer of the pairs
    instance: Tensor  # of each pair, within the block
    client: Tensor  # of each pair, as its place among the round's participants
    label: Tensor  # of each pair
    present: Tensor  # the participants that have a pair here, by place
    order: Tensor  # the pairs by participant
    client_starts: Tensor  # where in that order each begins

    def __len__(self) -> int:
        return len(self.instances)

    def prefetch(self) -> None:
        self.rows.prefetch()

    def by_client(self, weight: Tensor) -> WeightedBags:
        """A number for each pair, as a matrix: participants that are present × instances."""
        return WeightedBags(self.instance[self.order], self.client_starts, weight[self.order])


@dataclass(frozen=True)
class Portion:
    """`pairs` is instances × participants. `features` are those that occur, where no others are to be looked at."""

    federation: Federation
    participants: np.ndarray
    instances: np.ndarray
    pairs: csr_matrix
    features: np.ndarray | None = None

    @classmethod
    def of(cls, federation: Federation, participants: np.ndarray, chance: Chance) -> Portion:
        """Costs what the participants hold."""
        instances, pairs = federation.pairs_of(participants)
        chosen = chance.chosen(federation.keys_of(instances))
        if not chosen.all():
            instances, pairs = instances[chosen], pairs[chosen]
        return cls(federation, participants, instances, pairs)

    def with_features(self, block_rows: int) -> Portion:
        """The same with the features of its instances, ascending. As it is, where these are most of all features."""
        matrix = self.federation.features
        if not issparse(matrix):
            return self
        occurs = np.zeros(matrix.shape[1], dtype=bool)
        for start in range(0, len(self.instances), block_rows):
            occurs[matrix[self.instances[start : start + block_rows]].indices] = True
        features = np.flatnonzero(occurs)
        if 2 * len(features) > len(occurs):
            return self
        return replace(self, features=features)

    def own_share(self) -> Portion:
        """What this process works on, of several. The features stay those of all."""
        if distributed.here().count == 1:
            return self
        own = distributed.own_part(np.arange(len(self.instances)))
        return replace(self, instances=self.instances[own], pairs=self.pairs[own])

    def blocks(self, block_rows: int, like: Tensor) -> Iterator[Block]:
        labels = self.federation.label_of[self.participants]
        for start in range(0, len(self.instances), block_rows):
            chosen = self.instances[start : start + block_rows]
            pairs = self.pairs[start : start + block_rows]
            instance = np.repeat(np.arange(len(chosen)), np.diff(pairs.indptr))
            order = np.argsort(pairs.indices, kind="stable")
            present, count = np.unique(pairs.indices, return_counts=True)
            client_starts = np.append(0, count.cumsum())
            client = pairs.indices
            arrays = (chosen, pairs.indptr, instance, client, labels[client], present, order, client_starts)
            yield Block(
                make_batch(self._features_of(chosen), self.federation.keys_of(chosen), like.dtype, like.device),
                *(torch.from_numpy(array.astype(np.int64)).to(like.device) for array in arrays),
            )

    def _features_of(self, instances: np.ndarray) -> csr_matrix:
        rows = self.federation.features[instances]
        if self.features is None:
            return rows
        numbered_anew = np.searchsorted(self.features, rows.indices)
        return csr_matrix((rows.data, numbered_anew, rows.indptr), shape=(len(instances), len(self.features)))
