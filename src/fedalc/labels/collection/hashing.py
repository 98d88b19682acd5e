"""Client side: turn instances into digests and labels into pseudonyms.

Two clients that hold the same instance must compute the same digest on different machines. So the bytes to hash are
specified exactly (docs/collection-format.md) and do not depend on how an array is stored. The paper hashes the
instance's *embedding*, but another BLAS or core count changes its last bits, and the join then fails silently.
Therefore `content` is the default and `embedding` an option.

Digests are truncated. Among N instances two share a digest of b bits with probability at most N²/2^(b+1): for 1.8
million and 128 bits, 5e-27.
"""

from __future__ import annotations

import hashlib
import math
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import Algorithm, is_keyed
from fedalc.core.progress_events import watched
from fedalc.data.images.images import Images
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.keys import Key, check_run_id
from fedalc.labels.collection.messages import PSEUDONYM_BYTES, Protocol

DOMAIN = b"fedalc/1/"
RUN_DOMAIN = b"fedalc/2/"  # for plain hashes with a run id; keyed hashes use a key derived for the run instead
MIN_DIGEST_BYTES = 8
_ROWS_AT_ONCE = 1 << 13  # some megabytes; more would not be faster


class Hasher:
    """Computes digests of instances and pseudonyms of labels, in separate domains so that they cannot be confused.

    With a `run` id all digests and pseudonyms differ from those of other runs under the same key. Without one they are
    the same in every run with this key.

    The algorithms without `hmac-` are plain hashes, as in the paper: the server can test guesses against them. Use them
    only for comparison and audit.
    """

    def __init__(self, algorithm: Algorithm, key: Key | None, digest_bytes: int = 16, run: str = "") -> None:
        if algorithm not in get_args(Algorithm):
            raise FedalcError(f"unknown hash algorithm {algorithm!r}; choose from {', '.join(get_args(Algorithm))}")
        keyed = is_keyed(algorithm)
        if keyed and key is None:
            raise FedalcError(f"{algorithm} needs a key; make one with `fedalc key new FILE`")
        if not keyed and key is not None:
            raise FedalcError(f"{algorithm} is a plain hash and uses no key; did you mean hmac-{algorithm}?")
        self._hash_name = algorithm.removeprefix("hmac-")
        self._size = hashlib.new(self._hash_name, usedforsecurity=False).digest_size
        if not MIN_DIGEST_BYTES <= digest_bytes <= self._size:
            raise FedalcError(
                f"a digest of {algorithm} has {MIN_DIGEST_BYTES} to {self._size} bytes, not {digest_bytes}"
            )
        self.algorithm, self.digest_bytes, self.run = algorithm, digest_bytes, run
        self._key, self._domain = key, DOMAIN
        if run:
            check_run_id(run)
            if key is None:
                self._domain = RUN_DOMAIN + run.encode("ascii") + b"\0"
            else:
                self._key = key.for_run(run)

    def protocol(self, identity: str) -> Protocol:
        check = "" if self._key is None else self._key.check
        return Protocol(self.algorithm, identity, self.digest_bytes, check, self.run)

    def instances(self, canonical: Iterable[bytes], identity: str = "content") -> np.ndarray:
        """Return one row of `digest_bytes` bytes per instance. Takes two to four microseconds each."""
        return self._digests(self._domain + b"instance/" + identity.encode() + b"\0", canonical)[
            :, : self.digest_bytes
        ].copy()

    def labels(self, names: Sequence[str]) -> np.ndarray:
        """Return one row of 16 bytes per label, whatever `digest_bytes` is."""
        normalized = (unicodedata.normalize("NFC", name).encode() for name in names)
        return self._digests(self._domain + b"label\0", normalized)[:, :PSEUDONYM_BYTES].copy()

    def secret(self, purpose: str) -> bytes:
        """Return 64 bytes for one purpose that only holders of the key can compute. With a `run` id, for this run."""
        if self._key is None:
            raise FedalcError(f"{self.algorithm} uses no key, so there is nothing secret to draw from; use hmac-sha256")
        return self._key.mac("sha512", DOMAIN + purpose.encode())

    def numbers(self, purpose: str, contents: Iterable[bytes]) -> np.ndarray:
        """Return eight numbers of 64 bits for each content that only holders of the key can compute."""
        if self._key is None:
            raise FedalcError(f"{self.algorithm} uses no key, so the server could compute these too; use hmac-sha256")
        mac, domain = self._key.mac, DOMAIN + purpose.encode() + b"\0"
        joined = b"".join([mac("sha512", domain + content) for content in contents])
        return np.frombuffer(joined, dtype="<u8").reshape(-1, 8)

    def _digests(self, domain: bytes, contents: Iterable[bytes]) -> np.ndarray:
        name = self._hash_name
        if self._key is not None:
            mac = self._key.mac
            joined = b"".join([mac(name, domain + content) for content in contents])
        else:
            start: Any = hashlib.new(name, domain, usedforsecurity=False)
            joined = b"".join([_continued(start, content) for content in contents])
        return np.frombuffer(joined, dtype=np.uint8).reshape(-1, self._size)


def _continued(start: Any, content: bytes) -> bytes:
    digest = start.copy()
    digest.update(content)
    return digest.digest()


def embedding_identity(step: float) -> str:
    """Return the name of identity `embedding` in messages. It includes the step: other roundings never join."""
    return "embedding" if step == 0 else f"embedding/{float(step)!r}"


def canonical_sparse(features: csr_matrix, records: Sequence[str] | None = None) -> Iterator[bytes]:
    """Yield the bytes to hash for each instance. They do not depend on the number type or order of its features.

    They are the count of non-zero features, the index and value of each by ascending index, and the record name. Give
    `records` for identity `record` (equal rows may be different records), and omit it for `content`.
    """
    if features.shape[1] > 1 << 32:
        raise DataError(f"{features.shape[1]} features are too many: a feature index has 32 bits")
    if features.dtype.kind not in "biuf":
        raise DataError(f"features of type {features.dtype} cannot be hashed: they are not real numbers")
    if records is not None and len(records) != features.shape[0]:
        raise DataError(f"{len(records)} record names for {features.shape[0]} instances")
    count = features.shape[0]
    starts = range(0, count, _ROWS_AT_ONCE)
    for start in watched("instances hashed", starts, count, lambda start: min(_ROWS_AT_ONCE, count - start)):
        block = features[start : start + _ROWS_AT_ONCE]
        names = None if records is None else records[start : start + _ROWS_AT_ONCE]
        buffer, bounds = _packed(*_cleaned(block))
        if names is None:
            for first, last in pairwise(bounds):
                yield buffer[first:last]
        else:
            for (first, last), name in zip(pairwise(bounds), names, strict=True):
                record = unicodedata.normalize("NFC", name).encode()
                yield b"".join((buffer[first : last - 4], struct.pack("<I", len(record)), record))


def canonical_pictures(images: Images, records: Sequence[str] | None = None) -> Iterator[bytes]:
    """Return the bytes to hash for each picture: its side in pixels and the digest of its pixels, or its record name.

    The pixels are those of the small copy, so parties must decode with the same library. A record name is hashed
    without pixels, so it also joins copies of a picture that were saved again.
    """
    if records is None:
        return (struct.pack("<I", images.size) + digest.tobytes() for digest in images.digests)
    if len(records) != len(images):
        raise DataError(f"{len(records)} record names for {len(images)} instances")
    return (unicodedata.normalize("NFC", record).encode() for record in records)


def canonical_features(features: csr_matrix | Images, records: Sequence[str] | None = None) -> Iterator[bytes]:
    """Return the bytes to hash for each instance: sparse features or pictures."""
    if isinstance(features, Images):
        return canonical_pictures(features, records)
    return canonical_sparse(features, records)


def features_identity(identity: str, features: csr_matrix | Images) -> str:
    """Return the name of identity `content` or `record` in messages.

    For pictures it includes the size: contents of different sizes never join.
    """
    if not isinstance(features, Images):
        return identity
    return f"content/{features.size}px" if identity == "content" else "record/picture"


def canonical_embeddings(embeddings: np.ndarray, step: float) -> Iterator[bytes]:
    """Yield the bytes to hash for each embedding under the encoder that all clients start from, as in the paper.

    With step 0 these are the raw float32 numbers, so any difference in rounding changes the digest. A larger step
    rounds to its multiples. Numbers near the middle between two multiples can still round differently, but rarely.
    """
    if embeddings.ndim != 2:
        raise DataError("embeddings must be a matrix with one row per instance")
    if not (math.isfinite(step) and step >= 0):
        raise DataError(f"the rounding step must be 0 or a positive number, not {step}")
    if not np.isfinite(embeddings).all():
        raise DataError("an embedding has a number that is not finite")
    for start in range(0, len(embeddings), _ROWS_AT_ONCE):
        block = embeddings[start : start + _ROWS_AT_ONCE]
        if step == 0:
            exact = block.astype("<f4")
        else:
            rounded = np.rint(block.astype(np.float64) / step)
            if np.abs(rounded).max(initial=0) >= 1 << 31:
                raise DataError(f"step {step} is too small for these embeddings: rounded numbers exceed 32 bits")
            exact = rounded.astype("<i4")
        buffer, width = exact.tobytes(), 4 * exact.shape[1]
        for first in range(0, len(block) * width, width) if width else ():
            yield buffer[first : first + width]


def _cleaned(block: csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (count per row, index, value) of the non-zero entries, sorted by row and index, each index once."""
    block = csr_matrix(block, copy=True)
    block.sort_indices()
    with np.errstate(over="ignore"):  # infinite values are refused below
        values = block.data.astype(np.float64).astype(np.float32)
    row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    index = block.indices
    repeated = (index[1:] == index[:-1]) & (row[1:] == row[:-1])
    if not np.isfinite(values).all():
        raise DataError("a feature's value is not a finite number in 32 bits")
    if repeated.any():
        row, index, values = _summed(row, index, values)
    nonzero = values != 0
    return np.bincount(row[nonzero], minlength=block.shape[0]), index[nonzero], values[nonzero]


def _summed(row: np.ndarray, index: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum repeated entries exactly and round once, so that their order does not matter."""
    starts = np.flatnonzero(np.r_[True, (index[1:] != index[:-1]) | (row[1:] != row[:-1])])
    ends = np.r_[starts[1:], len(values)]
    totals = values[starts]
    with np.errstate(over="ignore"):
        for entry in np.flatnonzero(ends - starts > 1):
            totals[entry] = np.float32(math.fsum(values[starts[entry] : ends[entry]].tolist()))
    if not np.isfinite(totals).all():
        raise DataError("a feature's value is not a finite number in 32 bits")
    return row[starts], index[starts], totals


def _packed(counts: np.ndarray, index: np.ndarray, values: np.ndarray) -> tuple[bytes, list[int]]:
    """Return all rows in one buffer, and the bounds of the rows.

    A row is its count, its (index, value) pairs, and the length of the record name (0).
    """
    ends = np.cumsum(2 * counts + 2)
    starts = ends - (2 * counts + 2)
    words = np.zeros(int(ends[-1]) if len(ends) else 0, dtype="<u4")
    words[starts] = counts
    entry = np.repeat(starts + 1 - 2 * (np.cumsum(counts) - counts), counts) + 2 * np.arange(len(index))
    words[entry] = index
    words[entry + 1] = values.astype("<f4").view("<u4")
    return words.tobytes(), [0, *(4 * ends).tolist()]
