"""Evaluation at the parties, each on the instances that it keeps out of training."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from flwr.app import MetricRecord, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.exchange import Exchange
from fedalc.deployment.flower.totals import LabelsOf
from fedalc.deployment.flower.wire import BadMessage, encoder_tensors, pack, pack_encoder, task
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.models.model import Model

EVALUATE = "evaluate"


class PartyEvaluation:
    """`traffic`: of the last evaluation."""

    def __init__(self, parties: Parties, census: Census, settings: Experiment) -> None:
        self.parties = parties
        self.census = census
        self.roster = census.roster
        self.settings = settings
        self.traffic = Ledger()

    def evaluate(self, model: Model, round_number: int) -> dict[str, float]:
        """Return the means over all held-out instances, or {} if no connected party has any.

        A party's weight is the number of held-out instances that it stated at the start, not what it says now.
        """
        self.traffic = Ledger()
        labels_of = self._choose(round_number)
        exchange = self._send_model(model, labels_of, round_number)
        totals, weights = dict.fromkeys(self._names, 0.0), 0
        for reply in self.parties.punctual_replies(self.roster, exchange):
            party = self.parties.party_of[reply.node]
            metrics = self.parties.read(
                reply, round_number, self.roster.parties[party], partial(read_metrics, self._names)
            )
            if metrics:
                weight = int(self.roster.held_out[self.roster.clients_of(party, labels_of[party])].sum())
                totals = {name: total + weight * metrics[name] for name, total in totals.items()}
                weights += weight
        return {f"party {name}": total / weights for name, total in totals.items()} if weights else {}

    @property
    def _names(self) -> tuple[str, ...]:
        return ("score", "loss") if self.settings.client.loss == "hinge" else ("score",)

    def _choose(self, round_number: int) -> LabelsOf:
        """Return the connected parties with held-out instances, and the labels of these."""
        here = self.parties.present(self.roster, round_number, at_least=0)
        clients = np.flatnonzero(self.roster.held_out)
        labels_of = {party: self.roster.labels_of(party, clients) for party in sorted(here)}
        labels_of = {party: own for party, own in labels_of.items() if len(own)}
        awake = self.parties.awake(self.roster, labels_of, EVALUATE, round_number, least=1)
        return {party: own for party, own in labels_of.items() if party in awake}

    def _send_model(self, model: Model, labels_of: LabelsOf, round_number: int) -> Exchange:
        encoder = pack_encoder(model)
        exchange = self.parties.exchange(EVALUATE, round_number)
        for party, labels in labels_of.items():
            question = task(self.settings, self.census.run, **self.census.about(labels))
            rows = pack({"rows": model.W[torch.from_numpy(labels)]})
            self.traffic.down += payload_bytes([*encoder_tensors(model), model.W[: len(labels)]])
            exchange.send(self.parties.node_of[party], RecordDict({"task": question, **encoder, "rows": rows}))
        return exchange


def read_metrics(names: tuple[str, ...], content: RecordDict) -> dict[str, float]:
    """Return the named metrics; {} from a party without held-out instances, which noised counts may hide."""
    metrics = content.get("metrics")
    has_none = isinstance(metrics, MetricRecord) and metrics.get("num-examples") == 0
    exactly(content, {"metrics": {"num-examples"} if has_none else {*names, "num-examples"}})
    if has_none:
        return {}
    values = {name: metrics.get(name) for name in names} if isinstance(metrics, MetricRecord) else {}
    if not values or not all(isinstance(value, float) and math.isfinite(value) for value in values.values()):
        raise BadMessage("no metrics, or none that are finite numbers")
    return {name: float(value) for name, value in values.items() if isinstance(value, float)}
