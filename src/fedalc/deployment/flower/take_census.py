"""Before round 1: ask who takes part, with which labels and, if the method uses it, which labels co-occur.

The server sees pseudonyms of labels and keyed digests of instances, and joins equal ones. With `collection.by = "sums"`
it sees no digest, but sums of masked counts (`bucket_census`), with "psi" counts of pairs (`intersections`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.config.schema import MOST_LABELS_PER_PARTY
from fedalc.deployment.flower.admission import (
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
from fedalc.labels.collection.join import MOST_LABELS_PER_INSTANCE, distinct, join, set_sizes
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
    search = for_parties(settings) if settings.tuning.search else ""
    private = settings.privacy.mechanism is not None
    if private and settings.client.sample < 1:
        raise ConfigError(
            "below 1, the list of participants shows how many instances a label has, which noise should hide; use 1",
            "client.sample",
        )
    came, text = introduced(parties, settings, run, charge)
    if settings.collection.by == "psi" and len({who.client for who in came.values()}) < len(came):
        raise FedalcError("two parties have the same name, and private set intersection goes by names (--client)")
    known = few_enough_labels(parties, distinct_names(came), most_labels)
    known = same_features(parties, known)
    known = enough_drawn(parties, settings, known)
    shared = settings.clients == "parties"
    if shared:  # the order of clients is that of a simulation, where parties are known by name
        known = dict(sorted(known.items(), key=lambda item: item[1].client))
    elif max(Counter(label for who in known.values() for label in who.labels).values()) > 1:
        parties.say('labels: several parties claim the same label; if they are to share it, set clients = "parties"')
    if settings.collection.by == "sums":
        return replace(_by_sums(parties, settings, share, run, known, ranks, search), text=text)
    if not settings.uses_labels:
        roster, _ = make_roster(parties, known, shared)
        parties.say(who_is_in(roster))
        ranking = _held_out_records(parties, settings, share, run, known, roster) if ranks else None
        return Census(roster, None, {}, share, run, ranking, search, text=text)
    if settings.collection.by == "psi":
        return replace(_by_psi(parties, settings, share, run, known), text=text)
    messages = _label_sets(parties, settings, share, run, known)
    known = {node: who for node, who in known.items() if node in messages}
    if not known:
        raise FedalcError("no party's label sets could be used")
    covers_records = settings.privacy.covers_records
    most = sum(len(who.labels) for who in known.values()) if covers_records else MOST_LABELS_PER_INSTANCE
    sent = [messages[node] for node in known]
    joined = join(sent, max_labels=most, say_counts=not private, shared_labels=shared)
    for note in joined.notes:
        parties.say(f"label sets: {note}")
    column = {pseudonym.tobytes(): number for number, pseudonym in enumerate(joined.pseudonyms)}
    known = {node: who for node, who in known.items() if who.client in joined.clients}
    stated = _without_instance(known) if covers_records else set()  # that they have none is not to show
    roster, nodes = make_roster(parties, known, shared, set(column) | stated)
    label_sets = csr_matrix((joined.label_sets.shape[0], roster.label_count), dtype=joined.label_sets.dtype)
    if not covers_records:
        label_sets = joined.label_sets[:, [column[pseudonym.tobytes()] for pseudonym in roster.pseudonyms]]
    sizes = {}
    for party, node in nodes.items() if settings.tells_shares else ():
        sizes[party] = set_sizes(joined, distinct(messages[node].digests)[0])
    holders = {}
    if shared and settings.tells_shares:
        holders = holders_by_party({party: messages[node] for party, node in nodes.items()})
    sent = [messages[node] for node in nodes.values()]
    facts = {
        "algorithm": joined.protocol.algorithm,
        "identity": joined.protocol.identity,
        "digest_bytes": joined.protocol.digest_bytes,
        "messages": sum(map(len, sent)),
        "instances": joined.label_sets.shape[0],
        "parties": len(nodes),
    }
    bytes_up = sum(m.digests.nbytes + m.labels.nbytes + m.pseudonyms.nbytes for m in sent)
    # The sizes of label sets are sent to their owners with each round's message, and counted there.
    collection = Collection(label_sets, np.empty(0), bytes_up, 0, facts)
    knowledge = protected(settings, collection, planned_looks(settings, 1))
    if private:
        assert isinstance(knowledge.labels, Correlations)
        roster = roster.noised(knowledge.labels.counts)
    else:
        parties.say(who_is_in(roster))
    ranking = _held_out_records(parties, settings, share, run, known, roster) if ranks else None
    return Census(roster, knowledge, sizes, share, run, ranking, search, holders, text)


def _without_instance(known: dict[int, Introduction]) -> set[bytes]:
    """Return the labels that a party claims and has no instance of."""
    return {label for who in known.values() for label, count in zip(who.labels, who.counts, strict=True) if count == 0}


def _by_sums(
    parties: Parties,
    settings: Experiment,
    share: float,
    run: str,
    known: dict[int, Introduction],
    ranks: bool,
    search: str,
) -> Census:
    """Count in buckets. A party that does not answer is left out, as long as nothing was unmasked with it."""
    protocol, known = same_protocol(parties, known)
    begun = False  # whether a sum was unmasked: from then on its parties stay
    for _ in range(ATTEMPTS):
        trained = {label for who in known.values() for label, n in zip(who.labels, who.counts, strict=True) if n}
        roster, nodes = make_roster(
            parties, known, settings.clients == "parties", trained if settings.uses_labels else None
        )
        census = Census(roster, None, {}, share, run, search=search)
        counting = BucketCensus(parties, census, settings)
        try:
            if settings.uses_labels:
                knowledge, buckets = counting.knowledge(protocol)
                told = {party: np.empty(0) for party in nodes} if settings.tells_shares else {}
                census = replace(census, knowledge=knowledge, set_sizes=told, buckets=buckets)
            parties.say(who_is_in(roster))
            if ranks and roster.held_out.any():
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


def _by_psi(parties: Parties, settings: Experiment, share: float, run: str, known: dict[int, Introduction]) -> Census:
    """Let the parties intersect their labels. Afterwards all of them are in the run."""
    protocol, known = same_protocol(parties, known)
    trained = {label for who in known.values() for label, n in zip(who.labels, who.counts, strict=True) if n}
    roster, _ = make_roster(parties, known, False, trained)
    census = Census(roster, None, {}, share, run)
    census = replace(census, knowledge=PairCensus(parties, census, settings).knowledge(protocol))
    parties.say(who_is_in(roster))
    return census


def _label_sets(
    parties: Parties, settings: Experiment, share: float, run: str, known: dict[int, Introduction]
) -> dict[int, Messages]:
    parties.say(f"asking {len(known)} parties for the digests of their instances")
    counts = {node: who.counts for node, who in known.items()}
    return collect(parties, "label_sets", question(settings, share, run), known, counts, "left out", run)


def _held_out_records(
    parties: Parties, settings: Experiment, share: float, run: str, known: dict[int, Introduction], roster: Roster
) -> HeldOutRecords | None:
    """Collect the digests of held-out records. A party whose digests cannot be used is not evaluated."""
    counts = {node: who.held_out for node, who in known.items() if node in parties.party_of and any(who.held_out)}
    if not counts:
        return None
    parties.say(f"asking {len(counts)} parties for the digests of their held-out instances")
    messages = collect(
        parties, "held_out", question(settings, share, run), known, counts, "is not evaluated", run, share
    )
    try:
        shared = settings.clients == "parties"
        joined = join(messages.values(), max_labels=roster.label_count * len(roster.parties), shared_labels=shared)
    except FedalcError as error:  # no message, or no protocol that most parties use: training does without
        parties.say(f"held-out instances: {error}; the last round is kept")
        return None
    for note in joined.notes:
        parties.say(f"held-out instances: {note}")
    bytes_up = sum(m.digests.nbytes + m.labels.nbytes + m.pseudonyms.nbytes for m in messages.values())
    sent = {parties.party_of[node]: part for node, part in messages.items() if part.client in joined.clients}
    records = HeldOutRecords.of(joined, roster, bytes_up, sent if shared else None)
    parties.say(f"{len(records)} held-out instances at {len(records.parties)} parties, to rank labels for")
    return records if len(records) else None
