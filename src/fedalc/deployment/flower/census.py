"""Before round 1: which parties take part, which labels they own and, if the method uses it, which labels co-occur.

The server sees pseudonyms of labels and keyed digests of instances, and joins equal ones. With `collection.by = "sums"`
it sees no digest, but sums of masked counts (`bucket_census`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import MOST_LABELS_PER_PARTY
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.deployment.flower.agreement import TEXT, Agreement
from fedalc.deployment.flower.bucket_census import BucketCensus, HeldOutBuckets, same_protocol
from fedalc.deployment.flower.bucket_sums import BucketSums
from fedalc.deployment.flower.collecting import collect
from fedalc.deployment.flower.connections import Parties, TooFew
from fedalc.deployment.flower.held_out_records import HeldOutRecords, restored_holders
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.limits import FEWEST, sample_problem
from fedalc.deployment.flower.masked_sums import Unfinished
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.shared_labels import holders_by_party
from fedalc.deployment.flower.text_census import introduced
from fedalc.deployment.flower.wire import SEARCH, for_parties, task
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.disputes import listed, settle
from fedalc.labels.collection.join import MOST_LABELS_PER_INSTANCE, distinct, join, set_sizes, too_many_labels
from fedalc.labels.collection.messages import Messages
from fedalc.labels.collection.simulate import Collection
from fedalc.labels.correlations import Correlations, LabelCounts
from fedalc.labels.knowledge import LabelKnowledge, protected
from fedalc.runs.folder import CENSUS
from fedalc.secure_sums.messages import LEAST_PARTIES
from fedalc.training.federated import planned_looks

AnyHeldOut = HeldOutRecords | HeldOutBuckets
ATTEMPTS = 3
_BUCKETS = "bucket_sums."


@dataclass(frozen=True)
class Census:
    """`set_sizes`: per party, the number of labels of each instance whose digest it sent (ascending, each once).
    `holders`: if parties may have the same labels and learn set sizes, per party how many parties have each of its
    pairs of an instance and a label (by digest, then pseudonym).
    `share`: the share of its instances that each party keeps out of training for evaluation. `run`: the run id that
    digests and pseudonyms are hashed for; "" in a run of an early version without run ids. `ranking`: the held-out
    records, if parties rank labels for them; None also in runs of earlier versions. `search`: if the run searches for
    settings, those that it began with, as parties know them. `text`: what parties with texts agreed on. `buckets`: if
    set sizes come from sums, the sums that all parties get, to look up their training records."""

    roster: Roster
    knowledge: LabelKnowledge | None
    set_sizes: dict[int, np.ndarray]
    share: float
    run: str
    ranking: AnyHeldOut | None = None
    search: str = ""
    holders: dict[int, np.ndarray] = field(default_factory=dict)
    text: Agreement | None = None
    buckets: BucketSums | None = None

    def about(self, labels: np.ndarray) -> dict[str, Any]:
        """Return the part of a question that names the labels it is about."""
        about = {"labels": self.roster.pseudonyms_of(labels), "numbers": labels.tolist(), "share": self.share}
        return about | searching(self.search)

    def tensors(self) -> dict[str, Tensor]:
        tensors = self.roster.tensors()
        tensors |= {f"set_sizes.{party}": torch.from_numpy(sizes) for party, sizes in self.set_sizes.items()}
        holders = {party: torch.from_numpy(each.astype(np.int64)) for party, each in self.holders.items()}
        tensors |= {f"holders.{party}": each for party, each in holders.items()}
        if self.knowledge is not None:
            assert isinstance(self.knowledge.labels, Correlations | LabelCounts)
            tensors |= self.knowledge.labels.tensors()
        tensors |= {} if self.buckets is None else self.buckets.tensors(_BUCKETS)
        tensors |= {} if self.text is None else self.text.tensors()
        return tensors if self.ranking is None else tensors | self.ranking.tensors()

    def facts(self) -> dict[str, Any]:
        known, knowledge = self.knowledge, None
        if known is not None:
            assert isinstance(known.labels, Correlations | LabelCounts)
            knowledge = {
                **known.labels.facts(),
                "bytes_up": known.bytes_up,
                "bytes_down": known.bytes_down,
                "collection": known.collection,
                "noise_multiplier": known.noise_multiplier,
            }
        ranking = None if self.ranking is None else self.ranking.facts()
        facts = {"roster": self.roster.facts(), "share": self.share, "run": self.run}
        text = {} if self.text is None else {TEXT: self.text.facts()}
        return facts | {"knowledge": knowledge, "ranking": ranking} | searching(self.search) | text

    def save(self, run: Path) -> None:
        """Write it into a run folder, once, so that a resumed run need not ask again."""
        if not (run / CENSUS).exists():
            save_folder(run / CENSUS, self.tensors(), self.facts())

    @classmethod
    def load(cls, run: Path) -> Census | None:
        """Return the census of a run to resume, or None if the run was stopped before it."""
        if not (run / CENSUS).exists():
            if any((run / name).exists() for name in ("checkpoint", "checkpoint.old")):
                raise FedalcError(f"{run / CENSUS}: is missing; without it, rows cannot be matched to labels")
            return None
        tensors, facts = load_folder(run / CENSUS)
        try:
            return cls.restored(tensors, facts)
        except (KeyError, TypeError, ValueError) as error:
            raise FedalcError(f"{run / CENSUS}: damaged, its parts do not match: {error}") from None

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Census:
        roster = Roster.restored(tensors, facts["roster"])
        prefix = "set_sizes."
        sizes = {int(k.removeprefix(prefix)): v.numpy() for k, v in tensors.items() if k.startswith(prefix)}
        knowledge = None
        if facts["knowledge"] is not None:
            saved, labels = dict(facts["knowledge"]), None
            if "mean_set_size" in saved:
                labels = LabelCounts.restored(tensors, saved.pop("mean_set_size"))
            knowledge = LabelKnowledge(labels or Correlations.restored(tensors, saved.pop("instances")), **saved)
        ranking: AnyHeldOut | None = None
        if facts.get("ranking") is not None:
            by_sums = facts["ranking"].get("by") == "sums"
            held_out = (tensors, facts["ranking"])
            ranking = HeldOutBuckets.restored(*held_out, roster) if by_sums else HeldOutRecords.restored(*held_out)
        run, search = str(facts.get("run", "")), str(facts.get(SEARCH, ""))
        text = Agreement.restored(tensors, facts[TEXT]) if TEXT in facts else None
        buckets, holders = BucketSums.restored(tensors, _BUCKETS), restored_holders(tensors)
        return cls(roster, knowledge, sizes, facts["share"], run, ranking, search, holders, text, buckets)


def question(settings: Experiment, share: float, run: str, search: str = "") -> RecordDict:
    """Return the content of all messages before round 1: `query.hello`, `query.label_sets`, `query.held_out`."""
    search = search or (for_parties(settings) if settings.tuning.search else "")
    return RecordDict({"task": task(settings, run, share=share, **searching(search))})


def searching(search: str) -> dict[str, Any]:
    """Return the part of a question, or of the facts, that only a run with a search for settings has."""
    return {SEARCH: search} if search else {}


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
    known = _few_enough_labels(parties, _distinct_names(came), most_labels)
    known = _same_features(parties, known)
    known = _enough_drawn(parties, settings, known)
    shared = settings.clients == "parties"
    if shared:  # the order of clients is that of a simulation, where parties are known by name
        known = dict(sorted(known.items(), key=lambda item: item[1].client))
    elif max(Counter(label for who in known.values() for label in who.labels).values()) > 1:
        parties.say('labels: several parties claim the same label; if they are to share it, set clients = "parties"')
    if settings.collection.by == "sums":
        return replace(_by_sums(parties, settings, share, run, known, ranks, search), text=text)
    if not settings.uses_labels:
        roster, _ = _roster(parties, known, shared)
        parties.say(who_is_in(roster))
        ranking = _held_out_records(parties, settings, share, run, known, roster) if ranks else None
        return Census(roster, None, {}, share, run, ranking, search, text=text)
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
    roster, nodes = _roster(parties, known, shared, set(column) | stated)
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
        roster, nodes = _roster(
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


def who_is_in(roster: Roster) -> str:
    """Return one line for the log. Log noised counts only after the run is charged for them and they are saved."""
    instances = f"{int(roster.counts.sum())} instances{' (noised)' * roster.is_noised}"
    shared = int((np.bincount(roster.label_of) > 1).sum())
    several = f" ({shared} at several parties)" if shared else ""
    return f"{len(roster.parties)} parties with {roster.label_count} labels{several} and {instances}"


def _few_enough_labels(parties: Parties, known: dict[int, Introduction], most: int) -> dict[int, Introduction]:
    for who in known.values():
        if len(who.labels) > most:
            parties.leave_out(0, who.client, too_many_labels(len(who.labels), most))
    few_enough = {node: who for node, who in known.items() if len(who.labels) <= most}
    if not few_enough:
        raise FedalcError(f"every party claims more than {most} labels (--max-labels-per-party)")
    return few_enough


def _same_features(parties: Parties, known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Return the parties that have the most common number of features."""
    (usual, often), *others = Counter(who.features for who in known.values()).most_common()
    if others and others[0][1] == often:
        counts = listed([f"{who.client} ({who.features})" for who in known.values()])
        raise FedalcError(f"the parties' data has different numbers of features, and none is the most common: {counts}")
    for who in known.values():
        if who.features != usual:
            parties.leave_out(0, who.client, f"its data has {who.features} features, most have {usual}")
    return {node: who for node, who in known.items() if who.features == usual}


def _enough_drawn(parties: Parties, settings: Experiment, known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Return the parties that accept `client.sample` with the default `--fewest` (the server knows no other)."""
    sample = settings.client.sample
    problems = {node: sample_problem(np.array(who.counts), sample, FEWEST) for node, who in known.items()}
    if all(problems.values()):
        raise ConfigError(sample_problem(np.concatenate([who.counts for who in known.values()]), sample, FEWEST))
    for node, problem in problems.items():
        if problem:
            parties.leave_out(0, known[node].client, problem)
    return {node: who for node, who in known.items() if not problems[node]}


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


def _roster(
    parties: Parties, known: dict[int, Introduction], shared: bool, joined: set[bytes] | None = None
) -> tuple[Roster, dict[int, int]]:
    """Return the labels with their owners, and party → node. A label that several parties claim is left out, unless
    labels may be `shared`.

    `joined`: the labels that the join of label sets kept, if there was one.
    """
    parties.forget()
    nodes, introductions = list(known), list(known.values())
    claims = [(number, index) for number, who in enumerate(introductions) for index in range(len(who.labels))]
    names = [introductions[number].labels[index] for number, index in claims]
    rows = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(len(claims), -1)
    pseudonyms, label = distinct(rows)
    claimant = np.array([number for number, _ in claims])
    stands = np.ones(len(claims), dtype=bool)
    if not shared:
        stands, notes = settle(label, claimant, pseudonyms, [who.client for who in introductions])
        for note in notes:
            parties.say(f"labels: {note}")
    if joined is not None:
        stands &= np.array([name in joined for name in names])
    if not stands.any():
        raise FedalcError("no label is left that only one party claims")
    chosen = np.flatnonzero(stands)
    chosen = chosen[np.lexsort((claimant[chosen], label[chosen]))]
    owned = [(introductions[number], index) for number, index in (claims[claim] for claim in chosen)]
    members = sorted(set(claimant[chosen].tolist()))
    used, label_of = np.unique(label[chosen], return_inverse=True)
    roster = Roster(
        parties=tuple(introductions[number].client for number in members),
        pseudonyms=pseudonyms[used],
        label_of=label_of,
        owner=np.searchsorted(members, claimant[chosen]),
        counts=np.array([who.counts[index] for who, index in owned]),
        held_out=np.array([who.held_out[index] for who, index in owned]),
        feature_count=introductions[0].features,
        names=_label_names(owned, label_of),
    )
    node_of = {party: nodes[number] for party, number in enumerate(members)}
    for party, node in node_of.items():
        parties.connect(party, node)
    return roster, node_of


def _label_names(owned: list[tuple[Introduction, int]], label_of: np.ndarray) -> tuple[str, ...]:
    """Return the name of each label, of the first party that shares it; else its pseudonym."""
    names: dict[int, str] = {}
    for label, (who, index) in zip(label_of.tolist(), owned, strict=True):
        if who.names:
            names.setdefault(label, who.names[index])
    return tuple(
        names.get(label, owned[first][0].labels[owned[first][1]].hex())
        for label, first in enumerate(np.unique(label_of, return_index=True)[1].tolist())
    )


def _distinct_names(known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Rename parties that chose the same name, so that neither can speak for the other."""
    often = Counter(who.client for who in known.values())
    if len(often) == len(known):
        return known
    apart = {
        node: who if often[who.client] == 1 else replace(who, client=f"{who.client[:32]} (node {node})")
        for node, who in known.items()
    }
    return _distinct_names(apart)  # a party may have chosen a name that another one has now
