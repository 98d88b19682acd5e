"""Annotations of pictures, in one form for all layouts, and their conversion to a `Dataset`."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.cache import cache_dir, packed, store_arrays, unpacked
from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.decode import small_copies
from fedalc.data.images.images import ImageOptions
from fedalc.data.storage import Place
from fedalc.errors import DataError

_FORMAT = 1
"""Raise it when the layout of a cache entry changes."""
_SPLITS = ("train", "test", "validation")


@dataclass(frozen=True)
class Annotations:
    """The pictures and their labels. No picture has been opened."""

    pictures: tuple[str, ...]
    labels: csr_matrix
    """A row per picture. Pictures without labels stay: no client has them, but they are used for testing."""
    label_names: tuple[str, ...]
    splits: Mapping[str, np.ndarray]
    """Rows of `train`, `test` and optionally `validation`. Only leaking splits share rows."""
    users: tuple[str, ...] | None = None
    """The user of each picture, if known."""


def label_matrix(pairs: Iterable[tuple[int, int]], pictures: int, labels: int) -> csr_matrix:
    """Return the matrix of (picture, label) pairs, given in any order; pairs may repeat."""
    unique = np.unique(np.array(list(pairs), dtype=np.int64).reshape(-1, 2), axis=0)
    return csr_matrix((np.ones(len(unique), dtype=np.float32), (unique[:, 0], unique[:, 1])), shape=(pictures, labels))


def kept_annotations(key: str, read: Callable[[], Annotations], cache: bool = True) -> Annotations:
    """Return annotations, from the cache if possible. The cache never causes a failure."""
    if not cache:
        return read()
    digest = hashlib.sha256(f"{_FORMAT} {key}".encode(errors="surrogateescape")).hexdigest()
    try:
        file = cache_dir() / f"annotations-{digest[:40]}.npz"
    except RuntimeError:  # a user without a home folder
        return read()
    with contextlib.suppress(Exception), np.load(file, allow_pickle=False) as arrays:
        return _from_arrays(arrays)
    annotations = read()
    with contextlib.suppress(OSError):
        store_arrays(file, _to_arrays(annotations))
    return annotations


def make_dataset(name: str, storage: Place, annotations: Annotations, options: ImageOptions, cache: bool) -> Dataset:
    parts = make_splits(storage, annotations, options, cache)
    return Dataset(name, parts["train"], parts["test"], annotations.label_names, parts.get("validation"))


def make_splits(storage: Place, annotations: Annotations, options: ImageOptions, cache: bool) -> dict[str, Split]:
    """Return the small copies with their labels, by split, without the broken pictures that were skipped."""
    images, usable = small_copies(
        storage,
        annotations.pictures,
        options.size,
        options.broken,
        progress=options.progress,
        tell=options.tell,
        cache=cache,
        wait=options.wait,
        fit=options.fit,
        first=annotations.splits["train"].tolist() if "train" in annotations.splits else (),
    )
    position = np.cumsum(usable) - 1
    parts: dict[str, Split] = {}
    for part, rows in annotations.splits.items():
        rows = rows[usable[rows]]
        if not len(rows):
            raise DataError(f"none of the pictures of its {part} split can be used", storage.path)
        users = None if annotations.users is None else tuple(annotations.users[row] for row in rows.tolist())
        parts[part] = Split(images[position[rows]], annotations.labels[rows], users)
    return parts


def _to_arrays(annotations: Annotations) -> dict[str, np.ndarray]:
    return {
        "pictures": packed(annotations.pictures),
        "label_names": packed(annotations.label_names),
        "indptr": annotations.labels.indptr,
        "indices": annotations.labels.indices,
        **annotations.splits,
        **({} if annotations.users is None else {"users": packed(annotations.users)}),
    }


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> Annotations:
    pictures, label_names = unpacked(arrays["pictures"]), unpacked(arrays["label_names"])
    ones = np.ones(len(arrays["indices"]), dtype=np.float32)
    labels = csr_matrix((ones, arrays["indices"], arrays["indptr"]), shape=(len(pictures), len(label_names)))
    labels.check_format(full_check=True)
    splits = {part: arrays[part] for part in _SPLITS if part in arrays}
    return Annotations(pictures, labels, label_names, splits, unpacked(arrays["users"]) if "users" in arrays else None)
