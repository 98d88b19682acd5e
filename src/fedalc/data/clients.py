"""One positive-only client per label: client u holds the instances that carry label u, and knows of no other label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from fedalc.data.dataset import Dataset, Split
from fedalc.errors import DataError
from fedalc.seeds import numpy_generator


class Clients(Protocol):
    """What the server of a training has to know of its clients."""

    @property
    def counts(self) -> np.ndarray:
        """n_u: how many instances each client holds."""

    @property
    def clients(self) -> np.ndarray:
        """The labels somebody holds. Labels without an instance have no client."""

    @property
    def feature_count(self) -> int: ...


@dataclass(frozen=True)
class Federation:
    """The training instances as the clients hold them. Instances are shared here, once each, to save memory.

    `numbers` and `keys` name labels and instances in random draws, where this is a part of something larger.
    """

    features: csr_matrix
    labels: csr_matrix
    numbers: np.ndarray | None = None
    keys: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.labels.nnz == 0:
            raise DataError("no training instance has a label, so there is no client to train on")

    @cached_property
    def counts(self) -> np.ndarray:
        """n_u: how many instances each client holds."""
        return np.bincount(self.labels.indices, minlength=self.labels.shape[1])

    @cached_property
    def clients(self) -> np.ndarray:
        """The labels somebody holds. Labels without an instance have no client."""
        return np.flatnonzero(self.counts)

    @property
    def feature_count(self) -> int:
        return int(self.features.shape[1])

    def number_of(self, client: int) -> int:
        return client if self.numbers is None else int(self.numbers[client])

    def keys_of(self, instances: np.ndarray) -> np.ndarray:
        return instances if self.keys is None else self.keys[instances]

    def instances_of(self, client: int) -> np.ndarray:
        """S_u, as row numbers."""
        start, stop = self._by_label.indptr[client : client + 2]
        return np.asarray(self._by_label.indices[start:stop])

    @cached_property
    def _by_label(self) -> csc_matrix:
        return self.labels.tocsc()


def hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Split, Split | None]:
    """(train, validation): the dataset's own validation data if it has any, else a random share of train.

    With share 0 there is no validation data, whatever the dataset ships.
    """
    if share == 0:
        return dataset.train, None
    if dataset.validation is not None:
        return dataset.train, dataset.validation
    size = len(dataset.train)
    held = round(size * share)
    if not 0 < held < size:
        raise DataError(
            f"a validation share of {share} leaves nothing of {size} training instances on one side; "
            "set selection.validation=0 to train without"
        )
    order = numpy_generator(seed, "validation").permutation(size)
    return dataset.train.rows(np.sort(order[held:])), dataset.train.rows(np.sort(order[:held]))
