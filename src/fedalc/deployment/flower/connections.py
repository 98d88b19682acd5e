"""The parties as the server reaches them: which node is whose, who is there, who was left out and why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedalc.core.atomic_files import append_text
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.exchange import GRACE, Late, exchange
from fedalc.deployment.flower.introductions import Introduction, read_introduction
from fedalc.deployment.flower.punctuality import Punctuality
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import FedalcError
from fedalc.labels.collection.disputes import listed
from fedalc.runs.folder import PARTIES_LOG

T = TypeVar("T")
INTRODUCTION = ("client", "labels", "counts", "held-out", "features", "names")
RESUME = "No finished round is lost: when they are back, go on with resume=true and the same run-folder"


class TooFew(FedalcError):
    """Not enough parties are left to go on."""


@dataclass(frozen=True)
class Patience:
    """How many parties a run needs, and how long it waits for them, in seconds."""

    start_with: int = 2
    go_on_with: int = 2
    for_parties: float = 600.0
    for_replies: float = 600.0
    pause: float = 1.0  # between two looks
    again: float = 30.0  # before a node that was turned away is asked again: it may have been put right meanwhile


@dataclass
class Parties:
    """`hello` makes the question that a node is asked when it is new here: who are you?"""

    grid: Grid
    patience: Patience
    hello: Callable[[], RecordDict]
    say: Callable[[str], None] = print
    node_of: dict[int, int] = field(default_factory=dict)  # party → node
    punctuality: Punctuality = field(default_factory=Punctuality)
    _turned_away: dict[int, tuple[float, str]] = field(default_factory=dict)  # node → when to ask it again, and why
    _away: set[int] = field(default_factory=set)
    _log: Path | None = None
    _unwritten: list[str] = field(default_factory=list)

    def ask(
        self, contents: Iterable[tuple[int, RecordDict]], kind: str, group: str
    ) -> Iterator[tuple[int, Message | str]]:
        """Send each node its content, and give replies as they arrive, or why there is none."""
        ttl = self.patience.for_replies + GRACE
        messages = (Message(content, node, kind, ttl=ttl, group_id=group) for node, content in contents)
        return exchange(self.grid, messages, self.patience.for_replies, self.patience.pause)

    def ask_punctual(
        self, roster: Roster, contents: Iterable[tuple[int, RecordDict]], kind: str, round_number: int
    ) -> Iterator[tuple[int, Message | str]]:
        """Like `ask`, with a shorter wait for those who were late before. Keeps count of who is."""
        whole, known = self.patience.for_replies, self.punctuality
        party_of = {node: party for party, node in self.node_of.items()}
        hurried = {
            node: partial(known.fair_wait, party, kind, whole=whole)
            for node, party in party_of.items()
            if known.is_hurried(party, kind, round_number)
        }

        def answered(node: int, seconds: float) -> None:
            if known.was_in_time(party_of[node], kind, seconds):
                self.note(round_number, roster.parties[party_of[node]], "answered in time again")

        messages = (
            Message(content, node, kind, ttl=whole + GRACE, group_id=str(round_number)) for node, content in contents
        )
        for node, reply in exchange(self.grid, messages, whole, self.patience.pause, hurried, answered):
            if isinstance(reply, Late) and (then := known.was_late(party_of[node], kind, round_number)):
                self.note(round_number, roster.parties[party_of[node]], "was late", then)
            yield node, reply

    def awake(self, roster: Roster, asked: dict[int, T], kind: str, round_number: int, least: int) -> dict[int, T]:
        """Without the parties that rest as they were late. With them, if fewer than `least` would be left."""
        resting = {party: self.punctuality.rests_until(party, kind, round_number) for party in asked}
        awake = {party: what for party, what in asked.items() if not resting[party]}
        if len(awake) < least:
            return asked
        for party in sorted(set(asked) - set(awake)):
            why = f"it was late before; it is asked again in round {resting[party]}"
            self.note(round_number, roster.parties[party], "not asked", why)
        return awake

    def gather(self) -> dict[int, Introduction]:
        """Wait until enough nodes are there to start with, and have them introduce themselves."""
        known: dict[int, Introduction] = {}
        wanted, deadline = self.patience.start_with, time.monotonic() + self.patience.for_parties
        self.say(f"waiting for {wanted} parties")
        while True:
            late = time.monotonic() > deadline
            present = set(self.grid.get_node_ids())
            known = {node: who for node, who in known.items() if node in present}
            if len(present) >= wanted:
                known |= self._introductions(present - set(known), 0)
            if len(known) >= wanted:
                return known
            if late:
                raise TooFew(
                    f"{len(present)} parties are connected and {len(known)} have said who they are, after "
                    f"{self.patience.for_parties:g} seconds, and {wanted} are wanted; start the others, or ask for "
                    "fewer (--parties, num-parties)"
                )
            time.sleep(self.patience.pause)

    def present(self, roster: Roster, round_number: int, at_least: int, because: str = "") -> dict[int, int]:
        """Party → node of those who are there now. Waits until there are `at_least` so many."""
        deadline = time.monotonic() + self.patience.for_parties
        while True:
            late = time.monotonic() > deadline
            nodes = set(self.grid.get_node_ids())
            self._recognise(roster, nodes, round_number)
            here = {party: node for party, node in self.node_of.items() if node in nodes}
            self._note_changes(roster, set(here), round_number)
            if len(here) >= at_least:
                return here
            if late:
                missing = listed([name for party, name in enumerate(roster.parties) if party not in here])
                raise TooFew(
                    f"round {round_number}: {len(here)} of {len(roster.parties)} parties are here, and at least "
                    f"{at_least} are needed{because}; waited {self.patience.for_parties:g} seconds for {missing}. "
                    + RESUME
                )
            time.sleep(self.patience.pause)

    def _introductions(self, nodes: set[int], round_number: int) -> dict[int, Introduction]:
        """Of those of the nodes that answer with one. A node that was turned away is not asked again at once."""
        self._turned_away = {node: then for node, then in self._turned_away.items() if node in nodes}
        began = time.monotonic()
        new = [node for node in sorted(nodes) if self._turned_away.get(node, (began, ""))[0] <= began]
        found: dict[int, Introduction] = {}
        for node, reply in self.ask(((node, self.hello()) for node in new), "query.hello", str(round_number)):
            try:
                if isinstance(reply, str):
                    raise BadMessage(reply)
                exactly(reply.content, {"introduction": INTRODUCTION})
                found[node] = read_introduction(reply.content)
            except BadMessage as error:
                self._turn_away(node, f"node {node}", str(error), round_number, time.monotonic() - began)
        return found

    def _turn_away(self, node: int, name: str, why: str, round_number: int, took: float = 0.0) -> None:
        """The longer it took, the later it is asked again, lest one that never answers hold up every round."""
        if self._turned_away.get(node, (0.0, ""))[1] != why:
            self.leave_out(round_number, name, why)
        self._turned_away[node] = (time.monotonic() + max(self.patience.again, 10 * took), why)

    def _recognise(self, roster: Roster, nodes: set[int], round_number: int) -> None:
        """A node that is new here may be a party that was restarted. Its labels say which."""
        for node, who in self._introductions(nodes - set(self.node_of.values()), round_number).items():
            party = roster.party_with(who.labels)
            if party is None:
                why = "is no party of this run: not there, or refused, when the labels were collected"
                self._turn_away(node, who.client, why, round_number)
            elif self.node_of.get(party) in nodes:  # perhaps the party itself, whose old node is not yet given up
                why = f"claims to be {roster.parties[party]}, which is here already"
                self._turn_away(node, who.client, why, round_number)
            else:
                self.node_of[party] = node

    def _note_changes(self, roster: Roster, here: set[int], round_number: int) -> None:
        away = set(range(len(roster.parties))) - here
        for party in sorted(away - self._away):
            self.leave_out(round_number, roster.parties[party], "is not connected")
        for party in sorted(self._away - away):
            self.note(round_number, roster.parties[party], "is here again")
        self._away = away

    def leave_out(self, round_number: int, party: str, why: str) -> None:
        self.note(round_number, party, "left out", why)

    def note(self, round_number: int, party: str, what: str, why: str = "") -> None:
        """For the log, and in the run folder."""
        party, why = _printable(party), _printable(why)
        when = f"round {round_number}: " if round_number else ""
        self.say(f"{when}{party} {what}" + (f": {why}" if why else ""))
        record: Mapping[str, object] = {"round": round_number, "party": party, "what": what, "why": why}
        self._unwritten.append(json.dumps(record, ensure_ascii=False) + "\n")
        self._write()

    def write_to(self, folder: Path) -> None:
        """Keep the notes there, those made so far too. Not before: until the run has begun the folder is not ours."""
        self._log = folder / PARTIES_LOG
        self._write()

    def _write(self) -> None:
        if self._log is not None and self._unwritten:
            append_text(self._log, "".join(self._unwritten), durable=False)  # on the disk with the next checkpoint
            self._unwritten = []


def _printable(text: str) -> str:
    """What parties say ends up on a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
