"""The server's side of secure sums over the network.

A sum takes three messages to each party: the question, the list of survivors, their agreements. The last two carry the
keys and the shares of the next sum. The first sum, and one after parties came or went, takes two more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.sum_messages import MASKED, RECORD, STEP, TRAINING, question_of
from fedalc.deployment.flower.table_seals import SumOf
from fedalc.deployment.flower.wire import BadMessage, config, unpack
from fedalc.engines.traffic import Ledger
from fedalc.secure_sums import NotEnough, Refused, ServerSum, decoded
from fedalc.secure_sums.disclosures import allowed_part, minority_of, singled_out
from fedalc.secure_sums.messages import LEAST_PARTIES
from fedalc.secure_sums.party import CHECKS
from fedalc.secure_sums.server import threshold_of

if TYPE_CHECKING:
    from fedalc.deployment.flower.census import Census

Contents = Callable[[int], RecordDict]
"""From a party, the question for it."""


def described(settings: Experiment, parties: int) -> str:
    """Return a sentence for the log: what the server learns of a party."""
    if settings.secure_sums.on:
        needed = threshold_of(settings.secure_sums.threshold, parties)
        return (
            f"secure sums: the server learns sums over at least {max(LEAST_PARTIES, needed)} of {parties} parties, "
            f"and no party's change or hits alone{_noise(settings)} (docs/secure-sums.md)"
        )
    return (
        "secure sums are off: the server sees each party's change of θ by itself, from which records can be "
        "reconstructed, and each party's hits (docs/secure-sums.md)"
    )


def _noise(settings: Experiment) -> str:
    if not settings.privacy.covers_records:
        return ""
    return f", all of them with noise that the parties add, for ε = {settings.privacy.epsilon:g}"


class Unfinished(NotEnough):
    """A sum that ends without a result."""


class Members(Protocol):
    """What sums need of a census: who takes part, in which run."""

    @property
    def roster(self) -> Roster: ...
    @property
    def run(self) -> str: ...


def sums_of_census(parties: Parties, census: Census, settings: Experiment) -> MaskedSums | None:
    """Return how the parties of a census add up in secret, or None in a run without secure sums."""
    if not settings.secure_sums.on:
        return None
    sums = MaskedSums(parties, census, settings)
    if census.text is not None and census.text.seals is not None:  # they have added up their numbers of documents
        sums.lists[TRAINING] = [sorted(sums.names)]
    return sums


class MaskedSums:
    """`traffic`: of the sum at hand; the caller sets it and counts the questions itself."""

    def __init__(self, parties: Parties, census: Members, settings: Experiment) -> None:
        self.parties = parties
        self.census = census
        self.names = census.roster.parties
        self.settings = settings
        self.traffic = Ledger()
        self.lists: dict[str, list[list[str]]] = {}  # the parties of sums that were unmasked, by kind
        self.without_records: set[int] = set()  # parties that had too few records to answer in the last sum
        self._number = {name: party for party, name in enumerate(self.names)}
        self._ahead: ServerSum | None = None  # the next sum, whose keys and shares came with the last one
        self._seq = 0
        self._now = self._new()

    def total(
        self,
        kind: str,
        round_number: int,
        asked: Collection[int],
        content_of: Contents,
        length: int,
        all_of_them: bool,
        whole: bool = False,
    ) -> tuple[np.ndarray, list[int]]:
        """Return the sum of the parties' vectors, and whose vectors it is of. `all_of_them`: nothing is unmasked unless
        every party that is asked answers, or has too few records to rank. `whole`: numbers are whole ones, their sum is
        modulo 2^64."""
        bits = 0 if whole else self.settings.secure_sums.bits
        self.without_records.clear()
        try:
            server = self._begun(round_number, {self.names[party] for party in asked})
            self._ask(server, kind, round_number, content_of, length, bits)
            survivors = [self._number[name] for name in server.survivor_names]
            if all_of_them and len(survivors) + len(self.without_records) < len(asked):
                raise NotEnough(f"{len(survivors)} of {len(asked)} parties answered, and all are needed")
            self._check_list(server)
            self._unmask(server, round_number)
            total = server.total() if whole else decoded(server.total(), bits)
        except (NotEnough, Refused) as error:
            self._ahead = None
            raise Unfinished(str(error)) from None
        finally:
            self._note_problems(round_number)
        return total, survivors

    def allowed(self, kind: str, parties: Iterable[int]) -> set[int]:
        """Return the most of these parties whose sum, beside earlier ones, shows no fewer than three parties' part."""
        names = [self.names[party] for party in parties]
        return {self._number[name] for name in allowed_part(self.lists.get(kind, []), names)}

    def _check_list(self, server: ServerSum) -> None:
        """Parties refuse a list that singles some of them out. So do not ask for one."""
        lists = self.lists.get(server.question.compared_with, [])
        if few := singled_out(lists, server.survivor_names):
            raise NotEnough(
                f"a sum over {len(server.survivor_names)} parties would, beside earlier ones, show what "
                f"{' and '.join(few)} sent"
            )
        if minority_of(lists, server.survivor_names):
            raise NotEnough("more than half of the parties of every earlier sum are needed")

    # --- steps 1 and 2 ---

    def _begun(self, round_number: int, names: set[str]) -> ServerSum:
        """Return a sum for which these parties have dealt shares: the one ahead, or a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and set(ahead.dealer_names) == names:
            self._now = ahead
            return ahead
        accused: set[str] = set()
        while True:
            server = self._now = self._new()
            asked = names - accused
            self._keys(server, round_number, asked)
            blamed = self._deal(server, round_number)
            worst, often = Counter(blamed.values()).most_common(1)[0] if blamed else ("", 0)
            if worst not in asked or 2 * often <= len(asked):
                return server
            accused.add(worst)  # others do not accept its keys; only they can tell
            why = f"{often} other parties refuse its keys for secure sums: it has another key, or they were changed"
            self.parties.leave_out(round_number, worst, why)

    def _new(self) -> ServerSum:
        self._seq = max(self._seq + 1, time.time_ns() // 1_000_000)  # also after a restart above all earlier ones
        return ServerSum(self.census.run, self._seq, self.settings.secure_sums.threshold)

    def _keys(self, server: ServerSum, round_number: int, names: Iterable[str]) -> None:
        def take(name: str, said: ConfigRecord) -> None:
            server.add_keys(name, _bytes(said, "keys"))

        self._steps(round_number, names, lambda name: {"keys": server.seq}, take)

    def _deal(self, server: ServerSum, round_number: int) -> dict[str, str]:
        """Send the roster, and take the shares. Return who refuses it because of whom."""
        roster, blamed = server.roster(), {}

        def take(name: str, said: ConfigRecord) -> None:
            if "accused" in said:
                blamed[name] = str(said["accused"])
            else:
                server.add_deal(name, _bytes(said, "deal"))

        self._steps(round_number, server.key_names, lambda name: {"shares": server.seq, "roster": roster}, take)
        return blamed

    # --- step 3 ---

    @property
    def answered(self) -> list[int]:
        """The parties whose vectors came to the last sum, also if it has no result."""
        return [self._number[name] for name in self._now.survivor_names]

    @property
    def last(self) -> SumOf:
        """The last sum."""
        return SumOf(self._now.session, len(self.answered))

    def _ask(
        self, server: ServerSum, kind: str, round_number: int, content_of: Contents, length: int, bits: int
    ) -> None:
        if not server.dealer_names:
            raise NotEnough("no party dealt shares")
        first = content_of(self._number[server.dealer_names[0]])  # every one has what is the same for all
        first[RECORD] = ConfigRecord({"divisor": self.divisor})
        question = question_of(kind.rpartition(".")[2], first, length, bits)
        exchange = self.parties.exchange(kind, round_number)
        for place, name in enumerate(server.begin_masking(question)):
            party, dealt = self._number[name], server.dealt_to(name)
            content = content_of(party) if place else first
            content[RECORD] = ConfigRecord({"seq": server.seq, "dealt": dealt, "divisor": self.divisor})
            self.traffic.down += len(dealt)
            exchange.send(self.parties.node_of[party], content)
        for reply in exchange.replies():
            name = self.names[self.parties.party_of[reply.node]]
            self.parties.read(reply, round_number, name, partial(self._masked, server, kind, name, length))
        server.survivors()

    def _masked(self, server: ServerSum, kind: str, name: str, length: int, content: RecordDict) -> None:
        if set(content) == {"metrics"} and kind.startswith("evaluate"):
            self.without_records.add(self._number[name])
            raise BadMessage("has too few records to answer")
        exactly(content, {MASKED: None, RECORD: {"complaints"}})
        numbers = unpack(content, MASKED, {"numbers": ("uint64", (length + CHECKS,))})["numbers"]
        complaints = config(content, RECORD, {"complaints": bytes})["complaints"]
        self.traffic.up += numbers.nbytes + len(complaints)
        _kept(server.add_masked, name, numbers, complaints)

    @property
    def divisor(self) -> float:
        """What weights are divided by, so that they add up to about 1: the same for all parties."""
        counts = self.census.roster.counts
        return float(counts.sum() if self.settings.server.weights == "samples" else (counts > 0).sum()) or 1.0

    # --- steps 4 and 5 ---

    def _unmask(self, server: ServerSum, round_number: int) -> None:
        """Collect agreements and shares; with them, keys and shares for the next sum."""
        survivors, names, ahead = server.survivors(), server.survivor_names, self._new()

        def agree(name: str, said: ConfigRecord) -> None:
            server.add_agreement(name, _bytes(said, "tag"))
            ahead.add_keys(name, _bytes(said, "keys"))

        self._steps(
            round_number, names, lambda name: {"agree": server.seq, "survivors": survivors, "keys": ahead.seq}, agree
        )
        agreements, lists = server.agreements(), self.lists.setdefault(server.question.compared_with, [])
        if sorted(names) not in lists:
            lists.append(sorted(names))
        roster = ahead.roster() if len(ahead.key_names) >= LEAST_PARTIES else None

        def reveal(name: str, said: ConfigRecord) -> None:
            server.add_shares(name, _bytes(said, "revealed"))
            if roster is not None and "deal" in said:
                ahead.add_deal(name, _bytes(said, "deal"))

        def asked(name: str) -> dict[str, Any]:
            more = {"shares": ahead.seq, "roster": roster} if roster and name in ahead.key_names else {}
            return {"unmask": server.seq, "agreements": agreements, **more}

        self._steps(round_number, names, asked, reveal)
        self._ahead = None if roster is None else ahead

    # --- messages ---

    def _steps(
        self,
        round_number: int,
        names: Iterable[str],
        asked: Callable[[str], dict[str, Any]],
        take: Callable[[str, ConfigRecord], None],
    ) -> None:
        """Send a step to these parties, and take their answers. A party without a usable answer is left out of what
        follows."""
        exchange = self.parties.exchange(STEP, round_number)
        for name in sorted(names):
            step = asked(name)
            self.traffic.down += sum(len(part) for part in step.values() if isinstance(part, bytes))
            content = RecordDict({"task": self.parties.hello()["task"], RECORD: ConfigRecord(step)})
            exchange.send(self.parties.node_of[self._number[name]], content)
        for reply in exchange.replies():
            name = self.names[self.parties.party_of[reply.node]]
            self.parties.read(reply, round_number, name, partial(self._taken, name, take))

    def _taken(self, name: str, take: Callable[[str, ConfigRecord], None], content: RecordDict) -> None:
        exactly(content, {RECORD: {"tag", "revealed", "keys", "deal", "accused"}})
        said = content[RECORD]
        if not isinstance(said, ConfigRecord):
            raise BadMessage("there is no step of a sum")
        self.traffic.up += sum(len(part) for part in said.values() if isinstance(part, bytes))
        _kept(take, name, said)

    def _note_problems(self, round_number: int) -> None:
        for name, problem in self._now.problems.items():
            self.parties.note(round_number, name, "is named by a secure sum", problem)
        self._now.problems.clear()


def _bytes(said: ConfigRecord, part: str) -> bytes:
    value = said.get(part)
    if not isinstance(value, bytes):
        raise BadMessage(f"{RECORD} has no {part}, or it has the wrong type")
    return value


def _kept(do: Callable[..., None], *arguments: Any) -> None:
    """Add what a party sent. What the protocol refuses is a bad message."""
    try:
        do(*arguments)
    except Refused as error:
        raise BadMessage(str(error)) from None
