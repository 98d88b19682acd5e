"""Before round 1: ask who takes part, with which labels and, if the method uses it, which labels co-occur.

The server sees pseudonyms of labels and keyed digests of instances, and joins equal ones. With `collection.by = "sums"`
it sees no digest, but sums of masked counts (`bucket_census`), with "psi" counts of pairs (`intersections`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.config.schema import MOST_LABELS_PER_PARTY
from fedalc.deployment.flower.admission import (
    check_names,
    distinct_names,
    enough_drawn,
    few_enough_labels,
    make_roster,
    same_features,
)
from fedalc.deployment.flower.bucket_census import BucketCensus, same_protocol
from fedalc.deployment.flower.census import Census, question, who_is_in
from fedalc.deployment.flower.collecting import collect
from fedalc.deployment.flower.connections import Parties, TooFew
from fedalc.deployment.flower.held_out_records import HeldOutRecords
from fedalc.deployment.flower.intersections import PairCensus
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.masked_sums import Unfinished
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.shared_labels import holders_by_party
from fedalc.deployment.flower.text_census import introduced
from fedalc.deployment.flower.wire import for_parties
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.join import MOST_LABELS_PER_INSTANCE, Joined, distinct, join, set_sizes
from fedalc.labels.collection.messages import Messages
from fedalc.labels.collection.simulate import Collection
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import protected
from fedalc.secure_sums.messages import LEAST_PARTIES
from fedalc.training.federated import planned_looks

ATTEMPTS = 3


def take_census(
    parties: Parties,
    settings: Experiment,
    share: float,
    run: str,
    most_labels: int = MOST_LABELS_PER_PARTY,
    ranks: bool = False,
    charge: Callable[[], None] = lambda: None,
) -> Census:
    """Ask all connected nodes. Each party keeps `share` of its instances out of training. `ranks`: whether parties will
    rank labels for these. `charge`: see `introduced`.

    With noised counts (`privacy`), the census has only these: exact numbers of instances are neither kept nor logged,
    and the noised ones are logged later (`who_is_in`).
    """
    if settings.privacy.mechanism is not None and settings.client.sample < 1:
        raise ConfigError(
            "below 1, the list of participants shows how many instances a label has, which noise should hide; use 1",
            "client.sample",
        )
    came, text = introduced(parties, settings, run, charge)
    known = _admitted(parties, settings, came, most_labels)
    asking = _Asking(parties, settings, share, run, ranks)
    if settings.collection.by == "sums":
        census = asking.by_sums(known)
    elif not settings.uses_labels:
        census = asking.without_labels(known)
    elif settings.collection.by == "psi":
        census = asking.by_psi(known)
    else:
        census = asking.by_join(known)
    return replace(census, text=text)


def _admitted(
    parties: Parties, settings: Experiment, came: dict[int, Introduction], most_labels: int
) -> dict[int, Introduction]:
    """Return the parties that can take part, by node."""
    if settings.secure_sums.on or settings.collection.by == "psi":
        check_names(came)
    known = few_enough_labels(parties, distinct_names(came), most_labels)
    known = same_features(parties, known)
    known = enough_drawn(parties, settings, known)
    if settings.clients == "parties":  # the order of clients is that of a simulation, where parties are known by name
        return dict(sorted(known.items(), key=lambda item: item[1].client))
    if max(Counter(label for who in known.values() for label in who.labels).values()) > 1:
        parties.say('labels: several parties claim the same label; if they are to share it, set clients = "parties"')
    return known


@dataclass(frozen=True)
class _Asking:
    """Asks the parties that take part about their labels, in one of four ways. `ranks`: see `take_census`."""

    parties: Parties
    settings: Experiment
    share: float
    run: str
    ranks: bool

    def by_sums(self, known: dict[int, Introduction]) -> Census:
        """Count in buckets. A party that does not answer is left out, as long as nothing was unmasked with it."""
        parties, settings = self.parties, self.settings
        protocol, known = same_protocol(parties, known)
        begun = False  # whether a sum was unmasked: from then on its parties stay
        for _ in range(ATTEMPTS):
            labels = _trained(known) if settings.uses_labels else None
            roster, nodes = make_roster(parties, known, settings.clients == "parties", labels)
            census = Census(roster, None, {}, self.share, self.run, search=self._search)
            counting = BucketCensus(parties, census, settings)
            try:
                if settings.uses_labels:
                    knowledge, buckets = counting.knowledge(protocol)
                    told = {party: np.empty(0) for party in nodes} if settings.tells_shares else {}
                    census = replace(census, knowledge=knowledge, set_sizes=told, buckets=buckets)
                parties.say(who_is_in(roster))
                if self.ranks and roster.held_out.any():
                    census = replace(census, ranking=counting.held_out())
                return census
            except Unfinished as error:
                parties.say(f"no secure sum of counts: {error}")
                heard = {nodes[party] for party in counting.sums.answered}
                begun |= counting.begun
                if begun:
                    parties.present(roster, 0, len(roster.parties), " (counts of all were unmasked)")
                elif len(heard) >= LEAST_PARTIES:
                    known = {node: who for node, who in known.items() if node in heard}
        raise TooFew(f"the parties' counts could not be added up in {ATTEMPTS} attempts; the log says why")

    def by_psi(self, known: dict[int, Introduction]) -> Census:
        """Let the parties intersect their labels. Afterwards all of them are in the run."""
        protocol, known = same_protocol(self.parties, known)
        roster, _ = make_roster(self.parties, known, False, _trained(known))
        census = Census(roster, None, {}, self.share, self.run)
        census = replace(census, knowledge=PairCensus(self.parties, census, self.settings).knowledge(protocol))
        self.parties.say(who_is_in(roster))
        return census

    def without_labels(self, known: dict[int, Introduction]) -> Census:
        """For a method that needs no label sets."""
        roster, _ = make_roster(self.parties, known, self._shared)
        self.parties.say(who_is_in(roster))
        return Census(roster, None, {}, self.share, self.run, self._held_out(known, roster), self._search)

    def by_join(self, known: dict[int, Introduction]) -> Census:
        """Collect the digests of all instances, and join equal ones."""
        settings, messages = self.settings, self._label_sets(known)
        known = {node: who for node, who in known.items() if node in messages}
        if not known:
            raise FedalcError("no party's label sets could be used")
        joined = self._joined(known, messages)
        known = {node: who for node, who in known.items() if who.client in joined.clients}
        labels = {pseudonym.tobytes() for pseudonym in joined.pseudonyms}
        if settings.privacy.covers_records:  # that a party has no instance of a label is not to show
            labels |= _without_instance(known)
        roster, nodes = make_roster(self.parties, known, self._shared, labels)
        sizes, holders = {}, {}
        if settings.tells_shares:
            sizes = {party: set_sizes(joined, distinct(messages[node].digests)[0]) for party, node in nodes.items()}
            if self._shared:
                holders = holders_by_party({party: messages[node] for party, node in nodes.items()})
        collection = self._collection(joined, roster, [messages[node] for node in nodes.values()])
        knowledge = protected(settings, collection, planned_looks(settings, 1))
        if settings.privacy.mechanism is not None:
            assert isinstance(knowledge.labels, Correlations)
            roster = roster.noised(knowledge.labels.counts)
        else:
            self.parties.say(who_is_in(roster))
        ranking = self._held_out(known, roster)
        return Census(roster, knowledge, sizes, self.share, self.run, ranking, self._search, holders)

    @property
    def _shared(self) -> bool:
        return self.settings.clients == "parties"

    @property
    def _search(self) -> str:
        return for_parties(self.settings) if self.settings.tuning.search else ""

    def _label_sets(self, known: dict[int, Introduction]) -> dict[int, Messages]:
        self.parties.say(f"asking {len(known)} parties for the digests of their instances")
        counts = {node: who.counts for node, who in known.items()}
        asked = question(self.settings, self.share, self.run)
        return collect(self.parties, "label_sets", asked, known, counts, "left out", self.run)

    def _joined(self, known: dict[int, Introduction], messages: dict[int, Messages]) -> Joined:
        privacy, most = self.settings.privacy, MOST_LABELS_PER_INSTANCE
        if privacy.covers_records:
            most = sum(len(who.labels) for who in known.values())
        sent, say_counts = [messages[node] for node in known], privacy.mechanism is None
        joined = join(sent, max_labels=most, say_counts=say_counts, shared_labels=self._shared)
        for note in joined.notes:
            self.parties.say(f"label sets: {note}")
        return joined

    def _collection(self, joined: Joined, roster: Roster, sent: list[Messages]) -> Collection:
        """Return the label sets of the roster's labels, and facts about them."""
        records, protocol = joined.label_sets.shape[0], joined.protocol
        label_sets = csr_matrix((records, roster.label_count), dtype=joined.label_sets.dtype)
        if not self.settings.privacy.covers_records:
            column = {pseudonym.tobytes(): number for number, pseudonym in enumerate(joined.pseudonyms)}
            label_sets = joined.label_sets[:, [column[pseudonym.tobytes()] for pseudonym in roster.pseudonyms]]
        facts = {
            "algorithm": protocol.algorithm,
            "identity": protocol.identity,
            "digest_bytes": protocol.digest_bytes,
            "messages": sum(map(len, sent)),
            "instances": records,
            "parties": len(sent),
        }
        # The sizes of label sets are sent to their owners with each round's message, and counted there.
        return Collection(label_sets, np.empty(0), _bytes_of(sent), 0, facts)

    def _held_out(self, known: dict[int, Introduction], roster: Roster) -> HeldOutRecords | None:
        """Collect the digests of held-out records, if parties rank. A party whose digests cannot be used is not
        evaluated."""
        parties = self.parties
        counts = {node: who.held_out for node, who in known.items() if node in parties.party_of and any(who.held_out)}
        if not self.ranks or not counts:
            return None
        parties.say(f"asking {len(counts)} parties for the digests of their held-out instances")
        asked = question(self.settings, self.share, self.run)
        messages = collect(parties, "held_out", asked, known, counts, "is not evaluated", self.run)
        try:
            most = roster.label_count * len(roster.parties)
            joined = join(messages.values(), max_labels=most, shared_labels=self._shared)
        except FedalcError as error:  # no message, or no protocol that most parties use: training does without
            parties.say(f"held-out instances: {error}; the last round is kept")
            return None
        for note in joined.notes:
            parties.say(f"held-out instances: {note}")
        sent = {parties.party_of[node]: part for node, part in messages.items() if part.client in joined.clients}
        records = HeldOutRecords.of(joined, roster, _bytes_of(messages.values()), sent if self._shared else None)
        parties.say(f"{len(records)} held-out instances at {len(records.parties)} parties, to rank labels for")
        return records if len(records) else None


def _trained(known: dict[int, Introduction]) -> set[bytes]:
    """Return the labels that a party has instances of to train on."""
    return {label for who in known.values() for label, count in zip(who.labels, who.counts, strict=True) if count}


def _bytes_of(messages: Iterable[Messages]) -> int:
    return sum(each.digests.nbytes + each.labels.nbytes + each.pseudonyms.nbytes for each in messages)


def _without_instance(known: dict[int, Introduction]) -> set[bytes]:
    """Return the labels that a party claims and has no instance of."""
    return {label for who in known.values() for label, count in zip(who.labels, who.counts, strict=True) if count == 0}
