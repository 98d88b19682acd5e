"""Runs another engine party by party, so that a robust rule can combine the changes (`fedalc.engines.aggregation`).

The other engines add up the changes of all clients at once. Here they run the clients of one party at a time: the mean
over these is what a real party sends (engine `flower`). The cost is a step of θ's size per party, where `fused` alone
needs one step for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.engines import aggregation
from fedalc.engines.aggregation.lengths import Lengths, norm
from fedalc.engines.base import Engine, RoundResult, mean_rows
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.methods import Method
from fedalc.models.encoders import Chance
from fedalc.models.model import Model


class PartyByParty(Engine):
    """Runs `inner`, which has all clients in this process, once per party (`federation.party_of`)."""

    def __init__(self, inner: Engine, federation: Federation, method: Method, settings: Experiment) -> None:
        self.inner = inner
        self.federation = federation
        self.method = method
        self.settings = settings
        self.lengths = Lengths()

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        labels, party_of = self.federation.label_of[participants], self.federation.party_of[participants]
        counts = torch.from_numpy(self.federation.counts[participants]).to(model.W)
        p = self.method.weights(counts, labels).double().cpu().numpy()
        parties, party_index = np.unique(party_of, return_inverse=True)
        weights = dict(zip(parties.tolist(), np.bincount(party_index, p).tolist(), strict=True))
        rule = aggregation.begin(model.theta, weights, self.lengths, self.settings)
        lengths: dict[int, float] = {}
        rows: list[tuple[Tensor, Tensor, Tensor]] = []  # labels, their rows, and the weight of each
        loss = 0.0
        for index, party in enumerate(parties.tolist()):
            of_party = np.flatnonzero(party_index == index)
            sent = self.work_of(party, model, participants[of_party], chance, round_number)
            lengths[party] = norm(sent.change)
            rule.add(party, sent.change, lengths[party])
            loss += weights[party] * sent.loss
            if self.method.trains_rows:
                _, column = np.unique(labels[of_party], return_inverse=True)
                weight = aggregation.cut_like(np.bincount(column, p[of_party]), rule.weights[party])
                rows.append((sent.labels, sent.rows, torch.from_numpy(weight).to(model.W)))
        self.lengths.note(lengths)
        traffic = Ledger.of_round(model.theta, model.W, len(participants), self.method.trains_rows, len(parties))
        mean = mean_rows(*(torch.cat(part) for part in zip(*rows, strict=True))) if rows else (sent.labels, sent.rows)
        return RoundResult(rule.result(), *mean, loss, traffic)

    def work_of(self, party: int, model: Model, clients: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        """Return what the party sends."""
        return self.inner.run(model, clients, chance, round_number)

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        return self.inner.sums(model, participants)

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        return self.inner.curvature(model, direction, participants, round_number)

    def tensors(self) -> dict[str, Tensor]:
        return self.lengths.tensors()

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.lengths.restore(tensors)
