"""Which of the parties that introduced themselves are admitted to a run, and which labels each of them owns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.introductions import Introduction
from fedalc.deployment.flower.limits import FEWEST, sample_problem
from fedalc.deployment.flower.roster import Roster
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.disputes import listed, settle
from fedalc.labels.collection.join import distinct, too_many_labels


def few_enough_labels(parties: Parties, known: dict[int, Introduction], most: int) -> dict[int, Introduction]:
    for who in known.values():
        if len(who.labels) > most:
            parties.leave_out(0, who.client, too_many_labels(len(who.labels), most))
    few_enough = {node: who for node, who in known.items() if len(who.labels) <= most}
    if not few_enough:
        raise FedalcError(f"every party claims more than {most} labels (--max-labels-per-party)")
    return few_enough


def same_features(parties: Parties, known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Return the parties that have the most common number of features."""
    (usual, often), *others = Counter(who.features for who in known.values()).most_common()
    if others and others[0][1] == often:
        counts = listed([f"{who.client} ({who.features})" for who in known.values()])
        raise FedalcError(f"the parties' data has different numbers of features, and none is the most common: {counts}")
    for who in known.values():
        if who.features != usual:
            parties.leave_out(0, who.client, f"its data has {who.features} features, most have {usual}")
    return {node: who for node, who in known.items() if who.features == usual}


def enough_drawn(parties: Parties, settings: Experiment, known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Return the parties that accept `client.sample` with the default `--fewest` (the server knows no other)."""
    sample = settings.client.sample
    problems = {node: sample_problem(np.array(who.counts), sample, FEWEST) for node, who in known.items()}
    if all(problems.values()):
        raise ConfigError(sample_problem(np.concatenate([who.counts for who in known.values()]), sample, FEWEST))
    for node, problem in problems.items():
        if problem:
            parties.leave_out(0, known[node].client, problem)
    return {node: who for node, who in known.items() if not problems[node]}


def make_roster(
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


def distinct_names(known: dict[int, Introduction]) -> dict[int, Introduction]:
    """Rename parties that chose the same name, so that neither can speak for the other."""
    often = Counter(who.client for who in known.values())
    if len(often) == len(known):
        return known
    apart = {
        node: who if often[who.client] == 1 else replace(who, client=f"{who.client[:32]} (node {node})")
        for node, who in known.items()
    }
    return distinct_names(apart)  # a party may have chosen a name that another one has now


def check_names(known: Mapping[int, Introduction]) -> None:
    """Refuse two parties of one name, where parties know each other by name: secure sums, private set intersection."""
    name, often = Counter(who.client for who in known.values()).most_common(1)[0]
    if often > 1:
        raise FedalcError(
            f"{often} parties are named {name!r}, and parties know each other by name here; start each with a name of "
            "its own (--client)"
        )
