"""The messages a client sends once: for each of its instances and labels, the digest and the label's pseudonym."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.schema import Algorithm, is_keyed
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.container import read_container, write_container
from fedalc.labels.collection.keys import check_run_id

if TYPE_CHECKING:
    from fedalc.labels.collection.hashing import Hasher

PSEUDONYM_BYTES = 16
_MAX_CLIENT = 64
_IDENTITY = re.compile(r"content(/[1-9][0-9]{0,3}px)?|record(/picture)?|embedding(/[0-9.e+-]{1,32})?(/[0-9a-f]{8})?")
_KEY_CHECK = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Protocol:
    """How digests were made. Only digests of the same protocol can be joined.

    `key_check` is empty for a plain hash. `run` is empty for messages without a run id, such as those of fedalc 0.1.
    """

    algorithm: Algorithm
    identity: str
    digest_bytes: int
    key_check: str
    run: str = ""

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise DataError(f"unknown hash algorithm {str(self.algorithm)[:40]!r}")
        if not isinstance(self.identity, str) or not _IDENTITY.fullmatch(self.identity):
            raise DataError(
                f"unknown identity {str(self.identity)[:40]!r} of instances; it is content, record or embedding"
            )
        size = {"md5": 16, "sha256": 32, "sha512": 64}[self.algorithm.removeprefix("hmac-")]
        if type(self.digest_bytes) is not int or not 8 <= self.digest_bytes <= size:
            raise DataError(f"a digest of {self.algorithm} has 8 to {size} bytes, not {str(self.digest_bytes)[:40]}")
        wanted = _KEY_CHECK if is_keyed(self.algorithm) else re.compile("")
        if not isinstance(self.key_check, str) or not wanted.fullmatch(self.key_check):
            raise DataError(f"the key check is not valid for {self.algorithm}")
        if self.run != "":
            try:
                check_run_id(self.run)
            except FedalcError as error:
                raise DataError(str(error)) from None


def check_client_name(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_CLIENT or not name.isprintable():
        raise DataError(f"a client's name has 1 to {_MAX_CLIENT} printable characters")
    if name != name.strip():
        raise DataError("a client's name must not begin or end with a space")


@dataclass(frozen=True, eq=False)
class Messages:
    """Message i says: the instance with `digests[i]` carries the label with `pseudonyms[labels[i]]`.

    `digests` is uint8 (messages × digest_bytes), `pseudonyms` uint8 (labels × 16), `labels` uint32. `client` is a name
    that the party chose, or a random name. A party may send several parts under the same name.
    """

    protocol: Protocol
    client: str
    pseudonyms: np.ndarray
    digests: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        name = self.client
        check_client_name(name)
        _check(self.pseudonyms, "pseudonyms", np.uint8, (None, PSEUDONYM_BYTES), name)
        _check(self.digests, "digests", np.uint8, (None, self.protocol.digest_bytes), name)
        _check(self.labels, "labels", np.uint32, (len(self.digests),), name)
        if len(self.labels) == 0:
            raise DataError(f"client {name}: no messages")
        if int(self.labels.max()) >= len(self.pseudonyms):
            raise DataError(f"client {name}: a message has label {self.labels.max()} of {len(self.pseudonyms)} labels")
        if len(self.pseudonyms) == 1:
            return
        sorted_rows = self.pseudonyms[byte_order(self.pseudonyms)]
        if (sorted_rows[1:] == sorted_rows[:-1]).all(axis=1).any():
            raise DataError(f"client {name}: two labels have the same pseudonym")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labels_without_messages(self) -> np.ndarray:
        """Indices of the labels that no message has."""
        return np.flatnonzero(np.bincount(self.labels, minlength=len(self.pseudonyms)) == 0)

    def with_messages_only(self) -> Messages:
        """Return the same messages without labels that no message has."""
        if not len(self.labels_without_messages):
            return self
        used, labels = np.unique(self.labels, return_inverse=True)
        return replace(self, pseudonyms=self.pseudonyms[used], labels=labels.astype(np.uint32))

    def save(self, path: Path | str) -> None:
        arrays = {"pseudonyms": self.pseudonyms, "digests": self.digests, "labels": self.labels}
        write_container(path, "messages", {"client": self.client, "protocol": asdict(self.protocol)}, arrays)

    @classmethod
    def load(cls, path: Path | str) -> Messages:
        return load_messages(path)[0]


def load_messages(path: Path | str) -> tuple[Messages, str]:
    """Return a file's messages and its checksum."""
    facts, arrays, checksum = read_container(path, "messages")
    if set(facts) != {"client", "protocol"} or set(arrays) != {"pseudonyms", "digests", "labels"}:
        raise DataError("does not have the facts and arrays of a messages file", path)
    try:
        return Messages(protocol_from(facts["protocol"]), facts["client"], **arrays), checksum
    except DataError as error:
        raise DataError(str(error), path) from None


def protocol_from(facts: Any) -> Protocol:
    """Return the protocol in a file's header."""
    fields = {"algorithm", "identity", "digest_bytes", "key_check"}
    if not isinstance(facts, dict) or set(facts) - {"run"} != fields:
        raise DataError(f"the protocol must have the fields {', '.join(sorted(fields))} and optionally run")
    try:
        return _protocol(**facts)
    except TypeError:  # a value is a list or a table
        raise DataError("the protocol has a value of the wrong type") from None


@cache
def _protocol(**facts: Any) -> Protocol:
    """Return one shared object for equal protocols: there may be as many parts as labels."""
    return Protocol(**facts)


def make_messages(
    hasher: Hasher,
    identity: str,
    client: str | None,
    canonical: Iterable[bytes],
    label_matrix: csr_matrix,
    label_names: Sequence[str],
) -> Messages:
    """Make the messages of a client that holds these instances (rows) with these labels (columns).

    Each instance is hashed once. Messages are sorted by digest and labels by pseudonym, so that the order reveals
    nothing about the party's data. A label without an instance is not claimed. `client=None` draws a random name.
    """
    digests = hasher.instances(canonical, identity)
    return messages_with(hasher, identity, client, digests, label_matrix, label_names).with_messages_only()


def messages_with(
    hasher: Hasher,
    identity: str,
    client: str | None,
    digests: np.ndarray,
    label_matrix: csr_matrix,
    label_names: Sequence[str],
) -> Messages:
    """Like `make_messages`, for instances that are already hashed; also claims labels without an instance."""
    if len(label_names) != label_matrix.shape[1]:
        raise DataError(f"{len(label_names)} label names for {label_matrix.shape[1]} labels")
    if len(digests) != label_matrix.shape[0]:
        raise DataError(f"{len(digests)} instances, but {label_matrix.shape[0]} rows of labels")
    entries = label_matrix.tocoo()
    nonzero = entries.data != 0
    row, column = entries.row[nonzero], entries.col[nonzero]
    if len(row) == 0:
        raise FedalcError("nothing to send: no instance carries one of these labels")
    pseudonyms = hasher.labels(label_names)
    order = byte_order(pseudonyms)
    rank = np.empty(len(order), dtype=np.uint32)
    rank[order] = np.arange(len(order), dtype=np.uint32)
    pseudonyms, digests, labels = pseudonyms[order], digests[row], rank[column]
    order = np.lexsort((labels, *as_words(digests).T[::-1]))
    digests, labels = digests[order], labels[order]
    first = np.r_[True, (digests[1:] != digests[:-1]).any(axis=1) | (labels[1:] != labels[:-1])]
    if not first.all():  # merge equal instances
        digests, labels = digests[first], labels[first]
    client = secrets.token_hex(8) if client is None else client
    return Messages(hasher.protocol(identity), client, pseudonyms, digests, labels)


def as_words(rows: np.ndarray) -> np.ndarray:
    """Return rows of bytes as rows of 64-bit numbers that sort in the same order."""
    words = -(-rows.shape[1] // 8)
    if rows.shape[1] != 8 * words:
        rows = np.pad(rows, ((0, 0), (0, 8 * words - rows.shape[1])))
    return np.ascontiguousarray(rows).view(">u8").astype(np.uint64)


def byte_order(rows: np.ndarray) -> np.ndarray:
    """Return the order that sorts rows of bytes."""
    return np.lexsort(as_words(rows).T[::-1])


def _check(array: np.ndarray, what: str, dtype: type, shape: tuple[int | None, ...], client: str) -> None:
    fits = array.ndim == len(shape) and all(a == b for a, b in zip(array.shape, shape, strict=True) if b is not None)
    if not fits or array.dtype != dtype:
        wanted = " × ".join("any" if length is None else str(length) for length in shape)
        has = " × ".join(map(str, array.shape))
        raise DataError(f"client {client}: {what} are {array.dtype} {has}, but should be {dtype.__name__} {wanted}")
