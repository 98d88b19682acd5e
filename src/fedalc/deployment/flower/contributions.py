"""How much each record of a label contributes to an answer, and whether enough of them do.

A server chooses θ and the settings. With a crafted θ all records of a label but one have (almost) no gradient, and the
label's change is that record's. So a party watches the gradient of every record, in every part of θ by itself and in
the label's row, over all local steps, and leaves out a label whose change comes from too few. What later steps shrink
(weight decay, a row that is brought back to length 1) counts less. docs/deployment.md has the rule, and what it does
not catch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor, nn

from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.deployment.flower.limits import Limits
from fedalc.engines.base import RoundResult, Sums
from fedalc.engines.per_client import ClientsEngine
from fedalc.methods import Method
from fedalc.models.encoders import Batch, Chance, SparseRows, TextEncoder
from fedalc.models.model import Model

SMALL = 3  # of a label with fewer than SMALL × `fewest` records, one in so many has to contribute
SMALLEST_SCALE = 1e-60  # far from where doubles end
DOMINANT = 0.5  # the largest part of Σ c² that is one record's, in a label that is not small


def enough_contribute(influence: np.ndarray, fewest: int) -> bool:
    """Whether no few of the records have made what they made together. `influence`: c_i ≥ 0 of each that took part.

    How many contribute is (Σ c)² / Σ c²: n if all do alike, 1 if one does it all. Where nothing was made, nothing can
    be seen.

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
    """Whether a mean over held-out records says little of each: at least `fewest` of them make it up.

    >>> enough_measured(np.ones(8), 8), enough_measured(np.ones(7), 8), enough_measured(np.array([1.0] + [0.0] * 59), 8)
    (True, False, False)
    """
    return len(influence) >= fewest and enough_contribute(influence, fewest)


class CarefulEngine(ClientsEngine):
    """Engine `clients` at a party: a label to whose change too few records contribute stays as it is. `records` says
    which rows of the federation are the same record. `left_out` counts such labels."""

    def __init__(
        self, federation: Federation, method: Method, settings: Experiment, limits: Limits, records: np.ndarray
    ) -> None:
        super().__init__(federation, method, settings)
        self.limits = limits
        self.records = records
        self.left_out = 0
        self._influence = _Influence(federation.labels.shape[0])
        self._parts_left = 0  # of the present step
        self._pull = torch.empty(0)  # on the row: its gradient, with momentum

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
            for mine, server in zip(local.theta, self._server.theta, strict=True):
                mine.copy_(server)
        return self._server.W[self.federation.label_of[client]].clone(), 0.0

    def _enough(self, influences: Sequence[np.ndarray], seen: np.ndarray) -> bool:
        """In every part. `seen`: which rows took part."""
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
    ) -> float:
        self.limits.check_time()
        self._influence.begin(instances)
        watched: Any = rows
        if isinstance(rows, SparseRows):
            watched = _WatchedRows(rows, self._squares[instances], self._influence)
        loss = super()._add_gradient(local, row, client, instances, watched, chance, counted)
        self._influence.end()
        self._parts_left -= 1
        if self._parts_left == 0:
            self._influence.end_step(self._kept_of_theta, self._kept_of_row(row))
        return loss

    def _counted(self, client: int, batch: np.ndarray) -> float:
        """Asked once at the beginning of each step."""
        self._parts_left = len(self._parts(batch))
        return super()._counted(client, batch)

    @property
    def _kept_of_theta(self) -> float:
        """What a step leaves of the steps before it: weight decay takes the rest."""
        return 1 - self.settings.client.learning_rate * self.settings.client.weight_decay

    def _kept_of_row(self, row: Tensor) -> float:
        """What a step leaves of the row, its own part included: it is brought back to length 1."""
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

    def sums(self, W: Tensor, participants: np.ndarray) -> Sums:
        """Of a label, c is ‖x‖²/m in the first sum and ‖x‖ in the second."""
        kept = []
        for client in participants.tolist():
            self.limits.check_time()
            held = self.federation.instances_of(client)
            own = torch.full((len(held),), int(self.federation.label_of[client]))
            share = self.method.share(own, torch.from_numpy(held)).double().cpu().numpy()
            influence = np.zeros((2, len(self.records)))
            influence[:, held] = share * self._squares[held], np.sqrt(self._squares[held])
            if self._enough(list(influence), held):
                kept.append(client)
        self.left_out += len(participants) - len(kept)
        return super().sums(W, np.array(kept, dtype=np.int64))


class _Influence:
    """Per record and part of θ, Σ over steps of ‖∂loss/∂part‖: of a matrix that is multiplied by a, and whose product
    has the gradient δ, that is ‖a‖‖δ‖. For a convolution it is a bound on it. The sum of a part is kept over `_scale`,
    so that a step that shrinks what came before touches one number."""

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
        """Every layer that has parameters, and the output, whose product with the row is the score."""
        if self._watched is encoder:
            return
        self._watched = encoder
        for module in encoder.modules():
            own = any(True for _ in module.parameters(recurse=False))
            if own and not isinstance(module, TextEncoder):  # whose own matrices multiply the rows
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
        """Of a block of instances."""
        self._instances, self._part, self._squares = instances, 0, {}
        self._seen[instances] = True

    def end(self) -> None:
        for part, squares in self._squares.items():
            total = self._total.setdefault(part, np.zeros(self._rows))
            total[self._instances] += squares.sqrt().cpu().numpy() / self._scale.setdefault(part, 1.0)
        self._squares = {}

    def end_step(self, kept_of_theta: float, kept_of_row: float) -> None:
        """Of θ, the next step shrinks what is there before it adds its own; of the row, this one has."""
        for part in self._total:
            self._scale[part] *= kept_of_row if part == self._row_part else kept_of_theta
            if not SMALLEST_SCALE < self._scale[part] < 1 / SMALLEST_SCALE:
                self._total[part] *= self._scale[part]
                self._scale[part] = 1.0

    def product(self, a_squared: Tensor, output: Tensor) -> None:
        """`output` is what some part of θ makes of numbers whose squares add up to `a_squared`."""
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
    """Sparse rows whose products are watched."""

    def __init__(self, rows: SparseRows, squares: np.ndarray, influence: _Influence) -> None:
        self.rows, self.keys, self._influence = rows, rows.keys, influence
        self._squares = torch.from_numpy(squares).to(rows.keys.device)

    def __len__(self) -> int:
        return len(self.rows)

    def __matmul__(self, weight: Tensor) -> Tensor:
        product = self.rows @ weight
        self._influence.product(self._squares, product)
        return product


def _squares(values: Tensor) -> Tensor:
    """Of each instance, in double precision."""
    return values.detach().flatten(1).double().square().sum(1)
