"""Evaluation at the parties by ranking: each ranks all labels for its held-out records and counts hits of its own.

The sums give P@k and nDCG@k of the union of held-out records, exactly (`evaluation.owner_hits`), so the best round can
be kept, as in a simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.schema import SelectionSettings
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.census import AnyHeldOut, Census
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.exchange import Exchange, Reply
from fedalc.deployment.flower.held_out_records import HeldOutRecords, tells_sizes
from fedalc.deployment.flower.sum_messages import WEIGHTS
from fedalc.deployment.flower.totals import LabelsOf
from fedalc.deployment.flower.wire import (
    BadMessage,
    Shape,
    pack,
    pack_all_rows,
    pack_encoder,
    record_bytes,
    task,
    unpack,
)
from fedalc.engines.traffic import Ledger
from fedalc.evaluation.metrics import CUTS
from fedalc.evaluation.owner_hits import RANKED_BY, figures
from fedalc.models.model import Model
from fedalc.training.best_round import BestRound

RANK = "evaluate.rank"
OF_ALL = -1  # in place of a party: the hits of all of them, from a secure sum
SLACK = 1e-9  # relative, for sums of floating-point gains


@dataclass(frozen=True)
class PartyHits:
    """Hits of each party that answered, as `count_hits` returns them; `records`: distinct ones behind them."""

    of: dict[int, np.ndarray] = field(default_factory=dict)
    records: float = 0

    @property
    def figures(self) -> dict[str, float]:
        """P@k and nDCG@k in percent, or {} if no party answered."""
        return figures(np.sum(list(self.of.values()), axis=0), self.records) if self.of else {}


class PartyRanking:
    """`traffic`: of the last evaluation. `silent`: the parties without a usable answer to it. `said`: more values of
    the question."""

    kind = RANK

    def __init__(self, parties: Parties, census: Census, settings: Experiment, records: AnyHeldOut) -> None:
        self.parties = parties
        self.census = census
        self.roster = census.roster
        self.settings = settings
        self.records = records
        self.traffic = Ledger()
        self.silent: set[int] = set()
        self.said: dict[str, Any] = {}

    def evaluate(self, model: Model, round_number: int) -> PartyHits:
        """Return the hits of the parties that answered. Parties with too few held-out records do not count."""
        return self.compare(model, round_number)[0]

    def compare(self, model: Model, round_number: int, weights: np.ndarray | None = None) -> list[PartyHits]:
        """Return the hits for each weighting of the labels' scores (a row of `weights`)."""
        assert isinstance(self.records, HeldOutRecords)  # without it there are secure sums, which `SecureRanking` has
        self.traffic, self.silent = Ledger(), set()
        labels_of = self._choose(round_number)
        exchange = self._send(model, labels_of, round_number, weights)
        count = None if weights is None else len(weights)
        hits = {}
        for reply in self._replies(exchange):
            party = self.parties.party_of[reply.node]
            read = partial(
                read_hits,
                self.records.most_hits(party),
                tells_sizes(self.settings),
                weightings=count,
                with_holders=party in self.records.holders,
            )
            found = self.parties.read(reply, round_number, self.roster.parties[party], read)
            if found is None:
                self.silent.add(party)
            elif len(found):
                hits[party] = found
                self.traffic.up += found.nbytes
        found_records = self.records.count(hits)
        if found_records < len(self.records):
            self.parties.say(
                f"round {round_number}: {len(hits)} of {len(self.records.parties)} parties ranked labels, for "
                f"{found_records} of {len(self.records)} held-out records"
            )
        if weights is None:
            return [PartyHits(hits, found_records) if found_records else PartyHits()]
        return [PartyHits({p: found[at] for p, found in hits.items()}, found_records) for at in range(len(weights))]

    def _replies(self, exchange: Exchange) -> Iterator[Reply]:
        return self.parties.punctual_replies(self.roster, exchange)

    def _choose(self, round_number: int) -> LabelsOf:
        """Return the connected parties with held-out records, and all of their labels that have some."""
        here = self.parties.present(self.roster, round_number, at_least=0)
        clients = np.flatnonzero(self.roster.held_out)
        labels_of = {p: self.roster.labels_of(p, clients) for p in self.records.parties if p in here}
        awake = self.parties.awake(self.roster, labels_of, self.kind, round_number, least=1)
        return {party: own for party, own in labels_of.items() if party in awake}

    def _send(
        self, model: Model, labels_of: LabelsOf, round_number: int, weights: np.ndarray | None = None
    ) -> Exchange:
        """Send each party the encoder and all rows of W, one object each for all messages."""
        shared = self._shared(model)
        if weights is not None:
            shared[WEIGHTS] = pack({WEIGHTS: weights})
        exchange = self.parties.exchange(self.kind, round_number)
        for party, labels in labels_of.items():
            exchange.send(self.parties.node_of[party], self._content(party, labels, shared))
        return exchange

    def _shared(self, model: Model) -> dict[str, ArrayRecord]:
        absent = pack({"labels": self.roster.absent.astype(np.int32)})
        rows = {"all-rows": pack_all_rows(model.W), "absent": absent}
        return pack_encoder(model) | rows | self.records.told_to_all()

    def _content(self, party: int, labels: np.ndarray, shared: dict[str, ArrayRecord]) -> RecordDict:
        """Return the question for a party. `shared`: what all of them get."""
        about = self.census.about(labels) | {"label-count": self.roster.label_count} | self.said
        content = RecordDict({"task": task(self.settings, self.census.run, **about), **shared})
        self.traffic.down += sum(map(record_bytes, shared.values()))
        for name, record in (self.records.told_to(party, tells_sizes(self.settings)) | self._more(party)).items():
            content[name] = record
            self.traffic.down += record_bytes(record)
        return content

    def _more(self, party: int) -> dict[str, ArrayRecord]:
        """Return what else the server sends the party."""
        return {}


def read_hits(
    most: np.ndarray,
    with_gains: bool,
    content: RecordDict,
    weightings: int | None = None,
    with_holders: bool = False,
) -> np.ndarray:
    """Return a party's hits, if they are possible; an empty array if it has too few held-out records.

    `most`: the largest possible numbers. `weightings`: as many rows of hits were asked for. `with_holders`: a hit that
    h parties count is 1/h.
    """
    if "hits" not in content:
        metrics = content.get("metrics")
        exactly(content, {"metrics": {"num-examples"}})
        if not isinstance(metrics, MetricRecord) or metrics.get("num-examples") != 0:
            raise BadMessage("there are no hits")
        return np.empty(0)
    exactly(content, {"hits": None})
    shape = (len(CUTS),) if weightings is None else (weightings, len(CUTS))
    wanted: dict[str, tuple[str, Shape]] = {"counts": ("float64" if with_holders else "int64", shape)}
    arrays = unpack(content, "hits", wanted | ({"gains": ("float64", shape)} if with_gains else {}))
    found = np.concatenate([array.astype(np.float64) for array in arrays.values()], axis=-1)
    for row in np.atleast_2d(found):
        _check_possible(row, most, with_gains)
    return found


def _check_possible(found: np.ndarray, most: np.ndarray, with_gains: bool) -> None:
    cuts = len(CUTS)
    for name, value, limit in zip(RANKED_BY, found.tolist(), most.tolist(), strict=False):
        if not 0 <= value <= limit * (1 + SLACK):
            raise BadMessage(f"{value:.6g} hits for {name}, and its held-out records allow 0 to {limit:.6g}")
    if (np.diff(found[:cuts]) < 0).any():
        raise BadMessage("fewer hits among more labels")
    if with_gains and abs(found[cuts] - found[0]) > SLACK * max(found[0], 1):
        raise BadMessage("its gain of the top label is not its number of hits")


class BestAtParties(BestRound):
    """The best round by parties' hits. Parties come and go, so two rounds are compared by the parties that answered in
    both; without any, the earlier round stays."""

    def __init__(self, settings: SelectionSettings, metric: str) -> None:
        super().__init__(settings, keeps_model=True)
        self.metric = metric
        self._now: dict[int, np.ndarray] = {}
        self._best: dict[int, np.ndarray] = {}

    def consider_hits(self, round_number: int, hits: PartyHits, metrics: dict[str, float], model: Model) -> None:
        self._now = hits.of
        self.consider(round_number, hits.figures[self.metric], metrics, model)
        if self.chosen is not None and self.chosen["round"] == round_number:
            self._best = hits.of

    def _is_better(self, value: float) -> bool:
        which = RANKED_BY.index(self.metric)
        both = sorted(self._now.keys() & self._best.keys())
        if self.chosen is not None and both == [OF_ALL]:  # a secure sum, perhaps over other parties than before
            return value > float(self.chosen["value"])
        return self.chosen is None or sum(self._now[p][which] for p in both) > sum(self._best[p][which] for p in both)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"hits": {str(party): hits.tolist() for party, hits in self._best.items()}}

    def restore(self, tensors: dict[str, Tensor], facts: Mapping[str, Any], model: Model) -> None:
        super().restore(tensors, dict(facts), model)
        self._best = {int(party): np.array(hits) for party, hits in facts.get("hits", {}).items()}
