"""Measure how much each record of a label contributes to an answer, and leave out labels with too few contributors.

The server chooses θ and the settings. With a crafted θ, all records of a label but one have (almost) no gradient, and
the label's change is that of a single record. So a party measures the gradient of every record over all local steps,
separately for every part of θ and for the label's row, and leaves out a label whose change comes from too few records.
Contributions that later steps shrink (by weight decay, or when a row is scaled back to length 1) count less.
docs/deployment.md states the rule and what it does not catch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor, nn

from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.deployment.flower.compared_rows import ComparedRows
from fedalc.deployment.flower.limits import Limits
from fedalc.engines.base import RoundResult
from fedalc.engines.per_client import ClientsEngine
from fedalc.engines.sums import Sums
from fedalc.methods import Method
from fedalc.models.encoders import Batch, Chance, Design, Encoder, SparseRows, TextEncoder
from fedalc.models.encoders.sparse_rows import ColumnsOf
from fedalc.models.model import Model

SMALL = 3  # in a label with fewer than SMALL × `fewest` records, one of SMALL has to contribute
SMALLEST_SCALE = 1e-60  # far from the smallest double
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


class CarefulEngine(ClientsEngine):
    """Engine `clients` at a party. It leaves a label unchanged if too few records contribute to its change, and counts
    such labels in `left_out`. `records` says which rows of the federation are the same record. `compared`: for a loss
    over all labels, the rows of the labels of all parties; None if the model has them."""

    def __init__(
        self, federation: Federation, method: Method, settings: Experiment, limits: Limits, records: np.ndarray
    ) -> None:
        super().__init__(federation, method, settings)
        self.limits = limits
        self.records = records
        self.compared: ComparedRows | None = None
        self.left_out = 0
        self._influence = _Influence(federation.labels.shape[0])
        self._parts_left = 0  # of the current step
        self._pull = torch.empty(0)  # the row's gradient, with momentum

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        self._server = model
        return super().run(model, participants, chance, round_number)

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

    def _enough(self, influences: Sequence[np.ndarray], seen: np.ndarray) -> bool:
        """Return whether enough records contribute in every part. `seen`: the rows that took part."""
        _, which = np.unique(self.records[seen], return_inverse=True)
        return all(enough_contribute(np.bincount(which, part[seen]), self.limits.fewest) for part in influences)

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
        squares = torch.from_numpy(self._squares[instances]).to(rows.keys.device)
        return _WatchedRows(rows, rows, [squares], self._influence)

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

    @property
    def _squares(self) -> np.ndarray:
        """‖x‖² of every row."""
        if not hasattr(self, "_squared"):
            features = self.federation.features
            assert issparse(features)
            self._squared = np.asarray(features.multiply(features).sum(axis=1), dtype=np.float64).ravel()
        return self._squared

    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        """Return the sums of the labels with enough contributors: c is ‖x‖ in the sum of x. In the sum of x xᵀ/m it is
        ‖x‖²/m, or ‖y‖‖z‖/m for parts y, z of the design x."""
        answered = []
        for client in participants.tolist():
            self.limits.check_time()
            instances = self.federation.instances_of(client)
            labels = torch.full((len(instances),), int(self.federation.label_of[client]))
            share = self.method.share(labels, torch.from_numpy(instances)).double().cpu().numpy()
            lengths, counted = self._lengths(model, instances), self._parts_of(client, instances, model.W)
            pairs = combinations_with_replacement(lengths, 2)
            influences = np.stack([*lengths, *(share * first * second for first, second in pairs)])
            influences *= counted.double().cpu().numpy()
            influence = np.zeros((len(influences), len(self.records)))
            influence[:, instances] = influences
            if self._enough(list(influence), instances):
                answered.append(client)
        self.left_out += len(participants) - len(answered)
        return super().sums(model, np.array(answered, dtype=np.int64))

    @torch.no_grad()
    def _lengths(self, model: Model, instances: np.ndarray) -> list[np.ndarray]:
        """Return the length of each part of the instances' designs: the features, and what `_column_squares` tells."""
        encoder = model.encoder
        lengths = [np.sqrt(self._squares[instances])] if encoder.uses_features else []
        blocks = (cast(SparseRows, self._rows(part, model.W)) for part in self._parts(instances))
        squares = [_column_squares(block, encoder.columns) for block in blocks]
        columns = (torch.cat(parts).sqrt().cpu().numpy() for parts in zip(*squares, strict=True))
        return [*lengths, *columns]


class _Influence:
    """Per record and part of θ: Σ over steps of ‖∂loss/∂part‖. For a matrix with input a and output gradient δ this is
    ‖a‖‖δ‖; for a convolution that is an upper bound. Each sum is stored divided by `_scale`, so that shrinking all
    earlier steps changes one number."""

    def __init__(self, rows: int) -> None:
        self._total: dict[int, np.ndarray] = {}
        self._scale: dict[int, float] = {}
        self._row_part = -1  # the part that is the label's row
        self._rows = rows
        self._seen = np.zeros(rows, dtype=bool)
        self._watched: nn.Module | None = None
        self._instances = np.empty(0, dtype=np.int64)
        self._squares: dict[int, Tensor] = {}
        self._part = 0

    def watch(self, encoder: nn.Module) -> None:
        """Watch every layer that has parameters, and the output, whose product with the row is the score."""
        if self._watched is encoder:
            return
        self._watched = encoder
        for module in encoder.modules():
            has_parameters = any(True for _ in module.parameters(recurse=False))
            if has_parameters and not isinstance(module, TextEncoder):  # _WatchedRows watches a TextEncoder's matrices
                module.register_forward_hook(self._layer)
        encoder.register_forward_hook(self._output)

    def clear(self) -> None:
        self._total.clear()
        self._scale.clear()
        self._seen[:] = False

    @property
    def seen(self) -> np.ndarray:
        return np.flatnonzero(self._seen)

    def of_each(self) -> list[np.ndarray]:
        return list(self._total.values())

    def begin(self, instances: np.ndarray) -> None:
        """Begin a block of instances."""
        self._instances, self._part, self._squares = instances, 0, {}
        self._seen[instances] = True

    def end(self) -> None:
        for part, squares in self._squares.items():
            total = self._total.setdefault(part, np.zeros(self._rows))
            total[self._instances] += squares.sqrt().cpu().numpy() / self._scale.setdefault(part, 1.0)
        self._squares = {}

    def end_step(self, kept_of_theta: float, kept_of_row: float) -> None:
        """Apply the shrinking: of θ by the next step, before it adds its own part; of the row by this step."""
        for part in self._total:
            self._scale[part] *= kept_of_row if part == self._row_part else kept_of_theta
            if not SMALLEST_SCALE < self._scale[part] < 1 / SMALLEST_SCALE:
                self._total[part] *= self._scale[part]
                self._scale[part] = 1.0

    def product(self, a_squared: Tensor, output: Tensor) -> None:
        """Record a product of one part of θ. `a_squared`: the sum of squares of its input."""
        part, self._part = self._part, self._part + 1
        if output.requires_grad:
            output.register_hook(lambda slope: self._add(part, a_squared * _squares(slope)))

    def _add(self, part: int, squares: Tensor) -> None:
        self._squares[part] = squares + self._squares.get(part, 0.0)

    def _layer(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        with_bias = 1.0 if getattr(module, "bias", None) is not None else 0.0
        self.product(_squares(inputs[0]) + with_bias, output)

    def _output(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self._row_part = self._part
        self.product(_squares(output), output)


class _WatchedRows:
    """Sparse rows, or the design that an encoder makes of them, that report their products to `_Influence`: one for
    each part, because a large constant would hide that only one record has features. `squares`: of each part, the sum
    of squares of each row."""

    def __init__(
        self, rows: SparseRows, design: SparseRows | Design, squares: Sequence[Tensor], influence: _Influence
    ) -> None:
        self.rows, self.keys, self.dtype, self._influence = rows, rows.keys, rows.dtype, influence
        self._design, self._squares = design, squares

    def __len__(self) -> int:
        return len(self.rows)

    def __matmul__(self, weight: Tensor) -> Tensor:
        product = self._design @ weight
        for squares in self._squares:
            self._influence.product(squares, product)
        return product

    def beside(self, columns_of: ColumnsOf, with_features: bool = True) -> _WatchedRows:
        squares = [*(self._squares if with_features else ()), *_column_squares(self.rows, columns_of)]
        return _WatchedRows(self.rows, self.rows.beside(columns_of, with_features), squares, self._influence)


def _column_squares(rows: SparseRows, columns_of: ColumnsOf) -> list[Tensor]:
    """Return sums of squares for each of an encoder's columns: of their values, and of what they differ from those of
    an instance without features. The server knows the latter and can subtract them."""
    pairs = zip(columns_of(rows), columns_of(rows.nothing()), strict=True)
    return [_squares(values) for columns, known in pairs for values in (columns, columns - known)]


def _squares(values: Tensor) -> Tensor:
    """Return the sum of squares of each instance, in double precision."""
    return values.detach().flatten(1).double().square().sum(1)
