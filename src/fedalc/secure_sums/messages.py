"""The messages of a secure sum as bytes. Reading checks every size before it takes anything.

Parties are numbered by their place in the roster, which is in the order of their names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from fedalc.secure_sums.primitives import KEY_BYTES, SEED_BYTES, digest
from fedalc.secure_sums.refusals import Refused

HASH_BYTES = 32
BOX_BYTES = 2 * SEED_BYTES + 16  # two shares and the authenticator
LEAST_PARTIES = 3
MOST_PARTIES = 1_000
LONGEST_NAME = 1_000  # bytes
LONGEST_HISTORY = 1 << 20  # bytes


class Reader:
    """Takes parts off a message, and refuses one that is too short or too long."""

    def __init__(self, content: bytes, what: str) -> None:
        self._content, self._place, self._what = content, 0, what

    def take(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._content):
            raise Refused(f"{self._what} is cut off: {len(self._content)} bytes")
        part, self._place = self._content[self._place : end], end
        return bytes(part)

    def number(self, most: int) -> int:
        (value,) = struct.unpack("<I", self.take(4))
        if value > most:
            raise Refused(f"{self._what} has the number {value} where at most {most} fits")
        return int(value)

    def several(self, read: Callable[[Reader], Any], size: int, most: int = MOST_PARTIES) -> tuple[Any, ...]:
        """Return a list of items of at least `size` bytes each."""
        count = self.number(most)
        if self._place + count * size > len(self._content):
            raise Refused(f"{self._what} is cut off: {len(self._content)} bytes")
        return tuple(read(self) for _ in range(count))

    def end(self) -> None:
        if self._place != len(self._content):
            raise Refused(f"{self._what} has {len(self._content) - self._place} bytes too many")


def _number(value: int) -> bytes:
    return struct.pack("<I", value)


def _several(items: Iterable[bytes]) -> bytes:
    written = list(items)
    return _number(len(written)) + b"".join(written)


def _index(reader: Reader) -> int:
    return reader.number(MOST_PARTIES - 1)


def _ascending(indices: tuple[int, ...], what: str) -> tuple[int, ...]:
    if any(first >= second for first, second in pairwise(indices)):
        raise Refused(f"{what} lists a party twice, or out of order")
    return indices


@dataclass(frozen=True)
class Keys:
    """A party's keys for one sum. `tag` binds them to its name and the sum, under the parties' secret. `history`: a
    digest of the lists of parties that it knows (`Disclosures`)."""

    name: str
    sealing: bytes
    masking: bytes
    commitment: bytes  # to the seed of its own mask
    history: bytes
    tag: bytes

    @property
    def bound(self) -> tuple[bytes, ...]:
        return self.name.encode(), self.sealing, self.masking, self.commitment, self.history

    def to_bytes(self) -> bytes:
        name = self.name.encode()
        return _number(len(name)) + name + self.sealing + self.masking + self.commitment + self.history + self.tag

    @classmethod
    def read(cls, reader: Reader) -> Self:
        try:
            name = reader.take(reader.number(LONGEST_NAME)).decode()
        except UnicodeDecodeError:
            raise Refused("keys with a name that cannot be read") from None
        sizes = (KEY_BYTES, KEY_BYTES, HASH_BYTES, HASH_BYTES, HASH_BYTES)
        return cls(name, *(reader.take(size) for size in sizes))


@dataclass(frozen=True)
class Announcement:
    """What a party sends first: its keys, and the lists that it knows, as JSON."""

    keys: Keys
    history: bytes

    def to_bytes(self) -> bytes:
        return self.keys.to_bytes() + _number(len(self.history)) + self.history

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = Reader(content, "the keys")
        sent = cls(Keys.read(reader), reader.take(reader.number(LONGEST_HISTORY)))
        reader.end()
        if history_digest(sent.history) != sent.keys.history:
            raise Refused("keys with another history than their own")
        return sent


def history_digest(history: bytes) -> bytes:
    return digest("history", history)


@dataclass(frozen=True)
class Roster:
    """Who takes part in a sum, how many of them are needed to unmask it, and the lists that they know."""

    threshold: int
    members: tuple[Keys, ...]
    histories: tuple[bytes, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    def session(self, run: str, seq: int) -> bytes:
        """Return the digest that all later messages of the sum are bound to."""
        return digest("session", run.encode(), seq.to_bytes(8, "little"), self.to_bytes())

    def to_bytes(self) -> bytes:
        histories = (_number(len(history)) + history for history in self.histories)
        return _number(self.threshold) + _several(member.to_bytes() for member in self.members) + _several(histories)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = Reader(content, "the roster")
        threshold = reader.number(MOST_PARTIES)
        members = reader.several(Keys.read, 4 + 2 * KEY_BYTES + 3 * HASH_BYTES)
        roster = cls(threshold, members, reader.several(lambda part: part.take(part.number(LONGEST_HISTORY)), 4))
        reader.end()
        return roster


@dataclass(frozen=True)
class Deal:
    """A party's shares of its two seeds. `boxes`: one for each other party, sealed. `hashes`: of both shares of each
    party, its own included, so that a share can be checked when it is given back."""

    boxes: tuple[bytes, ...]
    hashes: tuple[bytes, ...]  # 64 bytes each: of the self-mask's share, then of the mask key's

    def to_bytes(self) -> bytes:
        return _several(self.boxes) + _several(self.hashes)

    @classmethod
    def from_bytes(cls, content: bytes, parties: int) -> Self:
        reader = Reader(content, "the deal")
        deal = cls(
            reader.several(lambda part: part.take(BOX_BYTES), BOX_BYTES),
            reader.several(lambda part: part.take(2 * HASH_BYTES), 2 * HASH_BYTES),
        )
        reader.end()
        if (len(deal.boxes), len(deal.hashes)) != (parties - 1, parties):
            raise Refused(f"deals {len(deal.boxes)} shares with {len(deal.hashes)} hashes to {parties} parties")
        return deal


@dataclass(frozen=True)
class Dealt:
    """What the others dealt to one party. `dealers`: all parties that dealt, the receiver included; its own entry of
    `boxes` and `hashes` is missing."""

    dealers: tuple[int, ...]
    boxes: tuple[bytes, ...]
    hashes: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return _several(map(_number, self.dealers)) + _several(self.boxes) + _several(self.hashes)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = Reader(content, "the list of dealers")
        dealt = cls(
            _ascending(reader.several(_index, 4), "the list of dealers"),
            reader.several(lambda part: part.take(BOX_BYTES), BOX_BYTES),
            reader.several(lambda part: part.take(2 * HASH_BYTES), 2 * HASH_BYTES),
        )
        reader.end()
        if not len(dealt.boxes) == len(dealt.hashes) == len(dealt.dealers) - 1:
            raise Refused(f"{len(dealt.boxes)} shares of {len(dealt.dealers)} dealers")
        return dealt


@dataclass(frozen=True)
class Parties:
    """A list of parties: those that sent masked vectors, or those whose shares could not be opened."""

    indices: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return _several(map(_number, self.indices))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = Reader(content, "the list of parties")
        parties = cls(_ascending(reader.several(_index, 4), "the list of parties"))
        reader.end()
        return parties


@dataclass(frozen=True)
class Agreements:
    """Tags over one list of survivors, each of one of them."""

    indices: tuple[int, ...]
    tags: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return _several(_number(index) + tag for index, tag in zip(self.indices, self.tags, strict=True))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        reader = Reader(content, "the agreements")
        pairs = reader.several(lambda part: (_index(part), part.take(HASH_BYTES)), 4 + HASH_BYTES)
        reader.end()
        indices = _ascending(tuple(index for index, _ in pairs), "the list of agreements")
        return cls(indices, tuple(tag for _, tag in pairs))


@dataclass(frozen=True)
class Revealed:
    """One share of each dealer, in order: of the self-mask of a survivor, of the mask key of another one. None: the
    share could not be opened when it was dealt. `disagreeing`: survivors that confirmed something else."""

    shares: tuple[bytes | None, ...]
    disagreeing: tuple[int, ...]

    def to_bytes(self) -> bytes:
        shares = (b"\0" + bytes(SEED_BYTES) if share is None else b"\1" + share for share in self.shares)
        return _several(shares) + _several(map(_number, self.disagreeing))

    @classmethod
    def from_bytes(cls, content: bytes, dealers: int) -> Self:
        reader = Reader(content, "the shares")
        pairs = reader.several(lambda part: (part.take(1), part.take(SEED_BYTES)), 1 + SEED_BYTES)
        disagreeing = _ascending(reader.several(_index, 4), "the list of parties that disagree")
        reader.end()
        if len(pairs) != dealers or any(known not in (b"\0", b"\1") for known, _ in pairs):
            raise Refused(f"{len(pairs)} shares of {dealers} dealers, or not marked as known or unknown")
        return cls(tuple(share if known == b"\1" else None for known, share in pairs), disagreeing)
