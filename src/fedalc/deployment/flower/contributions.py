"""Measure how much each record of a label contributes to an answer, and leave out labels with too few contributors.

The server chooses θ and the settings. With a crafted θ, all records of a label but one have (almost) no gradient, and
the label's change is that of a single record. So a party measures the gradient of every record over all local steps,
separately for every part of θ and for the label's row, and leaves out a label whose change comes from too few records.
Contributions that later steps shrink (by weight decay, or when a row is scaled back to length 1) count less.
docs/deployment.md states the rule and what it does not catch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.blocks import DEFAULT_BUDGET
from fedalc.data.federation import Federation
from fedalc.deployment.flower.compared_rows import ComparedRows
from fedalc.deployment.flower.influence import (
    SMALLEST_SCALE,
    Influence,
    InfluenceSideBySide,
    WatchedRows,
    column_lengths,
)
from fedalc.deployment.flower.limits import Limits
from fedalc.engines.base import RoundResult
from fedalc.engines.held_records import HeldRecords
from fedalc.engines.local_groups import Work
from fedalc.engines.local_losses import LocalLoss
from fedalc.engines.local_steps import LocalSteps
from fedalc.engines.lockstep import LockstepEngine
from fedalc.engines.sums import Sums
from fedalc.methods import Method
from fedalc.models.encoders import Batch, Chance, Encoder, SparseRows
from fedalc.models.model import Model

SMALL = 3  # in a label with fewer than SMALL × `fewest` records, one of SMALL has to contribute
DOMINANT = 0.5  # the largest part of Σ c² that one record may have, in a label that is not small


def enough_contribute(influence: np.ndarray, fewest: int) -> bool:
    """Return whether enough records contribute. `influence`: c_i ≥ 0 of each record that took part.

    The effective number of contributors is (Σ c)² / Σ c²: n if all contribute equally, 1 if only one does. If all c are
    zero, nothing is revealed, and the answer is True.

    >>> enough_contribute(np.ones(40), 8), enough_contribute(np.array([1.0] + [1e-3] * 39), 8)
    (True, False)
    >>> enough_contribute(np.array([1.0, 0.2, 0.5]), 8), enough_contribute(np.zeros(5), 8)
    (True, True)
    """
    largest = influence.max(initial=0.0)
    if not np.isfinite(largest):
        return False
    if largest == 0:
        return True
    c = influence / largest  # so that no square overflows or vanishes
    n, squares = len(c), float((c**2).sum())
    if float(c.sum()) ** 2 / squares < min(fewest, n / SMALL):
        return False
    return fewest == 1 or n < SMALL * fewest or 1 / squares <= DOMINANT


def enough_measured(influence: np.ndarray, fewest: int) -> bool:
    """Return whether at least `fewest` held-out records contribute to a mean, so that it reveals little about each.

    >>> enough_measured(np.ones(8), 8), enough_measured(np.ones(7), 8), enough_measured(np.array([1.0] + [0.0] * 59), 8)
    (True, False, False)
    """
    return len(influence) >= fewest and enough_contribute(influence, fewest)


class CarefulEngine(LockstepEngine):
    """Engine `lockstep` at a party. It leaves a label unchanged if too few records contribute to its change, and counts
    such labels in `left_out`. `records` says which rows of the federation are the same record. `compared`: for a loss
    over all labels, the rows of the labels of all parties; None if the model has them."""

    def __init__(
        self, federation: Federation, method: Method, settings: Experiment, limits: Limits, records: np.ndarray
    ) -> None:
        # The server states a budget, but it does not know this machine.
        budget = min(settings.memory_budget, DEFAULT_BUDGET)
        super().__init__(federation, method, settings.model_copy(update={"memory_budget": budget}))
        self.limits = limits
        self.records = records
        self.compared: ComparedRows | None = None
        self.left_out = 0
        self._influence = Influence(federation.labels.shape[0])
        self._parts_left = 0  # of the current step
        self._pull = torch.empty(0)  # the row's gradient, with momentum

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        self._server = model
        return super().run(model, participants, chance, round_number)

    @cached_property
    def _one_step(self) -> bool:
        """Engine `fused` has one sum of all labels, from which none can be left out."""
        return False

    def _take_steps(self, steps: LocalSteps, held: HeldRecords, loss: LocalLoss, group: list[Work]) -> list[int]:
        lengths = self._design_lengths(steps.encoder)[:, loss.instance]
        kept, limits = self._kept_of_theta, self.limits
        loss.observer = InfluenceSideBySide(lengths, len(steps.layers), held.client, kept, limits)
        steps.run(held, loss.slopes, loss.observer)
        influences = np.split(loss.observer.of_each(), held.starts[1:-1], axis=1)
        out = [
            place
            for place, (one, influence) in enumerate(zip(group, influences, strict=True))
            if not self._enough(influence, one.instances)
        ]
        self.left_out += len(out)
        return out

    def _local_work(self, local: Model, client: int, chance: Chance, round_number: int) -> tuple[Tensor, float]:
        self._influence.watch(local.encoder)
        self._influence.clear()
        self._pull = torch.zeros_like(local.W[0])
        row, loss = super()._local_work(local, client, chance, round_number)
        if self._enough(self._influence.of_each(), self._influence.seen):
            return row, loss
        self.left_out += 1
        with torch.no_grad():
            for parameter, sent in zip(local.theta, self._server.theta, strict=True):
                parameter.copy_(sent)
        return self._server.W[self.federation.label_of[client]].clone(), 0.0

    def _enough(self, influences: Iterable[np.ndarray], seen: np.ndarray) -> bool:
        """Return whether enough records contribute in every part. `seen`: the rows that took part."""
        _, which = np.unique(self.records[seen], return_inverse=True)
        return all(enough_contribute(np.bincount(which, part), self.limits.fewest) for part in influences)

    def _add_gradient(
        self,
        local: Model,
        row: Tensor,
        client: int,
        instances: np.ndarray,
        rows: Batch,
        chance: Chance,
        counted: float,
        round_number: int,
    ) -> float:
        self.limits.check_time()
        self._influence.begin(instances)
        watched = self._watched(rows, instances)
        loss = super()._add_gradient(local, row, client, instances, watched, chance, counted, round_number)
        self._influence.end()
        self._parts_left -= 1
        if self._parts_left == 0:
            self._influence.end_step(self._kept_of_theta, self._kept_of_row(row))
        return loss

    def _watched(self, rows: Batch, instances: np.ndarray) -> Any:
        if not isinstance(rows, SparseRows):
            return rows
        lengths = torch.from_numpy(self._feature_lengths[instances]).to(rows.keys.device)
        return WatchedRows(rows, rows, [lengths], self._influence)

    def _add_curvature(self, model: Model, along: Encoder, client: int, weight: float) -> None:
        """Add the label's part of H p if enough records contribute: c is the length of the record's own part, of each
        part of a linear encoder's design."""
        (moving,) = along.parameters()
        assert moving.grad is not None
        before = moving.grad.clone()
        self._influence.clear()
        super()._add_curvature(model, along, client, weight)
        if not self._enough(self._influence.of_each(), self._influence.seen):
            self.left_out += 1
            moving.grad.copy_(before)

    def _add_product(
        self, model: Model, along: Encoder, row: Tensor, client: int, instances: np.ndarray, rows: Batch, weight: float
    ) -> None:
        self.limits.check_time()
        self._influence.begin(instances)
        super()._add_product(model, along, row, client, instances, self._watched(rows, instances), weight)
        self._influence.end()

    def _scores(self, g: Tensor, W: Tensor, labels: Tensor | None) -> Tensor:
        return super()._scores(g, W, labels) if self.compared is None else self.compared.scores(g)

    def _counted(self, client: int, batch: np.ndarray) -> float:
        """Also note how many parts the step has: the engine calls this once, at the start of each step."""
        self._parts_left = len(self._parts(batch))
        return super()._counted(client, batch)

    @property
    def _kept_of_theta(self) -> float:
        """The factor by which weight decay shrinks earlier steps."""
        return 1 - self.settings.client.learning_rate * self.settings.client.weight_decay

    def _kept_of_row(self, row: Tensor) -> float:
        """Return the factor by which this step shrinks the row, when it is scaled back to length 1."""
        if row.grad is None:
            return 1.0
        client = self.settings.client
        self._pull = client.momentum * self._pull + row.grad
        return 1 / max(float((row.detach() - client.row_rate * self._pull).norm()), SMALLEST_SCALE)

    @cached_property
    def _feature_lengths(self) -> np.ndarray:
        """‖x‖ of every row."""
        features = self.federation.features
        assert issparse(features)
        return np.sqrt(np.asarray(features.multiply(features).sum(axis=1), dtype=np.float64).ravel())

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        """Return the sums of the labels with enough contributors: c is ‖x‖ in the sum of x. In the sum of x xᵀ/m it is
        ‖x‖²/m, or ‖y‖‖z‖/m for parts y, z of the design x."""
        answered = []
        for client in participants.tolist():
            self.limits.check_time()
            instances = self.federation.instances_of(client)
            labels = torch.full((len(instances),), int(self.federation.label_of[client]))
            share = self.method.share(labels, torch.from_numpy(instances)).double().cpu().numpy()
            lengths = self._lengths(model.encoder, instances, model.W)
            counted = self._parts_of(client, instances, model.W)
            pairs = combinations_with_replacement(lengths, 2)
            influences = np.stack([*lengths, *(share * first * second for first, second in pairs)])
            influences *= counted.double().cpu().numpy()
            if self._enough(influences, instances):
                answered.append(client)
        self.left_out += len(participants) - len(answered)
        return super().sums(model, np.array(answered, dtype=np.int64))

    def _design_lengths(self, encoder: Encoder) -> Tensor:
        """Return the length of each part of the design of all rows, parts × rows."""
        if not hasattr(self, "_of_design"):
            like = next(encoder.parameters())
            lengths = self._lengths(encoder, np.arange(len(self.records)), like)
            self._of_design = torch.from_numpy(np.stack(lengths)).to(like.device)
        return self._of_design

    @torch.no_grad()
    def _lengths(self, encoder: Encoder, instances: np.ndarray, like: Tensor) -> list[np.ndarray]:
        """Return the length of each part of the instances' designs: the features, and what `column_lengths` tells."""
        of_features = [self._feature_lengths[instances]] if encoder.uses_features else []
        blocks = (cast(SparseRows, self._rows(part, like)) for part in self._parts(instances))
        columns = zip(*(column_lengths(block, encoder.columns) for block in blocks), strict=True)
        return [*of_features, *(torch.cat(parts).cpu().numpy() for parts in columns)]
