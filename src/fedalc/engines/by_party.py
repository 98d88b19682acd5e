"""Runs another engine party by party, so that a robust rule can combine the changes (`fedalc.engines.aggregation`), or
each party's part is sent in fewer bytes (`fedalc.engines.compression`).

The other engines add up the changes of all clients at once. Here they run the clients of one party at a time: the mean
over these is what a real party sends (engine `flower`). The cost is a step of θ's size per party, where `fused` alone
needs one step for all; with `compression.rows = "own"`, of the size of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.progress_events import watched
from fedalc.data.federation import Federation
from fedalc.engines import aggregation
from fedalc.engines.aggregation.lengths import Lengths, norm
from fedalc.engines.base import Engine, RoundResult, mean_rows
from fedalc.engines.compression import (
    Arrays,
    Compression,
    KeptErrors,
    KnownRows,
    array_bytes,
    own_features,
    with_theta,
)
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger, payload_bytes
from fedalc.methods import Method
from fedalc.models.encoders import Chance, Encoder, SparseRows, make_batch
from fedalc.models.model import Model


class PartyByParty(Engine):
    """Runs `inner`, which has all clients in this process, once per party (`federation.party_of`)."""

    def __init__(self, inner: Engine, federation: Federation, method: Method, settings: Experiment) -> None:
        self.inner = inner
        self.federation = federation
        self.method = method
        self.settings = settings
        self.lengths = Lengths()
        self.compression = Compression.of(settings)
        self.known_rows, self.errors = KnownRows(), KeptErrors()
        self._features: dict[int, np.ndarray] = {}

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
        link = None if self.compression is None else Link(self, self.compression, model, round_number)
        received = model if link is None else link.model
        for index, party in enumerate(parties.tolist()):
            of_party = np.flatnonzero(party_index == index)
            sent = self.work_of(party, received, participants[of_party], chance, round_number)
            if link is not None:
                sent = replace(sent, change=link.sent(party, participants[of_party], sent.change))
            lengths[party] = norm(sent.change)
            rule.add(party, sent.change, lengths[party])
            loss += weights[party] * sent.loss
            if self.method.trains_rows:
                _, column = np.unique(labels[of_party], return_inverse=True)
                weight = aggregation.cut_like(np.bincount(column, p[of_party]), rule.weights[party])
                rows.append((sent.labels, sent.rows, torch.from_numpy(weight).to(model.W)))
        self.lengths.note(lengths)
        theta = model.theta if link is None else []
        traffic = Ledger.of_round(theta, model.W, len(participants), self.method.trains_rows, len(parties))
        traffic.add(Ledger() if link is None else link.traffic)
        mean = mean_rows(*(torch.cat(part) for part in zip(*rows, strict=True))) if rows else (sent.labels, sent.rows)
        return RoundResult(rule.result(), *mean, loss, traffic, at=None if link is None else link.at)

    def work_of(self, party: int, model: Model, clients: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        """Return what the party sends."""
        return self.inner.run(model, clients, chance, round_number)

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        if self.compression is None:
            return self.inner.sums(model, participants)
        W, size = model.W, model.encoder.width
        gram = torch.zeros((size, size) if self.method.sends_gram else (0, 0), dtype=torch.float64, device=W.device)
        cross, constant = torch.zeros(size, W.shape[1], dtype=torch.float64, device=W.device), 0.0
        traffic, party_of = Ledger(), self.federation.party_of[participants]
        for party in watched("parties", np.unique(party_of).tolist(), len(np.unique(party_of))):
            clients = participants[party_of == party]
            packed, of_party = self._packed_sums(self.compression, model, party, clients)
            traffic.up += array_bytes(packed)
            found = self.compression.read_sums(packed, size, len(clients), W.dtype)
            at = torch.from_numpy(found.rows).to(W.device)
            labels = torch.from_numpy(self.federation.label_of[clients]).to(W.device)
            cross.index_add_(0, at, found.cross.to(cross) @ W[labels].double())
            if len(found.gram):
                gram[at.unsqueeze(1), at] += found.gram.to(gram)
            constant += of_party
        pairs = int(self.federation.counts[participants].sum())
        return Sums(gram.to(W), cross.to(W), constant, pairs, traffic)

    @torch.no_grad()
    def _packed_sums(
        self, compression: Compression, model: Model, party: int, clients: np.ndarray
    ) -> tuple[Arrays, float]:
        """Return what the party sends of the sums of its clients, and its constant."""
        features: np.ndarray | None = self._features_of(party)
        rows = compression.rows_of(model.encoder, features)
        encoder, size = model.encoder, model.encoder.width
        if rows is None:
            rows, features = np.arange(size), None
        elif features is not None:
            encoder = encoder.for_features(torch.from_numpy(features).to(model.W.device))
        gram, cross, constant, records = self._sums_of(encoder, model.W, features, clients, len(rows))
        return compression.sums(gram, cross, rows, size, records, self._number_of(clients)), constant

    def _sums_of(
        self, encoder: Encoder, like: Tensor, features: np.ndarray | None, clients: np.ndarray, size: int
    ) -> tuple[Tensor, Tensor, float, int]:
        """Return G and B of some clients, with a column of B for each and the rows of these features alone, the
        constant and the number of records."""
        instances, pairs = self.federation.pairs_of(clients)
        label = torch.from_numpy(self.federation.label_of[clients]).to(like.device)
        weights, block = self.method.label_weights[label], self.settings.block_rows
        gram, cross = (
            like.new_zeros((size, size) if self.method.sends_gram else (0, 0)),
            like.new_zeros(size, len(label)),
        )
        for start in range(0, len(instances), block):
            some, part = instances[start : start + block], pairs[start : start + block].tocoo()
            own = self.federation.features[some]
            batch = make_batch(
                own if features is None else own[:, features], self.federation.keys_of(some), like.dtype, like.device
            )
            assert isinstance(batch, SparseRows)  # no encoder of pictures is linear
            x = encoder.design(batch).dense()
            at, client = (torch.from_numpy(index.astype(np.int64)).to(like.device) for index in (part.row, part.col))
            counted = torch.from_numpy(part.data).to(like)
            targets = like.new_zeros(len(some), len(label)).index_put_((at, client), counted)
            cross += x.T @ targets
            if self.method.sends_gram:
                of_pair = self.method.share(label[client], torch.from_numpy(some).to(like.device)[at]) * counted
                gram += (x * like.new_zeros(len(some)).index_add_(0, at, of_pair).unsqueeze(1)).T @ x
        counts = torch.from_numpy(np.asarray(pairs.sum(axis=0), dtype=np.float64).ravel()).to(like)
        return gram, cross * weights, float((counts * weights.square()).sum()), len(instances)

    def _features_of(self, party: int) -> np.ndarray:
        """Return the features of the party's records."""
        if party not in self._features:
            of_party = self.federation.party_of[self.federation.clients] == party
            self._features[party] = own_features(self.federation, self.federation.clients[of_party])
        return self._features[party]

    def _number_of(self, clients: np.ndarray) -> int:
        """Return the number that a real party with these clients draws by."""
        return min(map(self.federation.number_of, clients.tolist()))

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        return self.inner.curvature(model, direction, participants, round_number)

    def tensors(self) -> dict[str, Tensor]:
        return self.lengths.tensors() | self.known_rows.tensors() | self.errors.tensors()

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.lengths.restore(tensors)
        self.known_rows.restore(tensors)
        self.errors.restore(tensors)


class Link:
    """What travels between server and parties in one round, packed and unpacked, and its bytes."""

    def __init__(self, engine: PartyByParty, compression: Compression, model: Model, round_number: int) -> None:
        self.engine, self.compression, self.round_number = engine, compression, round_number
        self.outgoing = compression.outgoing(model, round_number)
        self.at = self.outgoing.received()
        self.model = model if self.at is None else with_theta(model, self.at)
        self.traffic = Ledger()
        self._statistics = payload_bytes(model.buffers)

    def sent(self, party: int, clients: np.ndarray, change: list[Tensor]) -> list[Tensor]:
        """Return the party's change as the server reads it. Its rows of θ were those that the server knew before."""
        engine, compression, encoder = self.engine, self.compression, self.model.encoder
        rows = compression.rows_of(encoder, engine._features_of(party) if compression.own_rows else None)
        known = engine.known_rows.of.get(party)
        self.traffic.down += self._statistics + sum(map(array_bytes, self.outgoing.arrays(known)))
        if compression.keeps_errors:
            change = engine.errors.added(party, change)
        packed = compression.change(change, encoder, rows, self.round_number, engine._number_of(clients))
        self.traffic.up += sum(map(array_bytes, packed))
        read, told = compression.read_change(packed, encoder, sparse=True)
        engine.known_rows.note(party, told)
        if compression.keeps_errors:
            engine.errors.keep(party, change, read)
        return read
