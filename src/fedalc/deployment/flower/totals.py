"""Add up the parties' replies to one question, one at a time."""

from __future__ import annotations

import numpy as np
import torch

from fedalc.deployment.flower.norm_screen import Change
from fedalc.deployment.flower.roster import Roster
from fedalc.engines.aggregation import Aggregation, cut_like
from fedalc.engines.base import RoundResult, mean_rows, no_rows
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.models.model import Model

LabelsOf = dict[int, np.ndarray]
"""Party → the labels of it that a question is about."""


class ChangeTotal:
    """The changes of a training round. `rule` combines those of θ. `row_weights`: p_u of each party's labels; their sum
    is the party's weight for the loss. A row that several parties send is a mean with these weights, cut as the rule
    cuts the party's."""

    def __init__(
        self, model: Model, labels_of: LabelsOf, row_weights: dict[int, np.ndarray], rule: Aggregation
    ) -> None:
        self.model = model
        self.labels_of = labels_of
        self.row_weights = row_weights
        self.rule = rule
        self.norms: dict[int, float] = {}  # of each party's change
        self._rows = [(*no_rows(model.W), model.W.new_empty(0))]
        self._loss = self._weight = 0.0

    def add(self, change: Change) -> None:
        self.rule.add(change.party, change.tensors, change.norm)
        if change.rows is not None:
            labels = torch.from_numpy(self.labels_of[change.party]).to(self.model.W.device)
            weights = cut_like(self.row_weights[change.party], self.rule.weights[change.party])
            self._rows.append((labels, change.rows.to(self.model.W), torch.from_numpy(weights).to(self.model.W)))
        weight = float(self.row_weights[change.party].sum())
        self._loss += weight * change.loss
        self._weight += weight
        self.norms[change.party] = change.norm

    def result(self, loss_before: float, traffic: Ledger) -> RoundResult:
        """Return the combined change. If no party answered, its loss is `loss_before`."""
        rows = mean_rows(*(torch.cat(part) for part in zip(*self._rows, strict=True)))
        loss = self._loss / self._weight if self.norms else loss_before
        return RoundResult(self.rule.result(), *rows, loss, traffic, bool(self.norms))


class SumsTotal:
    """The sums that a one-round method needs."""

    def __init__(
        self, model: Model, labels_of: LabelsOf, roster: Roster, sends_gram: bool = True, multiplied: bool = False
    ) -> None:
        """`multiplied`: whether parties have multiplied their sums by their rows, which are secret."""
        W, size = model.W, model.encoder.width
        self.gram_size = size if sends_gram else 0
        self.W = W
        self.multiplied = multiplied
        self.labels_of = labels_of
        self.roster = roster
        self.half = torch.zeros(
            self.gram_size * (self.gram_size + 1) // 2, dtype=torch.float64
        )  # of a symmetric matrix
        self.cross = W.new_zeros(size, W.shape[1], dtype=torch.float64)
        self.constant, self.pairs = 0.0, 0
        self.parties: set[int] = set()

    def add(self, change: Change) -> None:
        labels, (half, cross) = self.labels_of[change.party], change.tensors
        self.half += half
        cross = cross.to(self.W.device).double()
        self.cross += cross if self.multiplied else cross @ self.W[torch.from_numpy(labels)].double()
        self.constant += change.loss
        self.pairs += int(self.roster.counts[self.roster.clients_of(change.party, labels)].sum())
        self.parties.add(change.party)

    def result(self, traffic: Ledger) -> Sums:
        size = self.gram_size
        gram = torch.zeros(size, size, dtype=self.W.dtype)
        gram[torch.triu_indices(size, size).unbind()] = self.half.to(self.W.dtype)
        gram = (gram + gram.triu(1).T).to(self.W.device)
        return Sums(gram, self.cross.to(self.W), self.constant, self.pairs, traffic)
