"""The parties as the server reaches them: which node is whose, who is there, who was left out and why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedalc.engines.flower.exchange import GRACE, exchange
from fedalc.engines.flower.introductions import Introduction, read_introduction
from fedalc.engines.flower.records import BadMessage
from fedalc.engines.flower.roster import Roster
from fedalc.errors import FedalcError

LOG = "parties.jsonl"  # in the run folder: who was left out, when and why


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


@dataclass
class Parties:
    """`content` makes the question that a node is asked when it is new here: who are you?"""

    grid: Grid
    patience: Patience
    hello: Callable[[], RecordDict]
    folder: Path | None = None
    say: Callable[[str], None] = print
    node_of: dict[int, int] = field(default_factory=dict)  # party → node
    _strangers: set[int] = field(default_factory=set)  # nodes that are no party of this run
    _away: set[int] = field(default_factory=set)
    _unwritten: list[str] = field(default_factory=list)

    def ask(
        self, contents: Iterable[tuple[int, RecordDict]], kind: str, group: str
    ) -> Iterator[tuple[int, Message | str]]:
        """Send each node its content, and give replies as they arrive, or why there is none."""
        ttl = self.patience.for_replies + GRACE
        messages = (Message(content, node, kind, ttl=ttl, group_id=group) for node, content in contents)
        return exchange(self.grid, messages, self.patience.for_replies, self.patience.pause)

    def introductions(self, nodes: Iterable[int]) -> dict[int, Introduction]:
        """Of the nodes that answered with one."""
        found: dict[int, Introduction] = {}
        for node, reply in self.ask(((node, self.hello()) for node in nodes), "query.hello", "0"):
            try:
                if isinstance(reply, str):
                    raise BadMessage(reply)
                found[node] = read_introduction(reply.content)
            except BadMessage as error:
                self.leave_out(0, f"node {node}", str(error))
        return found

    def gather(self) -> dict[int, Introduction]:
        """Wait until enough nodes are there to start with, and have them introduce themselves."""
        known: dict[int, Introduction] = {}
        wanted, deadline = self.patience.start_with, time.monotonic() + self.patience.for_parties
        self.say(f"waiting for {wanted} parties")
        asked: set[int] = set()
        while True:
            present = set(self.grid.get_node_ids())
            if len(present) >= wanted and present - asked:
                known |= self.introductions(sorted(present - asked))
                asked |= present
            known = {node: who for node, who in known.items() if node in present}
            if len(known) >= wanted:
                return known
            if time.monotonic() > deadline:
                raise TooFew(
                    f"{len(known)} of {wanted} parties are here after {self.patience.for_parties:g} seconds; "
                    "start the others, or ask for fewer (num-parties)"
                )
            time.sleep(self.patience.pause)

    def present(self, roster: Roster, round_number: int, at_least: int) -> dict[int, int]:
        """Party → node of those who are there now. Waits until there are `at_least` so many."""
        deadline = time.monotonic() + self.patience.for_parties
        while True:
            nodes = set(self.grid.get_node_ids())
            self._recognise(roster, nodes, round_number)
            here = {party: node for party, node in self.node_of.items() if node in nodes}
            self._note_changes(roster, set(here), round_number)
            if len(here) >= at_least:
                return here
            if time.monotonic() > deadline:
                raise TooFew(
                    f"round {round_number}: {len(here)} parties are here, and at least {at_least} are needed; waited "
                    f"{self.patience.for_parties:g} seconds"
                )
            time.sleep(self.patience.pause)

    def _recognise(self, roster: Roster, nodes: set[int], round_number: int) -> None:
        """A node that is new here may be a party that was restarted. Its labels say which."""
        self._strangers &= nodes
        new = nodes - set(self.node_of.values()) - self._strangers
        for node, who in self.introductions(sorted(new)).items() if new else ():
            party = roster.party_with(who.labels)
            if party is None:
                self._strangers.add(node)
                self.leave_out(round_number, who.client, "was not there when the labels were collected: the next run")
            elif self.node_of.get(party) in nodes:
                self._strangers.add(node)
                self.leave_out(round_number, who.client, f"claims to be {roster.parties[party]}, which is here already")
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
        when = f"round {round_number}: " if round_number else ""
        self.say(f"{when}{party} {what}" + (f": {why}" if why else ""))
        record: Mapping[str, object] = {"round": round_number, "party": party, "what": what, "why": why}
        self._unwritten.append(json.dumps(record, ensure_ascii=False) + "\n")
        if self.folder is not None and (self.folder / "config.toml").exists():  # the run has begun
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.writelines(self._unwritten)
            self._unwritten = []
