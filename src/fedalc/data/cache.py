"""Parsed files on disk, so that each file is parsed once.

The key is the SHA-256 of the file's content, the parser's version and its options: a changed file is another entry, and
nothing has to be invalidated. (Pictures, their archives and the annotations of published datasets, gigabytes of small
files, are keyed by path, size and time instead: `storage`.) The cache never causes a failure: an entry that cannot be
read is parsed again, and one that cannot be written is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.atomic_files import whole_binary
from fedalc.data.dataset import Split
from fedalc.errors import DataError

_FORMAT = 1
"""Raise it when the layout of an entry changes."""


@dataclass(frozen=True)
class Parsed:
    """The content of one file. Names only if the format has them."""

    split: Split
    feature_names: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()


def cache_dir() -> Path:
    if folder := os.environ.get("FEDALC_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "fedalc"
    return Path.home() / ".cache" / "fedalc"


def cached(path: Path, parser: str, options: str, parse: Callable[[], Parsed]) -> Parsed:
    """Return the parsed file, from the cache if possible. `parser` is the parser's name and version."""
    try:
        place = cache_dir() / f"{_key(path, parser, options)}.npz"
    except RuntimeError:  # a user without a home folder
        return parse()
    # Missing or damaged: parse the file.
    with contextlib.suppress(Exception):
        return _load(place)
    parsed = parse()
    with contextlib.suppress(OSError):
        _store(parsed, place)
    return parsed


def content_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError("no such file", path) from None
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror}", path) from None


def _key(path: Path, parser: str, options: str) -> str:
    return hashlib.sha256("\0".join((str(_FORMAT), content_digest(path), parser, options)).encode()).hexdigest()


def _store(parsed: Parsed, place: Path) -> None:
    arrays = {
        f"{part}_{array}": getattr(matrix, array)
        for part, matrix in (("features", parsed.split.features), ("labels", parsed.split.labels))
        for array in ("data", "indices", "indptr", "shape")
    }
    store_arrays(
        place, {"feature_names": packed(parsed.feature_names), "label_names": packed(parsed.label_names), **arrays}
    )


def store_arrays(place: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an entry at once: other processes see all of it or nothing, even after a power cut."""
    with whole_binary(place) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _load(place: Path) -> Parsed:
    with np.load(place, allow_pickle=False) as arrays:
        features, labels = (
            csr_matrix(
                tuple(arrays[f"{part}_{array}"] for array in ("data", "indices", "indptr")),
                shape=tuple(arrays[f"{part}_shape"]),
            )
            for part in ("features", "labels")
        )
        for matrix in (features, labels):
            matrix.check_format(full_check=True)
        return Parsed(Split(features, labels), unpacked(arrays["feature_names"]), unpacked(arrays["label_names"]))


def packed(names: tuple[str, ...]) -> np.ndarray:
    """Return names as bytes with a separator: numpy strings would pad each to the longest."""
    if with_one := [name for name in names if "\0" in name]:
        raise DataError(f"the name {with_one[0]!r} has a null character in it, which no name may have")
    return np.frombuffer("\0".join(names).encode("utf-8", errors="surrogateescape"), dtype=np.uint8)


def unpacked(joined: np.ndarray) -> tuple[str, ...]:
    text = joined.tobytes().decode("utf-8", errors="surrogateescape")
    return tuple(text.split("\0")) if text else ()
