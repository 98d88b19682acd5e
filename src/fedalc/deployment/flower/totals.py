"""Add up the parties' replies to one question, one at a time."""

from __future__ import annotations

import numpy as np
import torch

from fedalc.deployment.flower.norm_screen import Change
from fedalc.deployment.flower.roster import Roster
from fedalc.engines.aggregation import Aggregation
from fedalc.engines.base import RoundResult, mean_rows, no_rows
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.models.model import Model

LabelsOf = dict[int, np.ndarray]
"""Party → the labels of it that a question is about."""


class ChangeTotal:
    """The changes of a training round. `rule` combines those of θ; `weights` are the parties' weights for the loss."""

    def __init__(self, model: Model, labels_of: LabelsOf, weights: dict[int, float], rule: Aggregation) -> None:
        self.model = model
        self.labels_of = labels_of
        self.weights = weights
        self.rule = rule
        self.norms: dict[int, float] = {}  # of each party's change
        self._rows = [no_rows(model.W)]
        self._loss = self._weight = 0.0

    def add(self, change: Change) -> None:
        self.rule.add(change.party, change.tensors, change.norm)
        if change.rows is not None:
            labels = torch.from_numpy(self.labels_of[change.party]).to(self.model.W.device)
            self._rows.append((labels, change.rows.to(self.model.W)))
        weight = self.weights[change.party]
        self._loss += weight * change.loss
        self._weight += weight
        self.norms[change.party] = change.norm

    def result(self, loss_before: float, traffic: Ledger) -> RoundResult:
        """Return the combined change. If no party answered, its loss is `loss_before`."""
        labels, copies = (torch.cat(part) for part in zip(*self._rows, strict=True))
        rows = mean_rows(labels, copies, torch.ones_like(copies[:, 0]))
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
        self.pairs += int(self.roster.counts[labels].sum())
        self.parties.add(change.party)

    def result(self, traffic: Ledger) -> Sums:
        size = self.gram_size
        gram = torch.zeros(size, size, dtype=self.W.dtype)
        gram[torch.triu_indices(size, size).unbind()] = self.half.to(self.W.dtype)
        gram = (gram + gram.triu(1).T).to(self.W.device)
        return Sums(gram, self.cross.to(self.W), self.constant, self.pairs, traffic)
