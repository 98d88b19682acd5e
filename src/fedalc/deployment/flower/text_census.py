"""At the server, before round 1: parties with texts agree on features, by numbers of documents.

They say that they have texts when they are asked who they are. The server asks each for its numbers of documents, adds
them up, and asks all of them again who they are, now with the sum. It holds the sum and one party's answer at a time.
With secure sums and hashed terms it holds the sum alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from flwr.app import RecordDict

from fedalc.config.experiment import Experiment
from fedalc.data.text.agreed import kept_terms, needs_counts, plausible, summed_buckets
from fedalc.data.text.keyed import DIGEST_BYTES
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower.admission import check_names
from fedalc.deployment.flower.agreement import (
    FACTS,
    MOST_DOCUMENTS,
    TEXT,
    Agreement,
    masks_counts,
    read_noised,
    read_numbers,
)
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.connections import Parties, TooFew
from fedalc.deployment.flower.introductions import MOST, Introduction
from fedalc.deployment.flower.masked_sums import MaskedSums, Unfinished
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.table_seals import SEALS
from fedalc.deployment.flower.wire import BadMessage, config
from fedalc.engines.traffic import Ledger
from fedalc.errors import FedalcError
from fedalc.labels.collection.join import distinct
from fedalc.secure_sums.messages import LEAST_PARTIES
from fedalc.workflows.preflight import refuse_exact_numbers

QUESTION = "query.document_counts"
ATTEMPTS = 3  # at a sum


@dataclass
class Total:
    """The sum of the parties' numbers, and for terms how many parties have each. `clients`: their names."""

    documents: int = 0
    numbers: np.ndarray | None = None
    terms: np.ndarray | None = None
    holders: np.ndarray | None = None
    clients: list[str] = field(default_factory=list)
    bytes_up: int = 0

    def add(self, client: str, documents: int, numbers: np.ndarray, terms: np.ndarray | None) -> None:
        self.clients.append(client)
        self.documents += documents
        self.bytes_up += numbers.nbytes + (0 if terms is None else terms.nbytes)
        if terms is not None:
            self._add_terms(numbers, terms)
        else:
            self.numbers = summed_buckets([numbers] if self.numbers is None else [self.numbers, numbers])

    def _add_terms(self, numbers: np.ndarray, terms: np.ndarray) -> None:
        """Which terms there are depends on the data, so that these are no vectors of one length."""
        if self.terms is None or self.numbers is None or self.holders is None:
            self.terms, self.numbers, self.holders = terms, numbers, np.ones_like(numbers)
            return
        self.terms, place = distinct(np.concatenate([self.terms, terms]))
        old, new = place[: len(self.numbers)], place[len(self.numbers) :]
        for name, part in (("numbers", numbers), ("holders", np.ones_like(numbers))):
            total = np.zeros(len(self.terms), dtype=np.int64)
            total[old] = getattr(self, name)
            total[new] += part
            setattr(self, name, total)

    def agreement(self, settings: TextSettings, check: str) -> Agreement:
        assert self.numbers is not None
        if self.terms is None or self.holders is None:
            counts = plausible(self.documents, self.numbers)
            return Agreement(counts.documents, counts.buckets, bytes_up=self.bytes_up)
        kept = kept_terms(self.documents, self.numbers, self.holders, len(self.clients), settings)
        return Agreement(self.documents, self.numbers[kept], self.terms[kept], check, self.bytes_up)


def introduced(
    parties: Parties, settings: Experiment, run: str, charge: Callable[[], None] = lambda: None
) -> tuple[dict[int, Introduction], Agreement | None]:
    """Wait for the parties' introductions. If some have texts, let them agree on features first. `charge`: for their
    noise, before they are asked for it."""
    known = parties.gather()
    if not any(who.has_texts for who in known.values()):
        return known, None
    refuse_exact_numbers(settings)
    charge()
    with_texts = {node: who for node, who in known.items() if who.has_texts}
    if masks_counts(settings):
        agreement = _agreed_in_secret(parties, settings, run, with_texts)
    else:
        agreement = _agreed(parties, settings.text, with_texts)
    tell(parties, agreement)
    known = parties.gather()
    for who in known.values():
        if who.has_texts:
            parties.leave_out(0, who.client, "does not use the features of texts that parties agreed on")
    known = {node: who for node, who in known.items() if not who.has_texts}
    if not known:
        raise FedalcError("no party uses the features of texts that parties agreed on")
    return known, agreement


def tell(parties: Parties, agreement: Agreement) -> None:
    """Send the agreement with every question who a party is: all of them, and those that come back."""
    hello: Callable[[], RecordDict] = parties.hello
    records = agreement.records()

    def with_agreement() -> RecordDict:
        content = hello()
        content.update(records)
        return content

    parties.hello = with_agreement


def _agreed(parties: Parties, settings: TextSettings, known: dict[int, Introduction]) -> Agreement:
    _say_asking(parties, settings, known)
    exchange = parties.exchange(QUESTION, 0)
    for node in known:
        exchange.send(node, parties.hello())
    totals: dict[str, Total] = {}  # by the check value of the key
    for reply in exchange.replies():
        who = known[reply.node]
        counts = parties.read(reply, 0, who.client, partial(read_counts, settings))
        if counts is not None:
            check, documents, numbers, terms = counts
            totals.setdefault(check, Total()).add(who.client, documents, numbers, terms)
    if not totals:
        raise FedalcError("no party's numbers of documents could be used")
    check = max(totals, key=lambda each: (len(totals[each].clients), each))
    for other in totals.keys() - {check}:
        for client in totals[other].clients:
            parties.leave_out(0, client, "its terms are hashed with another key than those of most parties")
    total = totals[check]
    return _said(parties, total.agreement(settings, check), len(total.clients), len(known))


def _say_asking(parties: Parties, settings: TextSettings, known: dict[int, Introduction]) -> None:
    if not needs_counts(settings):
        raise FedalcError("parties want to agree on features of texts, which these settings do not need")
    parties.say(f"asking {len(known)} parties in how many of their documents each term is")


def _said(parties: Parties, agreement: Agreement, counted: int, asked: int) -> Agreement:
    """Return the agreement with what it takes to tell it, and say in the log who agreed."""
    agreement = replace(agreement, bytes_down=agreement.bytes_down + asked * agreement.sent_bytes)
    features = f"{len(agreement.numbers)} {'buckets' if agreement.terms is None else 'terms'}"
    parties.say(f"{counted} parties with {agreement.documents} texts agreed on {features} as features")
    return agreement


@dataclass(frozen=True)
class _WithTexts:
    """The parties that add up their numbers of documents, before there is a census."""

    roster: Roster
    run: str


def _agreed_in_secret(parties: Parties, settings: Experiment, run: str, known: dict[int, Introduction]) -> Agreement:
    """The same by a masked sum: the number of documents, then that of each bucket."""
    _say_asking(parties, settings.text, known)
    check_names(known)
    named = {who.client: node for node, who in known.items()}
    parties.forget()
    for number, node in enumerate(named.values()):
        parties.connect(number, node)
    sums = MaskedSums(parties, _WithTexts(Roster.of_names(tuple(named)), run), settings)
    sums.traffic = Ledger()
    length, asked = settings.text.buckets + 1 + SEALS, list(range(len(named)))
    for _ in range(ATTEMPTS):
        try:
            total, counted = sums.total(QUESTION, 0, asked, lambda party: parties.hello(), length, True, whole=True)
            break
        except Unfinished as error:
            parties.say(f"no secure sum of numbers of documents: {error}")
            asked = sums.answered if len(sums.answered) >= LEAST_PARTIES else asked  # nothing was unmasked yet
    else:
        raise TooFew(f"the parties' numbers of documents could not be added up in {ATTEMPTS} attempts")
    signed = total[:-SEALS].view(np.int64)  # noise may make numbers negative
    documents = int(signed[0])
    possible = 0 < documents < MOST_DOCUMENTS and signed.min() >= 0 and signed.max() <= documents
    if settings.text.epsilon is None and not possible:
        raise FedalcError("numbers of documents that no documents have: a party counts wrongly, or lies")
    traffic = sums.traffic
    agreement = Agreement.of_sum(signed, total[-SEALS:], sums.last, traffic.up, traffic.down)
    return _said(parties, agreement, len(counted), len(known))


def read_counts(settings: TextSettings, content: RecordDict) -> tuple[str, int, np.ndarray, np.ndarray | None]:
    """Return a party's check value, its number of documents, and the numbers of those that have each term."""
    exactly(content, {TEXT: None, FACTS: ("documents", "check")})
    facts = config(content, FACTS, {"documents": int, "check": str})
    if facts["documents"] >= MOST:
        raise BadMessage(f"{str(facts['documents'])[:20]} documents, which cannot be")
    read = read_numbers if settings.epsilon is None else read_noised
    documents, numbers, terms = read(content, TEXT, facts["documents"], settings)
    return facts["check"][:DIGEST_BYTES], documents, numbers, terms
