"""A party's side of one secure sum: keys, shares, masked, agree, unmask. Each step once, in this order.

A party trusts the other holders of the key and not the server, so every list that the server sends is checked.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from fedalc.secure_sums.disclosures import NOISED, Disclosures, Known, together
from fedalc.secure_sums.fixed_point import PRIME, hidden_residue, residue, whole, wrapped
from fedalc.secure_sums.messages import (
    LEAST_PARTIES,
    Agreements,
    Announcement,
    Deal,
    Dealt,
    Keys,
    Parties,
    Revealed,
    Roster,
    history_digest,
)
from fedalc.secure_sums.primitives import (
    SEED_BYTES,
    add_mask,
    agreed_secret,
    check_installed,
    derived,
    digest,
    is_tag,
    joined,
    opened,
    public_key,
    sealed,
    split,
    tag,
)
from fedalc.secure_sums.refusals import NotFinite, Refused

SEALING, MASKING = "sealing", "masking"  # what a party's two keys are for
CHECKS = 2  # numbers behind a vector: its residue, which shows an overflow, and a one, which shows that masks cancel
STEPS = ("keys", "shares", "masked", "agree", "unmask")


@dataclass(frozen=True)
class Identity:
    """A party in a run. `secret`: derived from the parties' key, the same at all of them; the server has none."""

    name: str
    run: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class Question:
    """What a sum is about. `content`: the digest of everything that decides a party's vector and that all parties are
    told alike. `subject`: the digest of the part by which two answers are alike, so without the round's number.
    `noised`: nothing is unmasked unless all parties that masks are for are in the sum, because each adds a share of
    noise. `sealed`: nothing unless all parties of the roster are, for which each sealed its numbers. `kind`: of the
    vectors; lists of parties are compared among sums of one kind (`Disclosures`). `packed`: counts that use all 64
    bits, so that an overflow means nothing."""

    content: bytes
    subject: bytes
    length: int
    bits: int  # after the point
    noised: bool = False
    kind: str = "training"
    packed: bool = False
    sealed: bool = False

    @property
    def compared_with(self) -> str:
        """Return which sums may not differ from this one by few parties. Noised ones: those of the same subject."""
        return f"{NOISED}{self.kind} {self.subject.hex()}" if self.noised else self.kind

    @property
    def digest(self) -> bytes:
        return digest("question", self.content, self.length.to_bytes(8, "little"), self.bits.to_bytes(8, "little"))


def question_digest(kind: str, *parts: bytes) -> bytes:
    """Return a digest for `Question`: of a kind of question and the bytes that it consists of."""
    return digest(f"question/{kind}", *parts)


def keys_of(identity: Identity, seq: int, seeds: dict[str, bytes], history: bytes) -> Keys:
    commitment = digest("self mask", identity.name.encode(), seeds["self"])
    sealing, masking = (public_key(seeds[purpose], purpose) for purpose in (SEALING, MASKING))
    keys = Keys(identity.name, sealing, masking, commitment, history_digest(history), b"")
    return replace(keys, tag=tag(identity.secret, "keys", *_sum(identity.run, seq), *keys.bound))


def _sum(run: str, seq: int) -> tuple[bytes, bytes]:
    return run.encode(), seq.to_bytes(8, "little")


def share_hashes(session: bytes, dealer: int, receiver: int, shares: tuple[bytes, bytes]) -> bytes:
    """Return 64 bytes, by which the server recognises a false share."""
    place = _indices([dealer, receiver])
    return b"".join(digest("share", session, place, bytes([kind]), share) for kind, share in enumerate(shares))


def pair_key(session: bytes, dealers: Sequence[int], question: bytes, secret: bytes) -> bytes:
    """Return the key of two parties' mask. It cancels only between parties that saw the same lists and question."""
    return derived(secret, "mask", session, _indices(dealers), question)


def self_key(session: bytes, seed: bytes) -> bytes:
    return derived(seed, "self mask", session)


def _indices(indices: Sequence[int]) -> bytes:
    return b"".join(index.to_bytes(4, "little") for index in indices)


def read_history(content: bytes) -> Known:
    """Read the lists of parties that a party knows."""
    try:
        known = json.loads(content)
        kinds = list(known.items())
        good = all(type(name) is str for _, lists in kinds for each in lists for name in [*each, ""])
        good = good and all(type(each) is list for _, lists in kinds for each in lists)
    except (ValueError, TypeError, AttributeError, RecursionError):
        good = False
    if not good or any(type(lists) is not list for _, lists in kinds):
        raise Refused("a party says in a way that cannot be read which lists of parties it knows")
    return dict(kinds)


class PartySum:
    """Between two messages, `saved` gives all that the next one needs. It holds secrets: it stays with the party, and
    is deleted after the sum."""

    def __init__(self, identity: Identity, seq: int) -> None:
        self.identity = identity
        self.seq = seq
        self._step = 0
        self._seeds: dict[str, bytes] = {}
        self._history = b""  # what this party knew when it drew its keys
        self.disagreeing: tuple[str, ...] = ()  # parties that got something else from the server than this one, or lie
        self._roster = Roster(0, ())
        self._index, self._session = -1, b""  # this party's place in the roster, and what all messages are bound to
        self._shares: dict[int, tuple[bytes, bytes]] = {}  # dealer → shares of its self-mask and its mask key
        self._dealers: tuple[int, ...] = ()
        self._survivors: tuple[int, ...] = ()
        self._question, self._compared_with = b"", ""
        self._noised = self._sealed = False
        self.not_finite = False  # of the vector of this party

    # --- the five steps ---

    def make_keys(self, disclosures: Disclosures) -> bytes:
        """Step 1. Draw fresh keys for this sum, and say which lists of parties this one knows."""
        self._begin("keys")
        check_installed()
        self._seeds = {purpose: secrets.token_bytes(SEED_BYTES) for purpose in (SEALING, MASKING, "self")}
        self._history = json.dumps(disclosures.history(), sort_keys=True).encode()
        return Announcement(keys_of(self.identity, self.seq, self._seeds, self._history), self._history).to_bytes()

    @property
    def members(self) -> tuple[str, ...]:
        """The parties in the roster of the sum; none before it is known."""
        return tuple(self._roster.names)

    @property
    def session(self) -> bytes:
        """What all messages of the sum are bound to."""
        return self._session

    def deal_shares(self, roster: bytes) -> bytes:
        """Step 2. Check everyone's keys, and deal shares of both seeds."""
        self._begin("shares")
        self._take(Roster.from_bytes(roster))
        self._check_roster()
        count, threshold, session = len(self._roster.members), self._roster.threshold, self._session
        of_self, of_key = (split(self._seeds[purpose], threshold, count) for purpose in ("self", MASKING))
        shares = list(zip(of_self, of_key, strict=True))
        self._shares = {self._index: shares[self._index]}
        boxes = (
            sealed(self._box_key(peer, outgoing=True), b"".join(shares[peer]), session)
            for peer in range(count)
            if peer != self._index
        )
        hashes = (share_hashes(session, self._index, peer, shares[peer]) for peer in range(count))
        return Deal(tuple(boxes), tuple(hashes)).to_bytes()

    def mask(
        self, dealt: bytes, question: Question, vector: np.ndarray, disclosures: Disclosures
    ) -> tuple[np.ndarray, bytes]:
        """Step 3. Return the masked vector with its CHECKS behind it, and the list of parties whose shares for this
        party are not what they should be. Numbers that are too large wrap around. If some are not finite, the vector is
        random, so that the sum is too: the server learns that someone's are not, and not whose."""
        self._begin("masked")
        bad = self._open(Dealt.from_bytes(dealt))
        if question.sealed and len(self._dealers) < len(self._roster.members):
            raise Refused(
                f"asks for sealed numbers masked for {len(self._dealers)} parties, and they are sealed for "
                f"{len(self._roster.members)}"
            )
        disclosures.before_masking(
            question.compared_with, self._names(self._dealers), self._known(), once=question.noised
        )
        if vector.size != question.length:
            raise Refused(f"its vector has {vector.size} numbers, and the question says {question.length}")
        masked = np.ones(question.length + CHECKS, np.uint64)
        try:
            units = whole(vector, question.bits)
            rest = 0 if question.packed else residue(units, self._session)
        except NotFinite:
            self.not_finite, rest = True, secrets.randbelow(PRIME)
            units = np.frombuffer(secrets.token_bytes(8 * question.length), np.int64)
        masked[:-CHECKS], masked[-2] = wrapped(units), hidden_residue(rest, len(self._roster.members))
        self._question, self._noised, self._sealed = question.digest, question.noised, question.sealed
        self._compared_with = question.compared_with
        add_mask(masked, self_key(self._session, self._seeds["self"]))
        for peer in self._dealers:
            if peer != self._index:
                secret = agreed_secret(self._seeds[MASKING], MASKING, self._roster.members[peer].masking)
                key = pair_key(self._session, self._dealers, self._question, secret)
                add_mask(masked, key, 1 if peer > self._index else -1)
        return masked, Parties(bad).to_bytes()

    def agree(self, survivors: bytes, disclosures: Disclosures) -> bytes:
        """Step 4. Confirm the list of parties whose sum is unmasked. A party confirms one list for each sum."""
        self._begin("agree")
        listed = Parties.from_bytes(survivors).indices
        if not set(listed) <= set(self._dealers):
            raise Refused("asks to unmask a party that is not in the list that this party's vector is masked for")
        if self._index not in listed:
            raise Refused("asks to unmask a sum that this party is not part of")
        if len(listed) < max(LEAST_PARTIES, self._roster.threshold):
            needed = max(LEAST_PARTIES, self._roster.threshold)
            raise Refused(f"asks to unmask a sum over {len(listed)} parties; at least {needed} are needed")
        if listed != self._dealers and (self._noised or self._sealed):
            what, share, why = (
                ("noised", "share the noise", "too little of it would be left")
                if self._noised
                else ("sealed", "sealed them", "others could be made up from them")
            )
            raise Refused(
                f"asks to unmask {what} numbers of {len(listed)} parties, and {len(self._dealers)} {share}: {why}"
            )
        self._survivors = listed
        if not self._noised:
            names = self._names(self._dealers), self._names(listed)
            disclosures.before_unmasking(self._compared_with, *names, self._known())
        return tag(self.identity.secret, "agree", *self._agreed_on(self._index))

    def reveal(self, agreements: bytes, disclosures: Disclosures) -> bytes:
        """Step 5. After enough others confirmed the same list: of each survivor the share of its self-mask, of each
        other dealer the share of its mask key, and never both. `disagreeing` are those that confirmed something else:
        the sum does not depend on them, but someone lies."""
        self._begin("unmask")
        good, bad = self._agreeing(Agreements.from_bytes(agreements))
        self.disagreeing = tuple(self._roster.members[index].name for index in bad)
        if len(good) < self._roster.threshold:
            others = f"; told otherwise, or lying: {', '.join(self.disagreeing)}" if bad else ""
            raise Refused(
                f"shows {len(good)} agreements to what this party got; {self._roster.threshold} are needed to "
                f"unmask{others}",
                self.disagreeing[0] if bad else "",
            )
        survivors, listed = set(self._survivors), self._names(self._survivors)
        if not (self._noised or disclosures.enough_know(self._compared_with, listed, self._names(good))):
            raise Refused(f"shows {len(good)} agreements, not of more than half of the parties of an earlier sum")
        shares = (self._shares.get(dealer) for dealer in self._dealers)
        given = tuple(
            None if both is None else both[0] if dealer in survivors else both[1]
            for dealer, both in zip(self._dealers, shares, strict=True)
        )
        return Revealed(given, bad).to_bytes()

    def _agreeing(self, agreed: Agreements) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the parties that confirmed the lists and the question that this party has, and those that did not."""
        if not set(agreed.indices) <= set(self._survivors):
            raise Refused("shows an agreement of a party that is not a survivor")
        secret = self.identity.secret
        valid = {
            index: is_tag(claimed, secret, "agree", *self._agreed_on(index))
            for index, claimed in zip(agreed.indices, agreed.tags, strict=True)
        }
        good, bad = ([index for index in valid if valid[index] is wanted] for wanted in (True, False))
        return tuple(good), tuple(bad)

    # --- checks ---

    def _begin(self, step: str) -> None:
        """Each step once, in order. It counts as done even if it ends in a refusal."""
        if self._step >= len(STEPS) or STEPS[self._step] != step:
            done = STEPS[self._step - 1] if self._step else "none"
            raise Refused(f"asks for step {step!r} of sum {self.seq}, and the last step of it was {done!r}")
        self._step += 1

    def _check_roster(self) -> None:
        roster, identity = self._roster, self.identity
        names = roster.names
        if len(names) < LEAST_PARTIES:
            raise Refused(f"a sum over {len(names)} parties; fewer than {LEAST_PARTIES} would show single vectors")
        if any(first >= second for first, second in pairwise(names)):
            raise Refused("the roster has a party twice, or is not in the order of names")
        if not len(names) < 2 * roster.threshold <= 2 * len(names):
            raise Refused(
                f"a threshold of {roster.threshold} for {len(names)} parties; it must be more than half of them, or "
                "two different lists of survivors could be unmasked"
            )
        for member in roster.members:
            if not is_tag(member.tag, identity.secret, "keys", *_sum(identity.run, self.seq), *member.bound):
                raise Refused(
                    f"the keys of party {member.name} are not tagged for this sum under the parties' key: replayed "
                    "from another sum, changed on the way, or of a party with another key",
                    member.name,
                )
        told = {history_digest(history) for history in roster.histories}
        if {member.history for member in roster.members} != told or len(told) != len(roster.histories):
            raise Refused("the roster does not say which lists of parties its members know")
        self._known()
        own = keys_of(identity, self.seq, self._seeds, self._history)
        if own not in roster.members:
            raise Refused("the roster does not have this party's own keys as they were sent")
        keys = [key for member in roster.members for key in (member.sealing, member.masking)]
        if len(set(keys)) != len(keys):
            raise Refused("the roster has a key twice")

    def _open(self, dealt: Dealt) -> tuple[int, ...]:
        """Take the shares that are good, and return the dealers of the others."""
        count = len(self._roster.members)
        needed = max(LEAST_PARTIES, self._roster.threshold)
        if dealt.dealers and dealt.dealers[-1] >= count:
            raise Refused("the list of dealers has a party that is not in the roster")
        if self._index not in dealt.dealers:
            raise Refused("the list of dealers does not have this party")
        if len(dealt.dealers) < needed:
            raise Refused(f"asks for a vector masked for {len(dealt.dealers)} parties; at least {needed} are needed")
        self._dealers = dealt.dealers
        others = [dealer for dealer in dealt.dealers if dealer != self._index]
        for dealer, box, hashes in zip(others, dealt.boxes, dealt.hashes, strict=True):
            content = opened(self._box_key(dealer, outgoing=False), box, self._session)
            if content is None:
                continue
            shares = content[:SEED_BYTES], content[SEED_BYTES:]
            if share_hashes(self._session, dealer, self._index, shares) == hashes:
                self._shares[dealer] = shares
        return tuple(dealer for dealer in others if dealer not in self._shares)

    # --- what things are bound to ---

    def _take(self, roster: Roster) -> None:
        names = roster.names
        self._roster, self._session = roster, roster.session(self.identity.run, self.seq)
        self._index = names.index(self.identity.name) if self.identity.name in names else -1

    def _names(self, indices: Sequence[int]) -> list[str]:
        return [self._roster.members[index].name for index in indices]

    def _known(self) -> Known:
        """Return the lists that the parties of this sum know together."""
        return together(map(read_history, self._roster.histories))

    def _box_key(self, peer: int, outgoing: bool) -> bytes:
        """Return the key of the one message to or from a peer."""
        secret = agreed_secret(self._seeds[SEALING], SEALING, self._roster.members[peer].sealing)
        way = (self._index, peer) if outgoing else (peer, self._index)
        return derived(secret, "box", self._session, _indices(way))

    def _agreed_on(self, index: int) -> tuple[bytes, ...]:
        lists = joined(_indices(self._dealers), _indices(self._survivors))
        return self._session, index.to_bytes(4, "little"), lists, self._question

    # --- between messages ---

    def saved(self) -> str:
        """Return the state as JSON, secrets included."""
        return json.dumps(
            {
                "seq": self.seq,
                "step": self._step,
                "history": self._history.decode(),
                "seeds": {purpose: seed.hex() for purpose, seed in self._seeds.items()},
                "roster": self._roster.to_bytes().hex(),
                "shares": {str(dealer): [share.hex() for share in both] for dealer, both in self._shares.items()},
                "dealers": self._dealers,
                "survivors": self._survivors,
                "question": self._question.hex(),
                "compared_with": self._compared_with,
                "noised": self._noised,
                "sealed": self._sealed,
            }
        )

    @classmethod
    def restored(cls, identity: Identity, saved: str) -> Self:
        state: dict[str, Any] = json.loads(saved)
        party = cls(identity, state["seq"])
        party._step = state["step"]
        party._seeds = {purpose: bytes.fromhex(seed) for purpose, seed in state["seeds"].items()}
        party._history = state["history"].encode()
        party._take(Roster.from_bytes(bytes.fromhex(state["roster"])))
        party._shares = {
            int(dealer): (bytes.fromhex(first), bytes.fromhex(second))
            for dealer, (first, second) in state["shares"].items()
        }
        party._dealers, party._survivors = tuple(state["dealers"]), tuple(state["survivors"])
        party._question, party._compared_with = bytes.fromhex(state["question"]), state["compared_with"]
        party._noised, party._sealed = bool(state["noised"]), bool(state["sealed"])
        return party
