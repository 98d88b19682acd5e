"""Pictures as a replacement for a feature matrix: small, square, of one size, and on disk until needed."""

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
"""Default number of pictures read and encoded at a time."""

Fit = Literal["crop", "squeeze"]
"""How a picture becomes a square: by its centre square, or squeezed as a whole."""

Progress = Callable[[int, int], None]
"""Called with the number of pictures done, and of all pictures."""


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=2)


@dataclass(frozen=True)
class ImageOptions:
    """How to read pictures."""

    size: int = 96
    """Width and height, in pixels, of the copies used in training."""
    difficult: bool = True
    """VOC: whether objects marked as difficult give their picture a label. They are in the picture all the same."""
    broken: Literal["refuse", "skip"] = "refuse"
    """What to do with pictures that are missing or cannot be decoded: raise an error, or leave them out with a note."""
    fit: Fit = "crop"
    """Cut out the centre square of each picture, or squeeze all of it into a square."""
    wait: bool = field(default=True, compare=False)
    """Whether to read all pictures first. Otherwise a request for pixels waits for those pictures only, and raises if
    one of them is broken. (`broken = "skip"` always reads all first.)"""
    progress: Progress | None = field(default=None, compare=False)
    """Called from another thread if `wait` is false."""
    tell: Callable[[str], None] = field(default=_warn, compare=False)
    """Called with a note about pictures left out. Default: a warning."""

    def __post_init__(self) -> None:
        if not SMALLEST_SIDE <= self.size <= LARGEST_SIDE:
            raise ConfigError(f"a picture's side is {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, not {self.size}", "size")
        if self.broken not in ("refuse", "skip"):
            raise ConfigError(f"{self.broken!r} is neither 'refuse' nor 'skip'", "broken")


class Images:
    """N pictures of size × size pixels with three colours each. Parts of it share the pixels.

    It replaces a feature matrix: `shape` has one column per pixel and colour, and `images[rows]` selects rows like a
    matrix. Only `pixels` loads them into memory.
    """

    def __init__(
        self,
        store: np.ndarray,
        names: Sequence[str],
        digests: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`store` is uint8 M×size×size×3, usually a mapped file. `names` and `digests` are of all M pictures.

        Without `digests`, computes them, which reads all pictures. `arrivals`: set if pixels and digests are still
        being written; it says when a row is done.
        """
        if store.dtype != np.uint8 or store.ndim != 4 or store.shape[1] != store.shape[2] or store.shape[3] != CHANNELS:
            raise ValueError(f"pictures are uint8, N×size×size×{CHANNELS}, not {store.dtype} {store.shape}")
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
        """Return these pictures, in this order, by slice, numbers or mask."""
        index = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        if not isinstance(index, slice) and index.size == 0 and index.dtype != bool:
            index = index.astype(np.int64)  # an empty list is an array of floats
        return Images(self._store, self._names, self._digests, self._rows[index], self._arrivals)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {self.size}×{self.size})"

    def pixels(self) -> np.ndarray:
        """Return a copy, uint8 N×size×size×3. Take a batch first: this loads all pictures into memory."""
        self._wait()
        return np.asarray(self._store)[self._rows]  # rows of a memory map would be another map, and copied again

    @property
    def digests(self) -> np.ndarray:
        """A hash of each picture's pixels: one row of 16 bytes per picture."""
        self._wait()
        return np.asarray(self._digests[self._rows])

    def _wait(self) -> None:
        if self._arrivals is not None:
            self._arrivals.wait(self._rows)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The file names, in order."""
        return tuple(self._names[row] for row in self._rows.tolist())

    @property
    def fingerprint(self) -> bytes:
        """A hash of all pictures in order, computed from their digests."""
        return hashlib.sha256(repr(self.shape).encode() + np.ascontiguousarray(self.digests).tobytes()).digest()


def side_of(feature_count: int) -> int:
    """Return the width and height of pictures with `feature_count` numbers each."""
    if type(feature_count) is int and 0 < feature_count <= CHANNELS * LARGEST_SIDE**2:
        side = math.isqrt(feature_count // CHANNELS)
        if side >= SMALLEST_SIDE and CHANNELS * side * side == feature_count:
            return side
    raise ValueError(
        f"{feature_count!r} numbers are not a picture of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels a side, with "
        f"{CHANNELS} colours"
    )


def picture_digest(pixels: bytes) -> bytes:
    return hashlib.blake2b(pixels, digest_size=DIGEST_BYTES).digest()


def picture_digests(store: np.ndarray) -> np.ndarray:
    joined = b"".join(picture_digest(picture.tobytes()) for picture in store)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(store), DIGEST_BYTES)
