"""Pictures in the place of a feature matrix: small, square, all of one size, and on disk until they are asked for."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from fedalc.core.picture_sides import LARGEST_SIDE, SMALLEST_SIDE
from fedalc.data.images.arrivals import Arrivals
from fedalc.errors import ConfigError

CHANNELS = 3
DIGEST_BYTES = 16
PICTURES_AT_ONCE = 64
"""At most, read and encoded at a time where nothing else is said."""

Progress = Callable[[int, int], None]
"""Told how many pictures are done, and how many there are."""


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=2)


@dataclass(frozen=True)
class ImageOptions:
    """How pictures are read."""

    size: int = 96
    """Width and height, in pixels, of the copies that training sees."""
    difficult: bool = False
    """VOC: whether an object that its annotators marked as difficult gives its picture a label."""
    broken: Literal["refuse", "skip"] = "refuse"
    """A picture that is missing or cannot be decoded is an error, or is left out with a note."""
    wait: bool = field(default=True, compare=False)
    """Whether all of them are read before any is handed out. Otherwise whoever asks for pixels waits for those alone,
    and is told then if a picture is broken. (Where broken ones are skipped, all have to be read first.)"""
    progress: Progress | None = field(default=None, compare=False)
    """Called from another thread where nobody waits."""
    tell: Callable[[str], None] = field(default=_warn, compare=False)
    """Told what was left out. A warning unless said otherwise."""

    def __post_init__(self) -> None:
        if not SMALLEST_SIDE <= self.size <= LARGEST_SIDE:
            raise ConfigError(f"a picture's side is {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, not {self.size}", "size")
        if self.broken not in ("refuse", "skip"):
            raise ConfigError(f"{self.broken!r} is neither 'refuse' nor 'skip'", "broken")


class Images:
    """N pictures of size × size pixels with three colours each. Parts of it share the pixels.

    Where an instance's features are a row of a matrix, here they are a picture: `shape` is that of the matrix with one
    column per pixel and colour, and `images[rows]` takes rows as a matrix does. Only `pixels` brings them into memory.
    """

    def __init__(
        self,
        store: np.ndarray,
        names: Sequence[str],
        digests: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`store` is uint8 M×size×size×3, a file's map as a rule. `names` and `digests` are of all M pictures.

        Each picture's digest is worked out here where it is not known: that reads all of them. `arrivals`: pixels and
        digests are still being written, and are there when it says so.
        """
        if store.dtype != np.uint8 or store.ndim != 4 or store.shape[1] != store.shape[2] or store.shape[3] != CHANNELS:
            raise ValueError(f"pictures are uint8, N×size×size×{CHANNELS}, and not {store.dtype} {store.shape}")
        if len(names) != len(store):
            raise ValueError(f"{len(names)} names for {len(store)} pictures")
        self._store, self._names = store, names
        self._digests = picture_digests(store) if digests is None else digests
        self._rows = np.arange(len(store)) if rows is None else rows
        self._arrivals = arrivals

    @property
    def size(self) -> int:
        """Width and height of each picture."""
        return int(self._store.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self.size * self.size * CHANNELS

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | int | np.ndarray | Sequence[int]) -> Images:
        """These pictures, in this order, by slice, numbers or mask."""
        index = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        if not isinstance(index, slice) and index.size == 0 and index.dtype != bool:
            index = index.astype(np.int64)  # an empty list would be of floats
        return Images(self._store, self._names, self._digests, self._rows[index], self._arrivals)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {self.size}×{self.size})"

    def pixels(self) -> np.ndarray:
        """uint8 N×size×size×3, a copy: take a batch first, or all of them come into memory."""
        self._wait()
        return np.asarray(self._store)[self._rows]  # a map would make of its rows another map, to be copied again

    @property
    def digests(self) -> np.ndarray:
        """One row of 16 bytes per picture, told by its pixels alone."""
        self._wait()
        return np.asarray(self._digests[self._rows])

    def _wait(self) -> None:
        if self._arrivals is not None:
            self._arrivals.wait(self._rows)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the files are called, in order."""
        return tuple(self._names[row] for row in self._rows.tolist())

    @property
    def fingerprint(self) -> bytes:
        """Tells whether these are the same pictures in the same order, without reading them."""
        return hashlib.sha256(repr(self.shape).encode() + np.ascontiguousarray(self.digests).tobytes()).digest()


def side_of(feature_count: int) -> int:
    """Width and height of pictures with so many numbers each."""
    if type(feature_count) is int and 0 < feature_count <= CHANNELS * LARGEST_SIDE**2:
        side = math.isqrt(feature_count // CHANNELS)
        if side >= SMALLEST_SIDE and CHANNELS * side * side == feature_count:
            return side
    raise ValueError(
        f"{feature_count!r} numbers are no picture of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels a side, with "
        f"{CHANNELS} colours"
    )


def picture_digest(pixels: bytes) -> bytes:
    return hashlib.blake2b(pixels, digest_size=DIGEST_BYTES).digest()


def picture_digests(store: np.ndarray) -> np.ndarray:
    joined = b"".join(picture_digest(picture.tobytes()) for picture in store)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(store), DIGEST_BYTES)
