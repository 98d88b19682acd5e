"""The instances of a fused round and the clients that hold them, block by block."""

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
    """A block of instances and their (instance, client) pairs, in CSR order."""

    rows: Batch
    instances: Tensor  # row numbers in the dataset
    starts: Tensor  # CSR row pointer of the pairs
    instance: Tensor  # of each pair: index within the block
    client: Tensor  # of each pair: index among the round's participants
    label: Tensor  # of each pair
    present: Tensor  # indices of the participants that have a pair in the block
    order: Tensor  # the pairs sorted by participant
    client_starts: Tensor  # where each present participant begins in `order`
    part: Tensor | None = None  # of each pair: the part of its loss that counts; None: all of it

    def __len__(self) -> int:
        return len(self.instances)

    def prefetch(self) -> None:
        self.rows.prefetch()

    def of_pairs(self, per_client: Tensor) -> Tensor:
        """Return a number of each participant for each of its pairs, times the pair's part."""
        return per_client[self.client] if self.part is None else per_client[self.client] * self.part

    def by_client(self, weight: Tensor) -> WeightedBags:
        """Return one number per pair as a sparse matrix: present participants × instances."""
        return WeightedBags(self.instance[self.order], self.client_starts, weight[self.order])


@dataclass(frozen=True)
class Portion:
    """The part of the data that a round uses. `pairs` is instances × participants. `features`, if given, are the only
    columns in use."""

    federation: Federation
    participants: np.ndarray
    instances: np.ndarray
    pairs: csr_matrix
    features: np.ndarray | None = None

    @classmethod
    def of(cls, federation: Federation, participants: np.ndarray, chance: Chance) -> Portion:
        """Return the portion of these participants. Time grows with their instances, not with the dataset."""
        instances, pairs = federation.pairs_of(participants)
        chosen = chance.chosen(federation.keys_of(instances))
        if not chosen.all():
            instances, pairs = instances[chosen], pairs[chosen]
        return cls(federation, participants, instances, pairs)

    def with_features(self, block_rows: int) -> Portion:
        """Return the portion restricted to the features of its instances; unchanged if these are most features."""
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
        """Return the instances of this process, if there are several. The features stay the same in all processes."""
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
            block = Block(
                make_batch(self._features_of(chosen), self.federation.keys_of(chosen), like.dtype, like.device),
                *(torch.from_numpy(array.astype(np.int64)).to(like.device) for array in arrays),
            )
            whole = self.federation.parts is None
            yield block if whole else replace(block, part=torch.from_numpy(pairs.data).to(like))

    def _features_of(self, instances: np.ndarray) -> csr_matrix:
        rows = self.federation.features[instances]
        if self.features is None:
            return rows
        numbered_anew = np.searchsorted(self.features, rows.indices)
        return csr_matrix((rows.data, numbered_anew, rows.indptr), shape=(len(instances), len(self.features)))
