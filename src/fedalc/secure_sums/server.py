"""The server's side of one secure sum. It has no key, and passes on what the parties check.

`problems` says for each party that did not come through, or lied, what happened. A party that is missing at any step is
simply not added; the sum goes on while enough are left.
"""

from __future__ import annotations

import math

import numpy as np

from fedalc.secure_sums.fixed_point import PRIME, largest, residue
from fedalc.secure_sums.messages import (
    HASH_BYTES,
    LEAST_PARTIES,
    MOST_PARTIES,
    Agreements,
    Announcement,
    Deal,
    Dealt,
    Keys,
    Parties,
    Revealed,
    Roster,
)
from fedalc.secure_sums.party import CHECKS, MASKING, Question, pair_key, self_key, share_hashes
from fedalc.secure_sums.primitives import (
    SEED_BYTES,
    add_mask,
    agreed_secret,
    check_installed,
    combined,
    digest,
    public_key,
)
from fedalc.secure_sums.refusals import NotEnough, Overflow, Refused


def default_threshold(parties: int) -> int:
    """Return the smallest number of parties that is more than half: most may then drop out."""
    return parties // 2 + 1


def threshold_of(share: float | None, parties: int) -> int:
    """Return how many parties are a share of them (`secure_sums.threshold`): more than half in any case."""
    return max(default_threshold(parties), math.ceil((share or 0.0) * parties))


class ServerSum:
    """`threshold`: how many parties are needed to unmask, or which share of those in the sum. None: the fewest that are
    more than half of them.

    Memory: one vector and about 200 bytes for each pair of parties, whatever the vector's length.
    """

    def __init__(self, run: str, seq: int, threshold: int | float | None = None) -> None:
        check_installed()
        self.run = run
        self.seq = seq
        self.problems: dict[str, str] = {}
        self._wanted = threshold
        self._keys: dict[str, Keys] = {}
        self._histories: dict[bytes, bytes] = {}
        self._roster = Roster(0, ())
        self._session = b""
        self._index: dict[str, int] = {}
        self._deals: dict[int, Deal] = {}
        self._dealers: tuple[int, ...] = ()
        self._question: Question | None = None
        self._total = np.zeros(0, np.uint64)
        self._survivors: list[int] = []
        self._tags: dict[int, bytes] = {}
        self._revealed: dict[int, Revealed] = {}

    # --- step 1 ---

    def add_keys(self, name: str, content: bytes) -> None:
        """`name`: the party that sent them, as the server knows it."""
        sent = Announcement.from_bytes(content)
        if sent.keys.name != name:
            raise Refused(f"sends keys of {sent.keys.name[:70]!r}", name)
        self._keys[name], self._histories[sent.keys.history] = sent.keys, sent.history

    def roster(self) -> bytes:
        """Return the list that every party gets. It is final."""
        if not self._roster.members:
            count = len(self._keys)
            if not LEAST_PARTIES <= count <= MOST_PARTIES:
                raise NotEnough(f"{count} parties sent keys; a secure sum needs {LEAST_PARTIES} to {MOST_PARTIES}")
            threshold = self._wanted if isinstance(self._wanted, int) else threshold_of(self._wanted, count)
            members = tuple(self._keys[name] for name in sorted(self._keys))
            known = sorted({member.history for member in members})
            self._roster = Roster(threshold, members, tuple(self._histories[history] for history in known))
            self._session = self._roster.session(self.run, self.seq)
            self._index = {name: index for index, name in enumerate(self._roster.names)}
        return self._roster.to_bytes()

    @property
    def session(self) -> bytes:
        """What all messages of the sum are bound to."""
        return self._session

    # --- step 2 ---

    def add_deal(self, name: str, content: bytes) -> None:
        self._deals[self._index[name]] = Deal.from_bytes(content, len(self._roster.members))

    def begin_masking(self, question: Question) -> tuple[str, ...]:
        """Close the list of dealers, and return their names: only they are asked."""
        self._dealers = tuple(sorted(self._deals))
        self._need(len(self._dealers), "dealt shares")
        self._question = question
        self._total = np.zeros(question.length + CHECKS, np.uint64)
        return self._names(self._dealers)

    # --- step 3 ---

    def dealt_to(self, name: str) -> bytes:
        receiver = self._index[name]
        others = [dealer for dealer in self._dealers if dealer != receiver]
        # A dealer's boxes leave out its own.
        boxes = (self._deals[dealer].boxes[receiver - (receiver > dealer)] for dealer in others)
        hashes = (self._deals[dealer].hashes[receiver] for dealer in others)
        return Dealt(self._dealers, tuple(boxes), tuple(hashes)).to_bytes()

    def add_masked(self, name: str, masked: np.ndarray, complaints: bytes) -> None:
        index = self._index[name]
        if index not in self._dealers or index in self._survivors:
            raise Refused("sends a masked vector that it was not asked for", name)
        if masked.dtype != np.uint64 or masked.shape != self._total.shape:
            raise Refused(f"a masked vector of {masked.shape} {masked.dtype} numbers, not {self._total.shape}", name)
        bad = Parties.from_bytes(complaints).indices
        if not set(bad) <= set(self._dealers):
            raise Refused("complains about a party that dealt nothing", name)
        for dealer in self._names(bad):
            self.problems.setdefault(dealer, f"its shares for {name} cannot be used, says {name}")
        np.add(self._total, masked, out=self._total)
        self._survivors.append(index)

    # --- step 4 ---

    def survivors(self) -> bytes:
        """Return the list of those whose vectors are in the sum."""
        self._survivors.sort()
        self._need(len(self._survivors), "sent masked vectors")
        return Parties(tuple(self._survivors)).to_bytes()

    @property
    def question(self) -> Question:
        assert self._question is not None
        return self._question

    @property
    def key_names(self) -> tuple[str, ...]:
        """The parties that sent keys."""
        return tuple(self._keys)

    @property
    def dealer_names(self) -> tuple[str, ...]:
        """The parties that dealt shares."""
        return self._names(tuple(sorted(self._deals)))

    @property
    def survivor_names(self) -> tuple[str, ...]:
        return self._names(tuple(self._survivors))

    def add_agreement(self, name: str, content: bytes) -> None:
        if self._index.get(name) not in self._survivors or len(content) != HASH_BYTES:
            raise Refused("an agreement that is none, or of a party that is not a survivor", name)
        self._tags[self._index[name]] = content

    # --- step 5 ---

    def agreements(self) -> bytes:
        if len(self._tags) < self._roster.threshold:
            raise NotEnough(
                f"{len(self._tags)} of {len(self._survivors)} parties agreed to the list of survivors; "
                f"{self._roster.threshold} are needed"
            )
        indices = tuple(sorted(self._tags))
        return Agreements(indices, tuple(self._tags[index] for index in indices)).to_bytes()

    def add_shares(self, name: str, content: bytes) -> None:
        if self._index.get(name) not in self._survivors:
            raise Refused("shares of a party that is not a survivor", name)
        revealed = Revealed.from_bytes(content, len(self._dealers))
        if not set(revealed.disagreeing) <= set(self._survivors):
            raise Refused("says that a party disagrees that was not asked", name)
        for other in self._names(revealed.disagreeing):
            self.problems.setdefault(other, f"{name} says that it agreed to something else")
        self._revealed[self._index[name]] = revealed

    def total(self) -> np.ndarray:
        """Remove the masks, and return the sum of the survivors' vectors as uint64 (`decoded` makes numbers of it)."""
        assert self._question is not None
        total, session, members = self._total.copy(), self._session, self._roster.members
        for place, dealer in enumerate(self._dealers):
            survived = dealer in self._survivors
            seed = combined(self._good_shares(place, dealer, 0 if survived else 1))
            if survived:
                self._check(
                    digest("self mask", members[dealer].name.encode(), seed), members[dealer].commitment, dealer
                )
                add_mask(total, self_key(session, seed), -1)
                continue
            self._check(public_key(seed, MASKING), members[dealer].masking, dealer)
            for survivor in self._survivors:
                secret = agreed_secret(seed, MASKING, members[survivor].masking)
                key = pair_key(session, self._dealers, self._question.digest, secret)
                add_mask(total, key, -1 if dealer > survivor else 1)
        if total[-1] != len(self._survivors):
            raise Refused("the masks do not cancel: parties got different questions, or one masked its vector wrongly")
        if not self._question.packed and int(total[-2]) % PRIME != residue(total[:-CHECKS].view(np.int64), session):
            bits = self._question.bits
            raise Overflow(
                f"overflow: with {bits} bits after the point sums up to {largest(bits):.3g} fit (secure_sums.bits), "
                "and this one has larger numbers, or a party's are not finite; use fewer bits"
            )
        return total[:-CHECKS]

    def _good_shares(self, place: int, dealer: int, kind: int) -> list[tuple[int, bytes]]:
        """Return as many shares of a dealer's seed as are needed, each checked against its hash."""
        part = slice(kind * HASH_BYTES, (kind + 1) * HASH_BYTES)
        good: list[tuple[int, bytes]] = []
        for holder in sorted(self._revealed):
            share = self._revealed[holder].shares[place]
            if share is None:
                continue
            pair = (share, bytes(SEED_BYTES)) if kind == 0 else (bytes(SEED_BYTES), share)
            hashes = self._deals[dealer].hashes[holder]
            if share_hashes(self._session, dealer, holder, pair)[part] != hashes[part]:
                name, of = self._roster.members[holder].name, self._roster.members[dealer].name
                self.problems[name] = f"gave a false share of {of}'s seed"
            elif len(good) < self._roster.threshold:
                good.append((holder, share))
        if len(good) < self._roster.threshold:
            of = self._roster.members[dealer].name
            raise NotEnough(
                f"{len(good)} good shares of {of}'s seed; {self._roster.threshold} are needed to unmask the sum"
                + self._told()
            )
        return good

    def _check(self, found: bytes, expected: bytes, dealer: int) -> None:
        if found != expected:
            name = self._roster.members[dealer].name
            self.problems[name] = "dealt shares of another seed than the one it had announced"
            raise Refused(f"party {name} dealt shares of another seed than the one it had announced", name)

    def _need(self, count: int, what: str) -> None:
        needed = max(LEAST_PARTIES, self._roster.threshold)
        if count < needed:
            raise NotEnough(f"{count} parties {what}; this secure sum needs {needed}{self._told()}")

    def _told(self) -> str:
        return "".join(f"; {name}: {problem}" for name, problem in self.problems.items())

    def _names(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._roster.members[index].name for index in indices)
