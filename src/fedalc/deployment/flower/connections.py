"""The server's view of the parties: their nodes, which are connected, which are left out of a round and why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedalc.core.atomic_files import append_text
from fedalc.deployment.flower.exchange import Exchange, Reply
from fedalc.deployment.flower.introductions import HELLO, Introduction, read_introduction
from fedalc.deployment.flower.punctuality import Punctuality
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.disputes import listed
from fedalc.runs.folder import PARTIES_LOG

T = TypeVar("T")
RESUME = "No finished round is lost: when they are back, continue with resume=true and the same run-folder"


class TooFew(FedalcError):
    """Not enough parties are left to continue."""


@dataclass(frozen=True)
class Patience:
    """How many parties a run needs, and how many seconds it waits for them."""

    start_with: int = 2
    go_on_with: int = 2
    for_parties: float = 600.0
    for_replies: float = 600.0
    pause: float = 1.0  # between two checks
    again: float = 30.0  # before a refused node is asked again: its problem may be fixed by then


@dataclass
class Parties:
    """`hello` returns the content of the message that asks a new node who it is. `empty_labels`: whether a party may
    claim labels that it has no instance of."""

    grid: Grid
    patience: Patience
    hello: Callable[[], RecordDict]
    say: Callable[[str], None] = print
    empty_labels: bool = False
    node_of: dict[int, int] = field(default_factory=dict)  # party → node, see `connect`
    party_of: dict[int, int] = field(default_factory=dict)  # node → party
    punctuality: Punctuality = field(default_factory=Punctuality)
    _turned_away: dict[int, tuple[float, str]] = field(
        default_factory=dict
    )  # node → when to ask it again, and why it was refused
    _away: set[int] = field(default_factory=set)
    _soonest: dict[str, float] = field(default_factory=dict)  # see Exchange
    _log: Path | None = None
    _unwritten: list[str] = field(default_factory=list)

    def exchange(self, kind: str, round_number: int) -> Exchange:
        """Return an exchange to send messages of this kind with."""
        patience = self.patience
        return Exchange(self.grid, kind, round_number, patience.for_replies, patience.pause, self._soonest)

    def punctual_replies(self, roster: Roster, exchange: Exchange) -> Iterator[Reply]:
        """Yield the replies, with a shorter wait for parties that were late before. Notes which are late now."""
        kind, round_number, known = exchange.kind, exchange.round_number, self.punctuality
        waits = {
            node: partial(known.fair_wait, party, kind, whole=exchange.timeout)
            for party, node in self.node_of.items()
            if known.is_hurried(party, kind, round_number)
        }
        for reply in exchange.replies(waits):
            party = self.party_of[reply.node]
            if reply.late:
                if consequence := known.was_late(party, kind, round_number):
                    self.note(round_number, roster.parties[party], "was late", consequence)
            elif reply.seconds is not None and known.was_in_time(party, kind, reply.seconds):
                self.note(round_number, roster.parties[party], "answered in time again")
            yield reply

    def awake(
        self, roster: Roster, parties: Collection[int], kind: str, round_number: int, least: int
    ) -> Collection[int]:
        """Return the parties that do not rest for having been late. If fewer than `least` are left: all of them."""
        rest_until = {party: self.punctuality.rests_until(party, kind, round_number) for party in parties}
        awake = {party for party in parties if not rest_until[party]}
        if len(awake) < least:
            return parties
        for party in sorted(set(parties) - awake):
            why = f"it was late before; it is asked again in round {rest_until[party]}"
            self.note(round_number, roster.parties[party], "not asked", why)
        return awake

    def forget(self) -> None:
        """Forget which party is at which node: the parties get other numbers."""
        self.node_of.clear()
        self.party_of.clear()

    def connect(self, party: int, node: int) -> None:
        """Remember that the party is reached at this node."""
        self.party_of.pop(self.node_of.get(party, node), None)
        self.node_of[party] = node
        self.party_of[node] = party

    def read(self, reply: Reply, round_number: int, party: str, read: Callable[[RecordDict], T]) -> T | None:
        """Return `read(content)`. If there is no content, or `read` refuses it, leave the party out: None."""
        try:
            return read(content_of(reply))
        except (BadMessage, DataError) as error:
            self.leave_out(round_number, party, str(error))
            return None

    def gather(self) -> dict[int, Introduction]:
        """Wait until enough nodes to start with have introduced themselves, and return the introductions by node."""
        known: dict[int, Introduction] = {}
        wanted, deadline = self.patience.start_with, time.monotonic() + self.patience.for_parties
        self.say(f"waiting for {wanted} parties")
        while True:
            is_over = time.monotonic() > deadline
            present = set(self.grid.get_node_ids())
            known = {node: who for node, who in known.items() if node in present}
            if len(present) >= wanted:
                known |= self._introductions(present - set(known), 0)
            if len(known) >= wanted:
                return known
            if is_over:
                raise TooFew(
                    f"after {self.patience.for_parties:g} seconds, {len(present)} parties are connected and "
                    f"{len(known)} have introduced themselves, but the run needs {wanted}; start the others, or ask "
                    "for fewer (--parties, num-parties)"
                )
            time.sleep(self.patience.pause)

    def present(self, roster: Roster, round_number: int, at_least: int, because: str = "") -> dict[int, int]:
        """Wait until `at_least` parties are connected, and return party → node. `because`: why so many, for errors."""
        deadline = time.monotonic() + self.patience.for_parties
        while True:
            is_over = time.monotonic() > deadline
            nodes = set(self.grid.get_node_ids())
            self._recognise(roster, nodes, round_number)
            here = {party: node for party, node in self.node_of.items() if node in nodes}
            self._note_changes(roster, set(here), round_number)
            if len(here) >= at_least:
                return here
            if is_over:
                missing = listed([name for party, name in enumerate(roster.parties) if party not in here])
                raise TooFew(
                    f"round {round_number}: {len(here)} of {len(roster.parties)} parties are connected, and at least "
                    f"{at_least} are needed{because}; waited {self.patience.for_parties:g} seconds for {missing}. "
                    + RESUME
                )
            time.sleep(self.patience.pause)

    def _introductions(self, nodes: set[int], round_number: int) -> dict[int, Introduction]:
        """Ask the nodes who they are, and return the valid answers. Refused nodes are not asked again at once."""
        self._turned_away = {node: entry for node, entry in self._turned_away.items() if node in nodes}
        began = time.monotonic()
        new = [node for node in sorted(nodes) if self._turned_away.get(node, (began, ""))[0] <= began]
        introductions: dict[int, Introduction] = {}
        exchange = self.exchange(HELLO, round_number)
        for node in new:
            exchange.send(node, self.hello())
        for reply in exchange.replies():
            try:
                introductions[reply.node] = read_introduction(content_of(reply), self.empty_labels)
            except BadMessage as error:
                self._turn_away(reply.node, f"node {reply.node}", str(error), round_number, time.monotonic() - began)
        return introductions

    def _turn_away(self, node: int, name: str, why: str, round_number: int, took: float = 0.0) -> None:
        """Refuse a node for now. The longer it `took`, the later it is asked again: it must not delay every round."""
        if self._turned_away.get(node, (0.0, ""))[1] != why:
            self.leave_out(round_number, name, why)
        self._turned_away[node] = (time.monotonic() + max(self.patience.again, 10 * took), why)

    def _recognise(self, roster: Roster, nodes: set[int], round_number: int) -> None:
        """Find out whether a new node is a party that restarted. Its labels tell which."""
        for node, who in self._introductions(nodes - set(self.node_of.values()), round_number).items():
            party = roster.party_with(who.labels, who.client)
            if party is None:
                why = "is no party of this run: it was away, or refused, when labels were collected"
                self._turn_away(node, who.client, why, round_number)
            elif self.node_of.get(party) in nodes:  # perhaps the party itself, with its old node not yet timed out
                why = f"claims to be {roster.parties[party]}, which is connected already"
                self._turn_away(node, who.client, why, round_number)
            else:
                self.connect(party, node)

    def _note_changes(self, roster: Roster, here: set[int], round_number: int) -> None:
        away = set(range(len(roster.parties))) - here
        for party in sorted(away - self._away):
            self.leave_out(round_number, roster.parties[party], "is not connected")
        for party in sorted(self._away - away):
            self.note(round_number, roster.parties[party], "is connected again")
        self._away = away

    def leave_out(self, round_number: int, party: str, why: str) -> None:
        self.note(round_number, party, "left out", why)

    def note(self, round_number: int, party: str, what: str, why: str = "") -> None:
        """Write one line to the log and to `parties.jsonl` in the run folder."""
        party, why = _printable(party), _printable(why)
        when = f"round {round_number}: " if round_number else ""
        self.say(f"{when}{party} {what}" + (f": {why}" if why else ""))
        record: Mapping[str, object] = {"round": round_number, "party": party, "what": what, "why": why}
        self._unwritten.append(json.dumps(record, ensure_ascii=False) + "\n")
        self._write()

    def write_to(self, folder: Path) -> None:
        """Write all notes, also those made so far, to this run folder. Before the run begins there is none."""
        self._log = folder / PARTIES_LOG
        self._write()

    def _write(self) -> None:
        if self._log is not None and self._unwritten:
            append_text(self._log, "".join(self._unwritten), durable=False)  # on the disk with the next checkpoint
            self._unwritten = []


def content_of(reply: Reply) -> RecordDict:
    if reply.content is None:
        raise BadMessage(reply.problem)
    return reply.content


def _printable(text: str) -> str:
    """Replace control characters, because what parties send ends up on a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
