"""The records of owners, as both engines take them for sums and updates with differential privacy of whole records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags, hstack

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.seeds import derived_seed
from fedalc.data.federation import Federation
from fedalc.data.records import record_numbers
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from fedalc.labels.privacy import NoiseShares, SecureGenerator
from fedalc.labels.privacy.record_sums import UNIT
from fedalc.methods import Method
from fedalc.models.encoders import Encoder, SparseRows, make_batch

MARGIN = 1e-9  # rows are this much shorter than 1, so that rounding in double precision cannot make them longer


class Owned(NamedTuple):
    """Records, and the owners that count them here."""

    x: csr_matrix  # what θ is multiplied with, in double precision, no row longer than 1
    owners: csr_matrix  # records × labels: 1 for each owner
    sizes: np.ndarray  # m of each record
    parts: np.ndarray  # the part of the record that each of these owners counts: 1/h, if h parties have the record

    @property
    def times(self) -> np.ndarray:
        """How many owners each record has here."""
        return np.diff(self.owners.indptr).astype(np.int64)


class OwnedRecords:
    """The records of a federation. `by_client`: one client after the other, as real owners would; otherwise block by
    block, each record with all its owners at once. The sums are the same whole numbers. `clients`: those whose records
    are meant, with `by_client` (default: all)."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        settings: Experiment,
        encoder: Encoder,
        by_client: bool,
        clients: np.ndarray | None = None,
    ) -> None:
        if distributed.here().count > 1:
            raise ConfigError("private records need a single process", "privacy.mechanism")
        if settings.collection.identity == "content":
            federation = each_once(federation, record_numbers(federation.features))
        self.federation, self.settings, self.encoder, self.by_client = federation, settings, encoder, by_client
        self.clients = federation.clients if clients is None else clients
        self.sizes, self.multiplier = _set_sizes(method), _multiplier(method)

    def __iter__(self) -> Iterator[Owned]:
        step, labels = self.settings.block_rows, self.federation.labels
        if not self.by_client:
            for start in range(0, labels.shape[0], step):
                yield self._of_records(np.arange(start, min(start + step, labels.shape[0])))
            return
        for records, label, parts in self._of_clients():
            yield self._owned(records, np.full(len(records), label), parts)

    def noise(self, round_number: int) -> NoiseShares:
        """Return the noise of a round. It is drawn once: a second draw would take another look at the records."""
        privacy, seed = self.settings.privacy, self.settings.seed
        assert self.multiplier is not None
        if privacy.noise == "seeded":
            generator = SecureGenerator.seeded(derived_seed(seed, "record noise", round_number))
        else:
            generator = SecureGenerator(distributed.shared_key())
        return NoiseShares(self.multiplier, privacy.noise_parties, privacy.noise_dropouts, generator)

    def count_units(self) -> np.ndarray:
        """Return the number of records in units, as an array of one: each of m owners counts a whole part of 1/m."""
        total = 0
        if self.by_client:
            for records, _, parts in self._of_clients():
                total += int(np.trunc(UNIT * parts / self.sizes[records]).sum())
            return np.array([total])
        for start in range(0, self.federation.labels.shape[0], self.settings.block_rows):
            rows = np.arange(start, min(start + self.settings.block_rows, self.federation.labels.shape[0]))
            owners, parts = self._pairs(rows)
            total += int(np.trunc(UNIT * parts / self.sizes[rows][owners]).sum())
        return np.array([total])

    def traffic(self, numbers: int, down: int = 0) -> Ledger:
        """Return the traffic of a round. A label without a record sends noise or zeros too: who sends is not secret."""
        by_labels = self.settings.clients == "labels"
        everyone = self.federation.label_count if by_labels else self.federation.sender_count(self.federation.clients)
        return Ledger(everyone * down, 8 * everyone * numbers)

    def _of_clients(self) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """Yield records of one client, `block_rows` at most, its label, and the part of each that it counts."""
        for client in self.clients.tolist():
            held, label = self.federation.instances_of(client), int(self.federation.label_of[client])
            for start in range(0, len(held), self.settings.block_rows):
                some = held[start : start + self.settings.block_rows]
                parts = self.federation.parts_of(client, some)
                yield some, label, np.ones(len(some)) if parts is None else parts

    def _of_records(self, rows: np.ndarray) -> Owned:
        if self.federation.parts is None:
            owners = self.federation.labels[rows]
            owners = csr_matrix((np.ones(owners.nnz, np.int64), owners.indices, owners.indptr), owners.shape)
            return Owned(self._design(rows), owners, self.sizes[rows], np.ones(len(rows)))
        place, parts = self._pairs(rows)
        return self._owned(rows[place], self.federation.labels[rows].indices, parts)

    def _pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place in `rows` of each (record, label) pair, and its part."""
        held = self.federation.held[rows]
        parts = np.ones(held.nnz) if self.federation.parts is None else held.data
        return np.repeat(np.arange(len(rows)), np.diff(held.indptr)), parts

    def _owned(self, records: np.ndarray, labels: np.ndarray, parts: np.ndarray) -> Owned:
        """Return one row for each (record, owner) pair."""
        count = len(records)
        shape = (count, self.federation.label_count)
        owners = csr_matrix((np.ones(count, np.int64), labels, np.arange(count + 1)), shape)
        return Owned(self._design(records), owners, self.sizes[records], parts)

    @torch.no_grad()
    def _design(self, records: np.ndarray) -> csr_matrix:
        features = self.federation.features[records].astype(np.float64)
        batch = make_batch(features, records, torch.float64, "cpu")
        assert isinstance(batch, SparseRows)  # no encoder of pictures is linear
        columns = [csr_matrix(more.numpy()) for more in self.encoder.columns(batch)]
        return bounded(hstack([features] * self.encoder.uses_features + columns, format="csr"))


def each_once(federation: Federation, record: np.ndarray) -> Federation:
    """Return the federation with each record counted once by a client that has it in several rows. `record`: that of
    each row."""
    held = federation.held
    pairs = np.repeat(record, np.diff(held.indptr)) * held.shape[1] + held.indices
    _, pair, often = np.unique(pairs, return_inverse=True, return_counts=True)
    if often.max(initial=1) == 1:
        return federation
    return replace(federation, parts=(1.0 if federation.parts is None else federation.parts) / often[pair])


def _set_sizes(method: Method) -> np.ndarray:
    """Return m of each record, which the server has joined, or has told this party."""
    if method.told is not None:
        return np.rint(1 / method.told.shares).astype(np.int64)
    assert method.knowledge is not None and method.knowledge.set_sizes is not None
    return np.maximum(method.knowledge.set_sizes, 1)


def _multiplier(method: Method) -> float | None:
    """Return the noise of the run. A party works it out by itself."""
    return None if method.knowledge is None else method.knowledge.noise_multiplier


def bounded(x: csr_matrix) -> csr_matrix:
    """Return the rows, those longer than 1 scaled to (just below) 1."""
    length = np.sqrt(np.asarray(x.multiply(x).sum(axis=1)).ravel())
    return (diags((1 - MARGIN) / np.maximum(length, 1 - MARGIN)) @ x).tocsr()


def whole(x: csr_matrix, weight: np.ndarray) -> csr_matrix:
    """Return the weighted rows in units, rounded towards zero: no entry grows, so no record's part does."""
    scaled = (diags(weight * UNIT) @ x).tocsr()
    return csr_matrix((np.trunc(scaled.data).astype(np.int64), scaled.indices, scaled.indptr), scaled.shape)
