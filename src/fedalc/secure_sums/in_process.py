"""A whole secure sum in one process, with real keys and masks: for simulations, tests and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from fedalc.errors import FedalcError
from fedalc.secure_sums.disclosures import Disclosures
from fedalc.secure_sums.party import PartySum, Question
from fedalc.secure_sums.server import ServerSum


class InProcess:
    """Carries the messages between a server and parties, and counts their bytes: `down` to the parties, `up` from them.

    Each party's vector is computed when it is its turn, so that one is in memory at a time.
    """

    def __init__(
        self, server: ServerSum, parties: Mapping[str, PartySum], disclosures: Mapping[str, Disclosures]
    ) -> None:
        self.server = server
        self.parties = parties
        self.disclosures = disclosures
        self.gone: set[str] = set()  # parties that did not come through a step
        self.down = self.up = 0

    def total(self, question: Question, vector_of: Callable[[str], np.ndarray]) -> np.ndarray:
        """Return the sum as uint64. A party that refuses is left out, and `server.problems` says why."""
        server, parties = self.server, self.parties
        self.each("keys", parties, lambda name: parties[name].make_keys(self.disclosures[name]), server.add_keys)
        roster = server.roster()
        self.each("shares", parties, lambda name: parties[name].deal_shares(self.to(name, roster)), server.add_deal)
        dealers = server.begin_masking(question)
        for name in dealers:
            if name not in self.gone:
                self.attempt(name, lambda name: self.mask(name, question, vector_of))
        survivors, names = server.survivors(), server.survivor_names
        self.each("agree", names, lambda name: self._agree(name, survivors), server.add_agreement)
        agreements = server.agreements()
        self.each("unmask", names, lambda name: self._reveal(name, agreements), server.add_shares)
        return server.total()

    def mask(self, name: str, question: Question, vector_of: Callable[[str], np.ndarray]) -> None:
        dealt = self.to(name, self.server.dealt_to(name))
        masked, complaints = self.parties[name].mask(dealt, question, vector_of(name), self.disclosures[name])
        self.up += masked.nbytes + len(complaints)
        self.server.add_masked(name, masked, complaints)

    def each(
        self, step: str, names: Iterable[str], ask: Callable[[str], bytes], add: Callable[[str, bytes], None]
    ) -> None:
        """Do one step with each party that is left."""

        def one(name: str) -> None:
            answer = ask(name)
            self.up += len(answer)
            add(name, answer)

        for name in names:
            if name not in self.gone:
                self.attempt(name, one)

    def attempt(self, name: str, one: Callable[[str], None]) -> None:
        try:
            one(name)
        except FedalcError as error:
            self.gone.add(name)
            self.server.problems.setdefault(name, str(error))

    def to(self, name: str, content: bytes) -> bytes:
        self.down += len(content)
        return content

    def _agree(self, name: str, survivors: bytes) -> bytes:
        return self.parties[name].agree(self.to(name, survivors), self.disclosures[name])

    def _reveal(self, name: str, agreements: bytes) -> bytes:
        return self.parties[name].reveal(self.to(name, agreements), self.disclosures[name])
