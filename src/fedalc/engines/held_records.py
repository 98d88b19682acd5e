"""The clients' records in local steps (`local_steps`), and what they add to the first matrix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.schema import ClientSettings
from fedalc.engines.local_schedule import Step
from fedalc.models.encoders import SparseRows
from fedalc.models.encoders.sparse_rows import Design


class HeldRecords:
    """The first matrix: the clients' records X_u, their products with θ and with each other, and C_u. Rows are in the
    order of clients."""

    def __init__(
        self,
        start: Tensor,
        keys: Tensor,
        record: Tensor,
        sizes: Sequence[int],
        likeness: Sequence[Tensor] | None,
        momentum: bool,
    ) -> None:
        """`start`: the product of the records and θ. `record`: of each row, its row of this product. `sizes`: of each
        client. `likeness`: X_u X_uᵀ of each client; None if no client takes a second step."""
        self.start, self._keys, self.record, self.likeness = start, keys, record, likeness
        self.sizes, self.starts = sizes, [0, *accumulate(sizes)]
        counts = torch.tensor(sizes, device=start.device)
        self.client = torch.arange(len(sizes), device=start.device).repeat_interleave(counts)
        self.added = start.new_zeros(len(record), start.shape[1])
        self.velocity = torch.zeros_like(self.added) if momentum else None
        self.moved = False

    def keys(self, step: Step) -> Tensor:
        return self._keys[self.record[step.at]]

    def product(self, step: Step, a: float) -> Tensor:
        h = self.start.index_select(0, self.record[step.at])
        if a != 1:
            h *= a
        if self.moved:
            for own, like, added in zip(step.split(h), self._likeness(step), self._each(self.added), strict=False):
                own.addmm_(like, added, alpha=-1)
        return h

    def add(self, slope: Tensor | None, step: Step, settings: ClientSettings) -> None:
        """Take a step of the first matrix along the slopes of its outputs."""
        working, rate, decay = self.starts[step.clients], settings.learning_rate, settings.weight_decay
        added, target = self.added[:working], self.added
        if self.velocity is not None:
            target = self.velocity
            target[:working].mul_(settings.momentum).sub_(added, alpha=decay)
        elif decay:
            added.mul_(1 - rate * decay)
        factor = rate if self.velocity is None else 1.0
        if slope is not None and self._is_whole(step):
            target[:working].add_(slope, alpha=factor)
        elif slope is not None:
            target.index_add_(0, step.at, slope, alpha=factor)
        if self.velocity is not None:
            added.add_(self.velocity[:working], alpha=rate)
        self.moved = True

    def _is_whole(self, step: Step) -> bool:
        """Return whether a step has all records of its clients, in their order."""
        return len(step.at) == self.starts[step.clients] and step.in_order

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        """Add Σ p_u C_u, with a row for each record of the product."""
        for of_client, record, added in zip(
            weight.tolist(), self._each(self.record), self._each(self.added), strict=True
        ):
            total.index_add_(0, record, added, alpha=of_client)

    def undo(self, clients: Sequence[int]) -> None:
        for client in clients:
            self.added[self.starts[client] : self.starts[client + 1]] = 0

    def _each(self, rows: Tensor) -> Sequence[Tensor]:
        return rows.split(list(self.sizes))

    def _likeness(self, step: Step) -> Sequence[Tensor]:
        """Return the products of each client's batch with all its records."""
        assert self.likeness is not None
        if self._is_whole(step):
            return self.likeness
        place = step.at - torch.tensor(self.starts, device=step.at.device)[step.client]
        return [like.index_select(0, own) for like, own in zip(self.likeness, step.split(place), strict=False)]


def likeness(design: SparseRows | Design, record: np.ndarray) -> np.ndarray:
    """Return X Xᵀ of some records, from the rows of all records."""
    matrix, columns = _parts(design)
    own = columns[record]
    products: np.ndarray = own @ own.T
    if matrix is not None:
        sparse = matrix[record]
        products += (sparse @ sparse.T).toarray()
    return products


def _parts(design: SparseRows | Design) -> tuple[csr_matrix | None, np.ndarray]:
    """Return the sparse and the dense columns of a design."""
    rows = design.rows if isinstance(design, Design) else design
    if rows is None or rows.is_dense:
        return None, design.dense().cpu().numpy()
    arrays = tuple(part.cpu().numpy() for part in (rows.rows.weight, rows.rows.index, rows.rows.starts))
    matrix = csr_matrix(arrays, (len(rows), rows.feature_count))
    beside = design.columns.cpu().numpy() if isinstance(design, Design) else matrix.data[:0].reshape(len(rows), 0)
    return matrix, beside
