"""Before round 1: who is there, which labels are whose, and, where the method learns from labels, which occur together.

The server sees pseudonyms of labels and keyed digests of instances, and joins those that are equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import MOST_LABELS_PER_PARTY
from fedalc.core.tensor_folder import load_folder, save_folder
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.limits import FEWEST, sample_problem
from fedalc.deployment.flower.roster import Roster
from fedalc.deployment.flower.wire import BadMessage, config, read_json, task, unpack
from fedalc.errors import ConfigError, DataError, FedalcError
from fedalc.labels.collection.disputes import listed, settle
from fedalc.labels.collection.join import distinct, join, set_sizes, too_many_labels
from fedalc.labels.collection.messages import Messages, byte_order, protocol_from
from fedalc.labels.collection.simulate import Collection
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import LabelKnowledge, protected
from fedalc.runs.folder import CENSUS
from fedalc.training.federated import planned_looks


@dataclass(frozen=True)
class Census:
    """`set_sizes`: by party, of each digest it sent (ascending, each once) how many labels the instance has.
    `share`: of its instances, what each party keeps out of training to measure on. `run`: the run id, which digests and
    pseudonyms are hashed for; empty in a run that began before there were any."""

    roster: Roster
    knowledge: LabelKnowledge | None
    set_sizes: dict[int, np.ndarray]
    share: float
    run: str

    def tensors(self) -> dict[str, Tensor]:
        tensors = self.roster.tensors()
        tensors |= {f"set_sizes.{party}": torch.from_numpy(sizes) for party, sizes in self.set_sizes.items()}
        if self.knowledge is not None:
            assert isinstance(self.knowledge.labels, Correlations)
            tensors |= self.knowledge.labels.tensors()
        return tensors

    def facts(self) -> dict[str, Any]:
        known, said = self.knowledge, None
        if known is not None:
            assert isinstance(known.labels, Correlations)
            said = {
                "instances": known.labels.instances,
                "bytes_up": known.bytes_up,
                "bytes_down": known.bytes_down,
                "collection": known.collection,
                "noise_multiplier": known.noise_multiplier,
            }
        return {"roster": self.roster.facts(), "share": self.share, "run": self.run, "knowledge": said}

    def save(self, run: Path) -> None:
        """Once: in a run folder, so that a resumed run need not ask again."""
        if not (run / CENSUS).exists():
            save_folder(run / CENSUS, self.tensors(), self.facts())

    @classmethod
    def load(cls, run: Path) -> Census | None:
        """Of a run that is resumed; none, if it was stopped before there was one."""
        if not (run / CENSUS).exists():
            if any((run / name).exists() for name in ("checkpoint", "checkpoint.old")):
                raise FedalcError(f"{run / CENSUS}: is missing, and without it nobody knows which row is whose label")
            return None
        tensors, facts = load_folder(run / CENSUS)
        try:
            return cls.restored(tensors, facts)
        except (KeyError, TypeError, ValueError) as error:
            raise FedalcError(f"{run / CENSUS}: damaged, it does not fit together: {error}") from None

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Census:
        roster = Roster.restored(tensors, facts["roster"])
        prefix = "set_sizes."
        sizes = {int(k.removeprefix(prefix)): v.numpy() for k, v in tensors.items() if k.startswith(prefix)}
        said = facts["knowledge"]
        knowledge = None
        if said is not None:
            said = dict(said)
            labels = Correlations.restored(tensors, said.pop("instances"))
            knowledge = LabelKnowledge(labels, **said)
        return cls(roster, knowledge, sizes, facts["share"], str(facts.get("run", "")))


def question(settings: Experiment, share: float, run: str) -> RecordDict:
    """What a node is asked before round 1: who it is, and for its label sets."""
    return RecordDict({"task": task(settings, run, share=share)})


def take_census(
    parties: Parties, settings: Experiment, share: float, run: str, most_labels: int = MOST_LABELS_PER_PARTY
) -> Census:
    """Ask everyone who is there. `share` of its instances is what a party keeps out of training.

    With noised counts (`privacy`), the census has these alone: no exact number of instances is kept or said, and the
    noised ones are not said here (`who_is_in`).
    """
    private = settings.privacy.mechanism is not None
    if private and settings.client.sample < 1:
        raise ConfigError(
            "who can take part would show how many instances a label has, which noise is to hide; use 1",
            "client.sample",
        )
    known = _few_enough_labels(parties, _distinct_names(parties.gather()), most_labels)
    known = _same_features(parties, known)
    known = _enough_drawn(parties, settings, known)
    if not settings.uses_labels:
        roster, _ = _roster(parties, known)
        parties.say(who_is_in(roster))
        return Census(roster, None, {}, share, run)
    messages = _label_sets(parties, settings, share, run, known)
    known = {node: who for node, who in known.items() if node in messages}
    if not known:
        raise FedalcError("no party's label sets could be used")
    joined = join([messages[node] for node in known], say_counts=not private)
    for note in joined.notes:
        parties.say(f"label sets: {note}")
    column = {pseudonym.tobytes(): place for place, pseudonym in enumerate(joined.pseudonyms)}
    roster, nodes = _roster(parties, known, set(column))
    label_sets = joined.label_sets[:, [column[pseudonym.tobytes()] for pseudonym in roster.pseudonyms]]
    exact = settings.client.loss == "square" and settings.client.set_size == "exact"
    sizes = {}
    for party, node in nodes.items() if exact else ():
        sizes[party] = set_sizes(joined, distinct(messages[node].digests)[0])
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
    # The sizes of label sets go to their owners with each round's message, and are counted there.
    collection = Collection(label_sets, np.empty(0), bytes_up, 0, facts)
    knowledge = protected(settings, collection, planned_looks(settings, 1))
    if private:
        assert isinstance(knowledge.labels, Correlations)
        roster = roster.noised(knowledge.labels.counts)
    else:
        parties.say(who_is_in(roster))
    return Census(roster, knowledge, sizes, share, run)


def who_is_in(roster: Roster) -> str:
    """In words. Noised counts are said only once the run is charged for them, and they are kept."""
    instances = f"{int(roster.counts.sum())} instances of these{' (noised)' * roster.is_noised}"
    return f"{len(roster.parties)} parties with {roster.label_count} labels, {instances}"


def _few_enough_labels(parties: Parties, known: dict[int, Introduction], most: int) -> dict[int, Introduction]:
    for who in known.values():
        if len(who.labels) > most:
            parties.leave_out(0, who.client, too_many_labels(len(who.labels), most))
    kept = {node: who for node, who in known.items() if len(who.labels) <= most}
    if not kept:
        raise FedalcError(f"every party claims more than {most} labels (--max-labels-per-party)")
    return kept


def _same_features(parties: Parties, known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Those with as many features as most have."""
    (usual, often), *others = Counter(who.features for who in known.values()).most_common()
    if others and others[0][1] == often:
        said = listed([f"{who.client} ({who.features})" for who in known.values()])
        raise FedalcError(f"the parties' data has different numbers of features, and none is the usual one: {said}")
    for who in known.values():
        if who.features != usual:
            parties.leave_out(0, who.client, f"its data has {who.features} features, most have {usual}")
    return {node: who for node, who in known.items() if who.features == usual}


def _enough_drawn(parties: Parties, settings: Experiment, known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Those that will answer with the sample of each label that is wanted, unless they chose another `--fewest`."""
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
    contents = ((node, question(settings, share, run)) for node in known)
    found: dict[int, Messages] = {}
    for node, reply in parties.ask(contents, "query.label_sets", "0"):
        try:
            if isinstance(reply, str):
                raise BadMessage(reply)
            found[node] = _read_messages(reply.content, known[node], run)
        except (BadMessage, DataError) as error:
            parties.leave_out(0, known[node].client, str(error))
    return found


def _read_messages(content: RecordDict, who: Introduction, run: str) -> Messages:
    """Of the labels that it has instances of to train on, and each with a message."""
    exactly(content, {"sender": ("client", "protocol"), "messages": None})
    said = config(content, "sender", {"client": str, "protocol": str})
    protocol = protocol_from(read_json(said["protocol"], "its protocol"))
    if protocol.run != run:
        raise BadMessage(f"digests for run id {protocol.run or 'none'}, and this run's is {run or 'none'}")
    trained = {label for label, count in zip(who.labels, who.counts, strict=True) if count}
    wanted = {
        "pseudonyms": ("uint8", (len(trained), len(who.labels[0]))),
        "digests": ("uint8", (None, protocol.digest_bytes)),
        "labels": ("uint32", (None,)),
    }
    messages = Messages(protocol, who.client, **unpack(content, "messages", wanted))
    if {pseudonym.tobytes() for pseudonym in messages.pseudonyms} != trained:
        raise BadMessage("the labels of its messages are not those it introduced itself with")
    if empty := len(messages.labels_without_messages):
        raise BadMessage(f"claims {empty} labels without a message")
    return messages


def _roster(
    parties: Parties, known: dict[int, Introduction], kept: set[bytes] | None = None
) -> tuple[Roster, dict[int, int]]:
    """Each label with the one party that has it, and party → node. A label that several claim is set aside.

    `kept`: the labels that were left in the join, where there was one.
    """
    nodes = list(known)
    claims = [(label, place) for place, node in enumerate(nodes) for label in known[node].labels]
    rows = np.frombuffer(b"".join(label for label, _ in claims), dtype=np.uint8).reshape(len(claims), -1)
    pseudonyms, label = distinct(rows)
    claimant = np.array([place for _, place in claims])
    stands, notes = settle(label, claimant, pseudonyms, [known[node].client for node in nodes])
    for note in notes:
        parties.say(f"labels: {note}")
    if kept is not None:
        stands &= np.array([name in kept for name, _ in claims])
    if not stands.any():
        raise FedalcError("no label is left that one party alone has")
    of_claim = [
        (known[nodes[place]], index) for place in range(len(nodes)) for index in range(len(known[nodes[place]].labels))
    ]
    chosen = np.flatnonzero(stands)
    chosen = chosen[byte_order(rows[chosen])]
    owners = claimant[chosen]
    members = sorted(set(owners.tolist()))
    roster = Roster(
        parties=tuple(known[nodes[place]].client for place in members),
        pseudonyms=rows[chosen],
        owner=np.searchsorted(members, owners),
        counts=np.array([of_claim[c][0].counts[of_claim[c][1]] for c in chosen]),
        held_out=np.array([of_claim[c][0].held_out[of_claim[c][1]] for c in chosen]),
        feature_count=known[nodes[0]].features,
        names=tuple(_label_name(*of_claim[c]) for c in chosen),
    )
    node_of = {party: nodes[place] for party, place in enumerate(members)}
    parties.node_of.update(node_of)
    return roster, node_of


def _distinct_names(known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Two that call themselves alike are told apart, so that neither speaks for the other."""
    often = Counter(who.client for who in known.values())
    if len(often) == len(known):
        return known
    apart = {
        node: who if often[who.client] == 1 else replace(who, client=f"{who.client[:32]} (node {node})")
        for node, who in known.items()
    }
    return _distinct_names(apart)  # one may have called itself as another is called now


def _label_name(who: Introduction, place: int) -> str:
    return who.names[place] if who.names else who.labels[place].hex()
