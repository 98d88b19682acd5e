"""Evaluation at the parties, on what each keeps out of training."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from flwr.app import MetricRecord, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.connections import Parties
from fedalc.deployment.flower.replies import Asked, Replies, well_formed
from fedalc.deployment.flower.wire import BadMessage, encoder_tensors, pack, pack_encoder, task
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.models.model import Model


class PartyEvaluation:
    """The other half of a Flower strategy. `traffic`: of the last evaluation."""

    def __init__(self, parties: Parties, census: Census, settings: Experiment) -> None:
        self.parties = parties
        self.census = census
        self.roster = census.roster
        self.settings = settings
        self.traffic = Ledger()

    def evaluate(self, model: Model, round_number: int) -> dict[str, float]:
        """Means over all that is kept. Nobody is waited for: empty, where nobody who is here has any."""
        self.traffic = Ledger()
        here = self.parties.present(self.roster, round_number, at_least=0)
        measuring = np.flatnonzero(self.roster.held_out)
        labels = {party: self.roster.labels_of(party, measuring) for party in sorted(here)}
        asked = {party: own for party, own in labels.items() if len(own)}
        asked = self.parties.awake(self.roster, asked, "evaluate", round_number, least=1)
        contents = self.configure_evaluate(model, asked)
        replies = self.parties.ask_punctual(self.roster, contents, "evaluate", round_number)
        return self.aggregate_evaluate(round_number, asked, replies)

    def configure_evaluate(self, model: Model, asked: Asked) -> Iterator[tuple[int, RecordDict]]:
        encoder = pack_encoder(model)
        for party, labels in asked.items():
            pseudonyms = [self.roster.pseudonyms[label].tobytes() for label in labels]
            asked_for = {"labels": pseudonyms, "numbers": labels.tolist(), "share": self.census.share}
            said = task(self.settings, self.census.run, **asked_for)
            rows = pack({"rows": model.W[torch.from_numpy(labels)]})
            self.traffic.down += payload_bytes([*encoder_tensors(model), model.W[: len(labels)]])
            yield self.parties.node_of[party], RecordDict({"task": said, **encoder, "rows": rows})

    def aggregate_evaluate(self, round_number: int, asked: Asked, replies: Replies) -> dict[str, float]:
        """Weighted by how many instances each party said at the start that it keeps: not by what it says now."""
        names = ("score", "loss") if self.settings.client.loss == "hinge" else ("score",)
        totals, weights = dict.fromkeys(names, 0.0), 0

        def read(content: RecordDict, party: int) -> tuple[int, dict[str, float]]:
            nothing = _has_nothing(content)
            exactly(content, {"metrics": {"num-examples"} if nothing else {*names, "num-examples"}})
            if nothing:
                return 0, dict.fromkeys(names, 0.0)
            return int(self.roster.held_out[asked[party]].sum()), _metrics(content, names)

        for weight, metrics in well_formed(self.parties, self.roster, round_number, replies, read):
            totals = {name: total + weight * metrics[name] for name, total in totals.items()}
            weights += weight
        return {f"party {name}": total / weights for name, total in totals.items()} if weights else {}


def _has_nothing(content: RecordDict) -> bool:
    """A party that keeps nothing of these labels out of training: with noised counts the server does not know it."""
    said = content.get("metrics")
    return isinstance(said, MetricRecord) and said.get("num-examples") == 0


def _metrics(content: RecordDict, names: tuple[str, ...]) -> dict[str, float]:
    said = content.get("metrics")
    values = {name: said.get(name) for name in names} if isinstance(said, MetricRecord) else {}
    if not values or not all(isinstance(v, float) and math.isfinite(v) for v in values.values()):
        raise BadMessage("no metrics, or none that are finite numbers")
    return {name: float(value) for name, value in values.items() if isinstance(value, float)}
