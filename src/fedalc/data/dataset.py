"""What a dataset is once it has been read: sparse features or pictures, sparse label sets, and the labels' names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.images import Images
from fedalc.errors import DataError

Features: TypeAlias = Any
"""A csr_matrix or Images. (Not written as a union: text code, which never sees Images, takes it for a csr_matrix.)"""


@dataclass(frozen=True)
class Split:
    """Instances in rows. `features` is float32 N×F, `labels` float32 N×C with ones; a row of either may be empty.

    Whatever sparse form and number type they come in, they are brought into this one here. `Images` stay as they are.
    `users` says whose each instance is, where that is known: another way to form clients.
    """

    features: Features
    labels: csr_matrix
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.features.shape[0] != self.labels.shape[0]:
            raise DataError(f"{self.features.shape[0]} rows of features but {self.labels.shape[0]} rows of labels")
        if self.users is not None and len(self.users) != self.features.shape[0]:
            raise DataError(f"{len(self.users)} users' names for {self.features.shape[0]} instances")
        object.__setattr__(self, "features", _checked(self.features))
        labels = csr_matrix(self.labels, dtype=np.float32)
        if not (labels.data == 1).all():
            labels = labels.copy()
            labels.eliminate_zeros()
            labels.data[:] = 1
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def rows(self, index: np.ndarray) -> Split:
        """The instances at these positions, in this order."""
        users = None if self.users is None else tuple(self.users[at] for at in np.arange(len(self))[index])
        return Split(self.features[index], self.labels[index], users)


@dataclass(frozen=True)
class Dataset:
    """A train and a test split over the same features and labels. `validation` only where the dataset ships its own."""

    name: str
    train: Split
    test: Split
    label_names: tuple[str, ...]
    validation: Split | None = None

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            if split is None:
                continue
            if len(split) == 0:
                raise DataError(f"dataset {self.name}: {part} has no instances")
            for what, ours, theirs in (
                ("features", self.train.features, split.features),
                ("labels", self.train.labels, split.labels),
            ):
                if ours.shape[1] != theirs.shape[1]:
                    raise DataError(
                        f"dataset {self.name}: train has {ours.shape[1]} {what}, {part} has {theirs.shape[1]}"
                    )
        if len(self.label_names) != self.train.labels.shape[1]:
            raise DataError(
                f"dataset {self.name}: {len(self.label_names)} label names for {self.train.labels.shape[1]} labels"
            )

    @property
    def splits(self) -> dict[str, Split]:
        """Those that are there, by name."""
        every = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: split for name, split in every.items() if split is not None}

    @property
    def feature_count(self) -> int:
        return int(self.train.features.shape[1])

    @property
    def label_count(self) -> int:
        return int(self.train.labels.shape[1])

    @property
    def users(self) -> tuple[str, ...] | None:
        """Whose each training instance is, where that is known."""
        return self.train.users

    @cached_property
    def fingerprint(self) -> str:
        """Tells whether two datasets are the same, without keeping either."""
        digest = hashlib.sha256()
        for split in (self.train, self.test, self.validation):
            if split is not None:
                _update(digest, split.features)
                _update(digest, split.labels)
        if self.users is not None:
            digest.update("\0".join(self.users).encode())
        return digest.hexdigest()


def _checked(features: Features) -> Features:
    if isinstance(features, Images):
        return features
    features = csr_matrix(features, dtype=np.float32)
    # The extremes of what has a NaN in it are NaN. (A mask of all values would take memory.)
    if features.nnz and not np.isfinite((features.data.min(), features.data.max())).all():
        raise DataError("a feature's value is not a finite number")
    return features


def _update(digest: hashlib._Hash, content: Features) -> None:
    if isinstance(content, Images):
        digest.update(content.fingerprint)
        return
    digest.update(repr(content.shape).encode())
    for array in (content.indptr, content.indices, content.data):
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)
