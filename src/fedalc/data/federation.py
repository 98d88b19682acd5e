"""Positive-only clients: each has one label, holds instances that carry it, and knows of no other label.

By labels, client u is label u, with all its instances. By users, a user's device holds only the user's instances, and
each of their labels is a client: a label has as many clients as users with an instance of it. By parties likewise, and
as in a deployment: a record that several parties have is in several rows, one for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from fedalc.core.seeds import numpy_generator
from fedalc.data.catalog.datasets import ENTRIES
from fedalc.data.dataset import Dataset, Split
from fedalc.data.records import record_numbers
from fedalc.errors import ConfigError, DataError


class Clients(Protocol):
    """What the server has to know about its clients."""

    @property
    def counts(self) -> np.ndarray:
        """n_u: the number of instances of each client."""

    @property
    def clients(self) -> np.ndarray:
        """The numbers of the clients that have an instance."""

    @property
    def label_of(self) -> np.ndarray:
        """The label of each client."""

    @property
    def user_of(self) -> np.ndarray:
        """The user of each client: a user's clients take part in a round together, or not at all. Clients of a party
        are drawn one by one."""

    @property
    def label_count(self) -> int: ...

    @property
    def feature_count(self) -> int: ...


@dataclass(frozen=True)
class Federation:
    """The clients' training instances. Each instance is stored once, even if several clients of a party have it.

    `users`: the number of each instance's user; without it, each label is a user with all its instances. `numbers` and
    `keys` identify clients and instances in random draws, if this is a part of a larger federation. `parties`: the
    number of each client's party, if a party has several labels. `by_party`: `users` are parties, so clients are in the
    order of labels, as in a deployment. `parts`: for each (instance, label) pair, in the order of `labels`, the part of
    its loss that its client counts; 1/h for a pair that h parties have, if each pair is to count once (default: 1).
    """

    features: csr_matrix
    labels: csr_matrix
    numbers: np.ndarray | None = None
    keys: np.ndarray | None = None
    users: np.ndarray | None = None
    parties: np.ndarray | None = None
    by_party: bool = False
    parts: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.labels.nnz == 0:
            raise DataError("no training instance has a label, so there is no client to train on")

    @cached_property
    def counts(self) -> np.ndarray:
        """n_u: the number of instances of each client."""
        return np.bincount(self.held.indices, minlength=self.held.shape[1])

    @cached_property
    def clients(self) -> np.ndarray:
        """The numbers of the clients that have an instance. Labels without an instance have no client."""
        return np.flatnonzero(self.counts)

    @cached_property
    def held(self) -> csr_matrix:
        """Instances × clients, in the order of `labels`: the client of each (instance, label) pair, and its part."""
        if self.users is None and self.parts is None:
            return self.labels
        clients, count = self.labels.indices, self.label_count
        if self.users is not None:
            clients, count = np.searchsorted(self._owners, self._owned), len(self._owners)
        parts = self.labels.data if self.parts is None else self.parts
        return csr_matrix((parts, clients, self.labels.indptr), (self.labels.shape[0], count))

    @cached_property
    def label_of(self) -> np.ndarray:
        if self.users is None:
            return np.arange(self.label_count)
        return self._owners // self._user_count if self.by_party else self._owners % self.label_count

    @cached_property
    def user_of(self) -> np.ndarray:
        if self.users is None or self.by_party:
            return np.arange(len(self.label_of))
        return self._owners // self.label_count

    @property
    def party_of(self) -> np.ndarray:
        """The sender of each client's change of θ, one for all its clients: a party, or else the user."""
        if self.parties is not None:
            return self.parties
        return self._owners % self._user_count if self.by_party else self.user_of

    @cached_property
    def _owned(self) -> np.ndarray:
        """User and label of each pair, as one number."""
        assert self.users is not None
        users, labels = np.repeat(self.users, np.diff(self.labels.indptr)), self.labels.indices.astype(np.int64)
        return labels * self._user_count + users if self.by_party else users * self.label_count + labels

    @cached_property
    def _owners(self) -> np.ndarray:
        """User and label of each client, as one number: by user, then by label; of parties by label, then by party."""
        return np.unique(self._owned)

    @cached_property
    def _user_count(self) -> int:
        assert self.users is not None
        return int(self.users.max()) + 1

    def sender_count(self, clients: np.ndarray) -> int:
        """Return how many users or parties these clients belong to."""
        return len(np.unique(self.party_of[clients]))

    def holder_counts(self) -> np.ndarray:
        """Return how many parties have a record with each feature: a sum over parties of zeros and ones."""
        party = np.unique(self.party_of, return_inverse=True)[1][self.held.indices]
        ones = np.ones(len(party), dtype=np.int32)
        records = csr_matrix((ones, party, self.held.indptr), (self.held.shape[0], int(party.max()) + 1))
        return np.asarray((records.T @ (self.features != 0).astype(np.int32)).tocsr().getnnz(axis=0))

    def without_rare_features(self, least: int) -> Federation:
        """Return the federation without the features that fewer than `least` parties have."""
        return self.with_features(self.holder_counts() >= least)

    def with_features(self, kept: np.ndarray) -> Federation:
        """Return the federation with these features alone: a truth value for each. Columns stay, empty."""
        kept = kept[self.features.indices]
        starts = np.concatenate([[0], np.cumsum(kept)])[self.features.indptr]
        features = csr_matrix((self.features.data[kept], self.features.indices[kept], starts), self.features.shape)
        return replace(self, features=features)

    @property
    def label_count(self) -> int:
        return int(self.labels.shape[1])

    @property
    def feature_count(self) -> int:
        return int(self.features.shape[1])

    def number_of(self, client: int) -> int:
        if self.numbers is None:
            return int(self.label_of[client]) if self.by_party else client  # a party knows the numbers of labels alone
        return int(self.numbers[client])

    def keys_of(self, instances: np.ndarray) -> np.ndarray:
        return instances if self.keys is None else self.keys[instances]

    def instances_of(self, client: int) -> np.ndarray:
        """Return S_u, the row numbers of a client's instances."""
        start, stop = self._by_client.indptr[client : client + 2]
        return np.asarray(self._by_client.indices[start:stop])

    def parts_of(self, client: int, instances: np.ndarray) -> np.ndarray | None:
        """Return the part of each of these instances' losses that the client counts; None if that is all of them."""
        if self.parts is None:
            return None
        start, stop = self._by_client.indptr[client : client + 2]
        place = np.searchsorted(self._by_client.indices[start:stop], instances)
        return np.asarray(self._by_client.data[start:stop][place])

    def pairs_of(self, clients: np.ndarray) -> tuple[np.ndarray, csr_matrix]:
        """Return (instances, pairs): the instances of these clients, ascending, and instances × clients. The cost grows
        with the pairs of these clients only."""
        held = self._by_client[:, clients]
        instances, rows = np.unique(held.indices, return_inverse=True)
        columns = np.repeat(np.arange(len(clients)), np.diff(held.indptr))
        return instances, csr_matrix((held.data, (rows, columns)), shape=(len(instances), len(clients)))

    @cached_property
    def _by_client(self) -> csc_matrix:
        return self.held.tocsc()


def form_clients(
    train: Split, by: Literal["labels", "users", "parties"], parts: np.ndarray | None = None
) -> Federation:
    """Return one client per label, or one per label of each user or party. `parts`: as in `Federation`."""
    if by == "labels":
        return Federation(train.features, train.labels, parts=parts)
    if by == "parties":
        if train.parties is None:
            raise ConfigError("this dataset is not a folder with a folder per party; use labels", "clients")
        return Federation(train.features, train.labels, users=numbered(train.parties), by_party=True, parts=parts)
    if train.users is None:
        known = ", ".join(entry.name for entry in ENTRIES if entry.users)
        raise ConfigError(
            f"this dataset has no users (these have: {known}, and lists of pictures with a user column); use labels",
            "clients",
        )
    return Federation(train.features, train.labels, users=numbered(train.users), parts=parts)


def numbered(names: Sequence[str]) -> np.ndarray:
    """Return a number for each name, in their order. (A numpy array of names would pad each to the longest.)"""
    number = {name: at for at, name in enumerate(sorted(set(names)))}
    return np.array([number[name] for name in names])


def hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Split, Split | None]:
    """Return (train, validation): the dataset's own validation data if it has any, else a random share of train.

    With share 0 there is no validation data, even if the dataset ships its own. Of parties' data, all rows of a record
    are on the same side, and validation has each record once.
    """
    if share == 0:
        return dataset.train, None
    if dataset.validation is not None:
        return dataset.train, dataset.validation
    train = dataset.train
    record = np.arange(len(train)) if train.parties is None else record_numbers(train.features)
    size = int(record.max()) + 1
    count = round(size * share)
    if not 0 < count < size:
        raise DataError(
            f"a validation share of {share} leaves nothing of {size} training instances on one side; "
            "set selection.validation=0 to train without"
        )
    held = np.isin(record, numpy_generator(seed, "validation").permutation(size)[:count])
    return train.rows(np.flatnonzero(~held)), train.rows(np.flatnonzero(held)).in_one_place
