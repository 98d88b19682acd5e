"""How much each record contributes to a label's change: the lengths of its gradients, over all local steps.

`Influence` watches an encoder in engine `clients`, by hooks, and `InfluenceSideBySide` the steps of engine `lockstep`.
Both measure the same, in every part of θ and in the label's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedalc.deployment.flower.limits import Limits
from fedalc.engines.local_schedule import Step
from fedalc.models.encoders import Design, SparseRows, TextEncoder
from fedalc.models.encoders.sparse_rows import ColumnsOf

SMALLEST_SCALE = 1e-60  # far from the smallest double


class Influence:
    """Of one label, per record and part of θ: Σ over steps of ‖∂loss/∂part‖. For a matrix with input a and output
    gradient δ this is ‖a‖‖δ‖; for a convolution that is an upper bound. Each sum is stored divided by `_scale`, so that
    shrinking all earlier steps changes one number."""

    def __init__(self, rows: int) -> None:
        self._total: dict[int, np.ndarray] = {}
        self._scale: dict[int, float] = {}
        self._row_part = -1  # the part that is the label's row
        self._rows = rows
        self._seen = np.zeros(rows, dtype=bool)
        self._watched: nn.Module | None = None
        self._instances = np.empty(0, dtype=np.int64)
        self._lengths: dict[int, Tensor] = {}
        self._part = 0

    def watch(self, encoder: nn.Module) -> None:
        """Watch every layer that has parameters, and the output, whose product with the row is the score."""
        if self._watched is encoder:
            return
        self._watched = encoder
        for module in encoder.modules():
            has_parameters = any(True for _ in module.parameters(recurse=False))
            if has_parameters and not isinstance(module, TextEncoder):  # WatchedRows watches a TextEncoder's matrices
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
        """Return the influence of the rows in `seen` on each part."""
        return [self._total[part][self._seen] for part in sorted(self._total)]

    def begin(self, instances: np.ndarray) -> None:
        """Begin a block of instances."""
        self._instances, self._part, self._lengths = instances, 0, {}
        self._seen[instances] = True

    def end(self) -> None:
        for part, lengths in self._lengths.items():
            total = self._total.setdefault(part, np.zeros(self._rows))
            total[self._instances] += lengths.cpu().numpy() / self._scale.setdefault(part, 1.0)
        self._lengths = {}

    def end_step(self, kept_of_theta: float, kept_of_row: float) -> None:
        """Apply the shrinking: of θ by the next step, before it adds its own part; of the row by this step."""
        for part in self._total:
            self._scale[part] *= kept_of_row if part == self._row_part else kept_of_theta
            if not SMALLEST_SCALE < self._scale[part] < 1 / SMALLEST_SCALE:
                self._total[part] *= self._scale[part]
                self._scale[part] = 1.0

    def product(self, of_input: Tensor, output: Tensor) -> None:
        """Record a product of one part of θ. `of_input`: the length of its input."""
        part, self._part = self._part, self._part + 1
        if output.requires_grad:
            output.register_hook(lambda slope: self._lengths.update({part: of_input * length(slope)}))

    def _layer(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        with_bias = getattr(module, "bias", None) is not None
        self.product(_with_bias(length(inputs[0])) if with_bias else length(inputs[0]), output)

    def _output(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self._row_part = self._part
        self.product(length(output), output)


class InfluenceSideBySide:
    """The same of many labels at once, whose steps engine `lockstep` takes (`Observer`): parts × records, in the order
    of labels. The parts are those of the design, the dense layers, and the row.

    Slopes by the output g = h / ‖h‖ have a part along g, which is not in those by h:
    ‖∂/∂g‖² = ‖h‖² ‖∂/∂h‖² + (gᵀ ∂/∂g)²
    """

    def __init__(self, of_design: Tensor, layers: int, label: Tensor, kept_of_theta: float, limits: Limits) -> None:
        """`of_design`: the lengths of the parts of the records' designs. `label`: of each record, its label's place in
        the group. `kept_of_theta`: as in `Influence`."""
        self._of_design, self._label, self._kept, self._limits = of_design, label, kept_of_theta, limits
        self._total = of_design.new_zeros(len(of_design) + layers + 1, of_design.shape[1])

    def of_each(self) -> np.ndarray:
        return self._total.cpu().numpy()

    def output(self, step: Step, h: Tensor, slope: Tensor, along: Tensor) -> None:
        self._limits.check_time()
        self._add(-1, step, torch.hypot(length(h) * length(slope), along.double()))

    def layer(self, step: Step, depth: int, inputs: Tensor, slope: Tensor) -> None:
        self._add(len(self._of_design) + depth, step, _with_bias(length(inputs)) * length(slope))

    def first_matrix(self, step: Step, slope: Tensor) -> None:
        of_slope = length(slope)
        for part, of_part in enumerate(self._of_design):
            self._add(part, step, of_part[step.at] * of_slope)

    def end_step(self, step: Step, rows: Tensor | None) -> None:
        working = self._label < step.clients
        if self._kept != 1:
            self._total[:-1, working] *= self._kept
        if rows is not None:
            self._total[-1, working] /= length(rows).clamp(min=SMALLEST_SCALE)[self._label[working]]

    def _add(self, part: int, step: Step, lengths: Tensor) -> None:
        self._total[part, step.at] += lengths


class WatchedRows:
    """Sparse rows, or the design that an encoder makes of them, that report their products to `Influence`: one for
    each part, because a large constant would hide that only one record has features. `lengths`: of each part, the
    length of each row."""

    def __init__(
        self, rows: SparseRows, design: SparseRows | Design, lengths: Sequence[Tensor], influence: Influence
    ) -> None:
        self.rows, self.keys, self.dtype, self._influence = rows, rows.keys, rows.dtype, influence
        self._design, self._lengths = design, lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __matmul__(self, weight: Tensor) -> Tensor:
        product = self._design @ weight
        for lengths in self._lengths:
            self._influence.product(lengths, product)
        return product

    def beside(self, columns_of: ColumnsOf, with_features: bool = True) -> WatchedRows:
        lengths = [*(self._lengths if with_features else ()), *column_lengths(self.rows, columns_of)]
        return WatchedRows(self.rows, self.rows.beside(columns_of, with_features), lengths, self._influence)


def column_lengths(rows: SparseRows, columns_of: ColumnsOf) -> list[Tensor]:
    """Return lengths for each of an encoder's columns: of their values, and of what they differ from those of an
    instance without features. The server knows the latter and can subtract them."""
    pairs = zip(columns_of(rows), columns_of(rows.nothing()), strict=True)
    return [length(values) for columns, known in pairs for values in (columns, columns - known)]


def length(values: Tensor) -> Tensor:
    """Return the length of each instance's values, in double precision. Numbers too small to be squared count: they are
    sent too."""
    rows = values.detach().flatten(1).double()
    largest = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1) if rows.shape[1] else rows.new_zeros(len(rows))
    scale = torch.where(largest > 0, largest, 1.0)
    return scale * torch.linalg.vector_norm(rows / scale.unsqueeze(1), dim=1)


def _with_bias(of_input: Tensor) -> Tensor:
    """Return the length of a layer's input, if it has a bias: with one more input that is always 1."""
    return torch.hypot(of_input, torch.ones_like(of_input))
