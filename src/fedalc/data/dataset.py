"""A dataset in memory: sparse features or pictures, sparse label sets, and label names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.images.images import Images
from fedalc.data.label_names import checked_names
from fedalc.data.matrices import feature_matrix, label_matrix
from fedalc.data.places import Places
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.records import record_numbers
from fedalc.data.text.features import TextFeatures
from fedalc.errors import DataError

if TYPE_CHECKING:
    from fedalc.data.formats.table_settings import TableSettings

Features: TypeAlias = Any
"""A csr_matrix or Images. (Not a union: code for text never sees Images and treats this as a csr_matrix.)"""


@dataclass(frozen=True, repr=False)
class Split:
    """Instances in rows. `features` is float32 N×F, `labels` float32 N×C with ones; a row of either may be empty.

    Give both as any sparse matrix, array, list of rows or data frame; they are converted here. `Images` stay unchanged.
    `labels` is a 0/1 (or bool) matrix: a row of a list is a row of that matrix, not a list of label numbers. Features
    that are not finite, and labels other than 0 and 1, are refused. `users` names the user of each instance, if known:
    another way to form clients. `parties` names the party of each instance, if each party has data of its own
    (`data.parties`); a record that several parties have is then in several rows.
    """

    features: Features
    labels: csr_matrix
    users: tuple[str, ...] | None = None
    parties: tuple[str, ...] | None = None
    places: Places | None = field(default=None, compare=False)
    """Where the records are in their file, if not one after another."""
    pictures: Images | None = field(default=None, compare=False)
    """The pictures that features were made of (`Dataset.pictures`)."""
    contents: np.ndarray | None = field(default=None, compare=False)
    """16 bytes for each record that tell its raw text from others, however features were made of it."""

    def __post_init__(self) -> None:
        if not isinstance(self.features, Images):
            object.__setattr__(self, "features", feature_matrix(self.features))
        object.__setattr__(self, "labels", label_matrix(self.labels))
        if self.features.shape[0] != self.labels.shape[0]:
            raise DataError(f"{self.features.shape[0]} rows of features but {self.labels.shape[0]} rows of labels")
        for holders in ("users", "parties"):
            object.__setattr__(self, holders, self._checked_holders(holders))

    def _checked_holders(self, kind: str) -> tuple[str, ...] | None:
        names = getattr(self, kind)
        if names is None:
            return None
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise DataError(f"{kind} should be a list of names, one per instance, not {names!r:.60}")
        names = tuple(map(str, names))
        if len(names) != self.features.shape[0]:
            raise DataError(f"{len(names)} {kind}' names for {self.features.shape[0]} instances")
        return names

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def __repr__(self) -> str:
        each = self.labels.nnz / max(len(self), 1)
        sizes = f"{len(self):,} records × {self.features.shape[1]:,} features, {self.labels.shape[1]:,} labels"
        return f"<fedalc.Split {sizes} ({each:.1f} per record)>"

    def rows(self, index: np.ndarray) -> Split:
        """Return the instances at these positions, in this order."""
        rows = np.arange(len(self))[index].tolist()
        users, parties = (
            None if names is None else tuple(names[at] for at in rows) for names in (self.users, self.parties)
        )
        places = None if self.places is None else self.places.rows(index)
        pictures = None if self.pictures is None else self.pictures[index]
        contents = None if self.contents is None else self.contents[index]
        return Split(self.features[index], self.labels[index], users, parties, places, pictures, contents)

    @cached_property
    def in_one_place(self) -> Split:
        """What one place would see that had the data of all parties: each record once, with all its labels."""
        if self.parties is None:
            return self
        record = record_numbers(self.features)
        _, first = np.unique(record, return_index=True)
        pairs = self.labels.tocoo()
        labels = csr_matrix((pairs.data, (record[pairs.row], pairs.col)), shape=(len(first), self.labels.shape[1]))
        labels.sum_duplicates()
        labels.data[:] = 1
        places = None if self.places is None else self.places.rows(first)
        return Split(
            self.features[first], labels, None, None, places, None if self.pictures is None else self.pictures[first]
        )


@dataclass(frozen=True, repr=False)
class Dataset:
    """A train and a test split over the same features and labels. `validation`: only if the dataset ships its own.

    Without test data (None, or a split without instances) a run has no test metrics. Without names, labels are called
    by number. `text`: what turned raw texts into these features, if they were texts; the saved model keeps it.
    """

    name: str
    train: Split
    test: Split = None  # type: ignore[assignment]  # None becomes a split without instances
    label_names: tuple[str, ...] = ()
    validation: Split | None = None
    text: TextFeatures | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    """How it was read: which columns were taken for what, and what was held out or left out."""
    table: TableSettings | None = field(default=None, compare=False)
    """Of data from a table: the settings, with the columns that were found."""
    strangers: Split | None = None
    """Records of nobody who is enrolled, without labels: only verification tests with them (docs/verification.md)."""
    pictures: PictureFeatures | None = field(default=None, compare=False)
    """What turned pictures into these features, if they were pictures; the saved model keeps it."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise DataError(f"a dataset's name is a text, not {self.name!r:.60}")
        for part in ("train", "test", "validation", "strangers"):
            split = getattr(self, part)
            if not isinstance(split, Split) and (split is not None or part == "train"):
                raise DataError(f"dataset {self.name}: {part} should be a fedalc.Split(features, labels)")
        if self.text is not None and not isinstance(self.text, TextFeatures):
            raise DataError(f"dataset {self.name}: text should be a TextFeatures, not {self.text!r:.60}")
        if self.test is None:
            object.__setattr__(self, "test", self.train.rows(np.array([], dtype=np.int64)))
        if self.strangers is not None and self.strangers.labels.nnz:
            raise DataError(f"dataset {self.name}: strangers have no labels: nobody enrolled them")
        for part, split in (self.splits | ({} if self.strangers is None else {"strangers": self.strangers})).items():
            if len(split) == 0 and part != "test":
                raise DataError(f"dataset {self.name}: {part} has no instances")
            for what, ours, theirs in (
                ("features", self.train.features, split.features),
                ("labels", self.train.labels, split.labels),
            ):
                if ours.shape[1] == 0:
                    raise DataError(f"dataset {self.name}: there are no {what}")
                if ours.shape[1] != theirs.shape[1]:
                    raise DataError(
                        f"dataset {self.name}: train has {ours.shape[1]} {what}, {part} has {theirs.shape[1]}"
                    )
        if self.text is not None and self.text.feature_count != self.feature_count:
            raise DataError(
                f"dataset {self.name}: {self.feature_count} features, but its text gives {self.text.feature_count}"
            )
        try:
            names = checked_names(() if self.label_names is None else self.label_names, self.label_count)
        except DataError as error:
            raise DataError(f"dataset {self.name}: {error}") from None
        object.__setattr__(self, "label_names", names)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(split):,} {name}" for name, split in self.splits.items() if len(split))
        sizes += "" if self.strangers is None else f", {len(self.strangers):,} strangers'"
        kind = "pictures" if isinstance(self.train.features, Images) else f"{self.feature_count:,} features"
        return f"<fedalc.Dataset {self.name}: {sizes} records, {kind}, {self.label_count:,} labels>"

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that exist, by name."""
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
        """The user of each training instance, if known."""
        return self.train.users

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content: equal for equal datasets."""
        digest = hashlib.sha256()
        for split in (self.train, self.test, self.validation):
            if split is not None:
                # The last bits of a network's outputs differ between machines.
                _update(digest, split.features if split.pictures is None else split.pictures)
                _update(digest, split.labels)
        if self.strangers is not None:
            digest.update(b"strangers\0")
            _update(digest, self.strangers.features)
        if self.users is not None:
            digest.update("\0".join(self.users).encode())
        if self.train.parties is not None:
            digest.update(b"parties\0" + "\0".join(self.train.parties).encode())
        return digest.hexdigest()


def _update(digest: hashlib._Hash, content: Features) -> None:
    if isinstance(content, Images):
        digest.update(content.fingerprint)
        return
    digest.update(repr(content.shape).encode())
    for array in (content.indptr, content.indices, content.data):
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)
