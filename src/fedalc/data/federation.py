"""Positive-only clients: each has one label, holds instances that carry it, and knows of no other label.

By labels, client u is label u, with all its instances. By users, a user's device holds the user's instances alone, and
each label among these is a client: as many clients have a label as users have an instance of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from fedalc.core.seeds import numpy_generator
from fedalc.data.catalog.datasets import ENTRIES
from fedalc.data.dataset import Dataset, Split
from fedalc.errors import ConfigError, DataError


class Clients(Protocol):
    """What the server of a training has to know of its clients."""

    @property
    def counts(self) -> np.ndarray:
        """n_u: how many instances each client holds."""

    @property
    def clients(self) -> np.ndarray:
        """Those that hold an instance, by number."""

    @property
    def label_of(self) -> np.ndarray:
        """The label of each client."""

    @property
    def user_of(self) -> np.ndarray:
        """Whose each client is: a user's clients take part in a round together, or not at all."""

    @property
    def label_count(self) -> int: ...

    @property
    def feature_count(self) -> int: ...


@dataclass(frozen=True)
class Federation:
    """The training instances as the clients hold them. Instances are shared here, once each, to save memory.

    `users` says by a number whose each instance is; without, each label is a user of its own, with all its instances.
    `numbers` and `keys` name clients and instances in random draws, where this is a part of something larger.
    `parties` says by a number with whom each client is, where one party has several labels.
    """

    features: csr_matrix
    labels: csr_matrix
    numbers: np.ndarray | None = None
    keys: np.ndarray | None = None
    users: np.ndarray | None = None
    parties: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.labels.nnz == 0:
            raise DataError("no training instance has a label, so there is no client to train on")

    @cached_property
    def counts(self) -> np.ndarray:
        """n_u: how many instances each client holds."""
        return np.bincount(self.held.indices, minlength=self.held.shape[1])

    @cached_property
    def clients(self) -> np.ndarray:
        """Those that hold an instance, by number. Labels without an instance have no client."""
        return np.flatnonzero(self.counts)

    @cached_property
    def held(self) -> csr_matrix:
        """Instances × clients, entry for entry as `labels`: which client an (instance, label) pair is with."""
        if self.users is None:
            return self.labels
        shape = (self.labels.shape[0], len(self._owners))
        return csr_matrix((self.labels.data, np.searchsorted(self._owners, self._owned), self.labels.indptr), shape)

    @cached_property
    def label_of(self) -> np.ndarray:
        return np.arange(self.label_count) if self.users is None else self._owners % self.label_count

    @cached_property
    def user_of(self) -> np.ndarray:
        return np.arange(self.label_count) if self.users is None else self._owners // self.label_count

    @property
    def party_of(self) -> np.ndarray:
        """Who sends one change of θ for all its clients: a party, or else each user."""
        return self.user_of if self.parties is None else self.parties

    @cached_property
    def _owned(self) -> np.ndarray:
        """User and label of each pair, as one number."""
        assert self.users is not None
        return np.repeat(self.users, np.diff(self.labels.indptr)) * self.label_count + self.labels.indices

    @cached_property
    def _owners(self) -> np.ndarray:
        """The same of each client: by user, then by label."""
        return np.unique(self._owned)

    def user_count(self, clients: np.ndarray) -> int:
        """How many users these clients are of."""
        return len(np.unique(self.user_of[clients]))

    @property
    def label_count(self) -> int:
        return int(self.labels.shape[1])

    @property
    def feature_count(self) -> int:
        return int(self.features.shape[1])

    def number_of(self, client: int) -> int:
        return client if self.numbers is None else int(self.numbers[client])

    def keys_of(self, instances: np.ndarray) -> np.ndarray:
        return instances if self.keys is None else self.keys[instances]

    def instances_of(self, client: int) -> np.ndarray:
        """S_u, as row numbers."""
        start, stop = self._by_client.indptr[client : client + 2]
        return np.asarray(self._by_client.indices[start:stop])

    def pairs_of(self, clients: np.ndarray) -> tuple[np.ndarray, csr_matrix]:
        """(instances, pairs): the instances that these clients hold, ascending, and which holds which, a column per
        client. It costs what they hold."""
        held = self._by_client[:, clients]
        instances, rows = np.unique(held.indices, return_inverse=True)
        columns = np.repeat(np.arange(len(clients)), np.diff(held.indptr))
        return instances, csr_matrix((held.data, (rows, columns)), shape=(len(instances), len(clients)))

    @cached_property
    def _by_client(self) -> csc_matrix:
        return self.held.tocsc()


def form_clients(train: Split, by: Literal["labels", "users"]) -> Federation:
    """All clients there are: one for each label, or one for each label of each user."""
    if by == "labels":
        return Federation(train.features, train.labels)
    if train.users is None:
        known = ", ".join(entry.name for entry in ENTRIES if entry.users)
        raise ConfigError(
            f"this dataset does not say whose its instances are (those that do: {known}, and lists of pictures with a "
            "user column); use labels",
            "clients",
        )
    # (numpy would pad each instance's name to the longest.)
    number = {name: at for at, name in enumerate(sorted(set(train.users)))}
    return Federation(train.features, train.labels, users=np.array([number[user] for user in train.users]))


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
