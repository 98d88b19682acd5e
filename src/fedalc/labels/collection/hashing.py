"""Client side: an instance becomes a digest, a label a pseudonym.

Two clients that hold the same instance must arrive at the same digest on different machines, so what is hashed are
bytes written out exactly (docs/collection-format.md), not whatever an array happens to hold. The paper hashes the
instance's *embedding*; another BLAS or another core count changes its last bits, and the join breaks without a word.
That is why `content` is the default, and `embedding` only an option.

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
RUN_DOMAIN = b"fedalc/2/"  # of a plain hash in a run; a keyed one has another key instead
MIN_DIGEST_BYTES = 8
_ROWS_AT_ONCE = 1 << 13  # some megabytes; more would not be faster


class Hasher:
    """Digests of instances and pseudonyms of labels, in separate domains: neither can be passed off as the other.

    With a `run` id they belong to that run alone: under the same key, another run's are all different. Without one they
    are the same wherever the key is used, as before run ids existed.

    The algorithms without `hmac-` are plain hashes, as in the paper: the server can test guesses against them. They
    are there for comparison and audit.
    """

    def __init__(self, algorithm: Algorithm, key: Key | None, digest_bytes: int = 16, run: str = "") -> None:
        if algorithm not in get_args(Algorithm):
            raise FedalcError(f"no hash algorithm {algorithm!r}; there are {', '.join(get_args(Algorithm))}")
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
        """One row of `digest_bytes` bytes per instance. Two to four microseconds each."""
        return self._digests(self._domain + b"instance/" + identity.encode() + b"\0", canonical)[
            :, : self.digest_bytes
        ].copy()

    def labels(self, names: Sequence[str]) -> np.ndarray:
        """One row of 16 bytes per label, whatever the length of the instances' digests."""
        written = (unicodedata.normalize("NFC", name).encode() for name in names)
        return self._digests(self._domain + b"label\0", written)[:, :PSEUDONYM_BYTES].copy()

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
    """The name of identity by embedding. It says the step: clients that round differently never join."""
    return "embedding" if step == 0 else f"embedding/{float(step)!r}"


def canonical_sparse(features: csr_matrix, records: Sequence[str] | None = None) -> Iterator[bytes]:
    """Each instance's bytes, the same whatever the number type and order in which its features are held.

    The count of features that are not zero; each one's index and value, by ascending index; the record's name. Give
    `records` for identity `record` (equal rows may be different records), and leave it out for `content`.
    """
    if features.shape[1] > 1 << 32:
        raise DataError(f"{features.shape[1]} features are more than 32 bits can count")
    if features.dtype.kind not in "biuf":
        raise DataError(f"features of type {features.dtype} are not numbers that can be hashed")
    if records is not None and len(records) != features.shape[0]:
        raise DataError(f"{len(records)} records' names for {features.shape[0]} instances")
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
                written = unicodedata.normalize("NFC", name).encode()
                yield b"".join((buffer[first : last - 4], struct.pack("<I", len(written)), written))


def canonical_pictures(images: Images, records: Sequence[str] | None = None) -> Iterator[bytes]:
    """Each picture's bytes: its side in pixels and the digest of its pixels, or its record's name.

    The pixels are those of the small copy: parties have to decode with the same library. A record's name stands alone,
    so that it also joins copies of a picture that were saved anew.
    """
    if records is None:
        return (struct.pack("<I", images.size) + digest.tobytes() for digest in images.digests)
    if len(records) != len(images):
        raise DataError(f"{len(records)} records' names for {len(images)} instances")
    return (unicodedata.normalize("NFC", record).encode() for record in records)


def canonical_features(features: csr_matrix | Images, records: Sequence[str] | None = None) -> Iterator[bytes]:
    """Each instance's bytes, of whichever kind it is."""
    if isinstance(features, Images):
        return canonical_pictures(features, records)
    return canonical_sparse(features, records)


def features_identity(identity: str, features: csr_matrix | Images) -> str:
    """`content` or `record` as messages say it. Contents of another size never join, so the size is in it."""
    if not isinstance(features, Images):
        return identity
    return f"content/{features.size}px" if identity == "content" else "record/picture"


def canonical_embeddings(embeddings: np.ndarray, step: float) -> Iterator[bytes]:
    """Each instance's embedding under the encoder that all clients start from, as the paper hashes it.

    Step 0: the raw float32 numbers, which one different rounding anywhere tears apart. A larger step rounds to its
    multiples; numbers near the middle between two of them are torn apart still, only more rarely.
    """
    if embeddings.ndim != 2:
        raise DataError("embeddings are one row per instance")
    if not (math.isfinite(step) and step >= 0):
        raise DataError(f"the step of rounding is 0 or a positive number, not {step}")
    if not np.isfinite(embeddings).all():
        raise DataError("an embedding has a number that is not finite")
    for start in range(0, len(embeddings), _ROWS_AT_ONCE):
        block = embeddings[start : start + _ROWS_AT_ONCE]
        if step == 0:
            exact = block.astype("<f4")
        else:
            rounded = np.rint(block.astype(np.float64) / step)
            if np.abs(rounded).max(initial=0) >= 1 << 31:
                raise DataError(f"step {step} is too small for these embeddings: they do not fit 32 bits")
            exact = rounded.astype("<i4")
        buffer, width = exact.tobytes(), 4 * exact.shape[1]
        for first in range(0, len(block) * width, width) if width else ():
            yield buffer[first : first + width]


def _cleaned(block: csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(count per row, index, value) of the entries that are not zero, by row and index, each index once."""
    block = csr_matrix(block, copy=True)
    block.sort_indices()
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        values = block.data.astype(np.float64).astype(np.float32)
    row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    index = block.indices
    again = np.flatnonzero((index[1:] == index[:-1]) & (row[1:] == row[:-1])) + 1
    if not np.isfinite(values).all():
        raise DataError("a feature's value is not a finite number in 32 bits")
    if len(again):
        row, index, values = _summed(row, index, values)
    kept = values != 0
    return np.bincount(row[kept], minlength=block.shape[0]), index[kept], values[kept]


def _summed(row: np.ndarray, index: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of one place added up exactly and rounded once, so that their order does not matter."""
    starts = np.flatnonzero(np.r_[True, (index[1:] != index[:-1]) | (row[1:] != row[:-1])])
    ends = np.r_[starts[1:], len(values)]
    totals = values[starts]
    with np.errstate(over="ignore"):
        for place in np.flatnonzero(ends - starts > 1):
            totals[place] = np.float32(math.fsum(values[starts[place] : ends[place]].tolist()))
    if not np.isfinite(totals).all():
        raise DataError("a feature's value is not a finite number in 32 bits")
    return row[starts], index[starts], totals


def _packed(counts: np.ndarray, index: np.ndarray, values: np.ndarray) -> tuple[bytes, list[int]]:
    """All rows in one buffer, and where each begins and ends: count, (index, value) each, length of the name (0)."""
    ends = np.cumsum(2 * counts + 2)
    starts = ends - (2 * counts + 2)
    words = np.zeros(int(ends[-1]) if len(ends) else 0, dtype="<u4")
    words[starts] = counts
    entry = np.repeat(starts + 1 - 2 * (np.cumsum(counts) - counts), counts) + 2 * np.arange(len(index))
    words[entry] = index
    words[entry + 1] = values.astype("<f4").view("<u4")
    return words.tobytes(), [0, *(4 * ends).tolist()]
