"""The local steps of several clients at once, exactly, without a copy of θ for each.

A client's θ after some steps is what the server sent, plus what its own records have added:

    first matrix:  θ_u = a θ - X_uᵀ C_u           X_u: the client's records, C_u: a row for each of them
    dense layers:  θ_u = a θ - Σ_i k_i B_iᵀ A_i     A_i, B_i: inputs of the layer and slopes of its outputs in step i

So the product of a batch with θ_u is the product with θ, which all clients share, and a small correction:

    X_b θ_u = a X_b θ - (X_b X_uᵀ) C_u             A_b θ_uᵀ = a A_b θᵀ - Σ_i k_i (A_b A_iᵀ) B_i

The products with θ are one product for the batches of all clients. a and k_i depend on the rate, the weight decay, the
momentum and the number of steps only (`Coefficients`). After its last step, a client adds its part of the change.

The corrections of dense layers grow with the steps. Where they would cost more than a matrix for each client, each
client has one (`OwnLayer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.schema import ClientSettings
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance, SparseRows
from fedalc.models.encoders.sparse_rows import Design
from fedalc.models.encoders.text import TextEncoder

Slope = Callable[[Tensor, "Step", Tensor], tuple[Tensor, Tensor | None]]
"""From the encoder's outputs of a step's records, before they are scaled to length 1, and the clients' rows: the slopes
by both (None: rows are fixed)."""


@dataclass
class Coefficients:
    """θ_u = a θ - Σ_i k_i ∇_i and momentum v = a' θ + Σ_i m_i ∇_i, over the slots of all steps so far."""

    settings: ClientSettings
    a: float = 1.0
    a_velocity: float = 0.0
    k: np.ndarray = field(default_factory=lambda: np.zeros(0))
    m: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def step(self, slots: int) -> None:
        """Take a step along the gradient in the last `slots` slots."""
        rate, decay, momentum = self.settings.learning_rate, self.settings.weight_decay, self.settings.momentum
        self.m = np.concatenate([momentum * self.m - decay * self.k, np.ones(slots)])
        self.k = np.concatenate([self.k, np.zeros(slots)]) + rate * self.m
        self.a_velocity = momentum * self.a_velocity + decay * self.a
        self.a -= rate * self.a_velocity


@dataclass(frozen=True)
class Step:
    """The records of one step of the clients that still work: the first ones of the group."""

    clients: int
    width: int  # the largest batch
    client: Tensor  # of each record: its client's place in the group
    slot: Tensor  # and its place in the client's batch
    place: Tensor  # and among the client's records
    first_epoch: Tensor  # of each record: whether it is in its client's first epoch

    def padded(self, rows: Tensor) -> Tensor:
        """Return clients × slots × numbers, with zeros where a batch is shorter."""
        if self._is_full:
            return rows.view(self.clients, self.width, -1)
        out = rows.new_zeros(self.clients * self.width, rows.shape[1])
        out[self._flat] = rows
        return out.view(self.clients, self.width, -1)

    def flat(self, padded: Tensor) -> Tensor:
        rows = padded.reshape(-1, padded.shape[2])
        return rows if self._is_full else rows[self._flat]

    @cached_property
    def _is_full(self) -> bool:
        return len(self.client) == self.clients * self.width

    @cached_property
    def in_order(self) -> bool:
        return torch.equal(self.slot, self.place)

    @cached_property
    def _flat(self) -> Tensor:
        return self.client * self.width + self.slot


class Observer(Protocol):
    """Sees the inputs and the slopes of every step's records."""

    def output(self, step: Step, h: Tensor, slope: Tensor, along: Tensor) -> None:
        """`slope`: by the output h, before it is scaled. `along`: the slope of the scaled output along itself, which
        scaling takes away (0 without scaling)."""

    def layer(self, step: Step, depth: int, inputs: Tensor, slope: Tensor) -> None: ...

    def first_matrix(self, step: Step, slope: Tensor) -> None: ...

    def end_step(self, step: Step, rows: Tensor | None) -> None:
        """`rows`: of the clients, before they are scaled back to length 1; None if they are fixed."""


class Layer:
    """A dense layer of all clients. Each has its own bias."""

    def __init__(self, layer: torch.nn.Linear, clients: int, settings: ClientSettings) -> None:
        self.settings, self.weight, self.sent_bias = settings, layer.weight.detach(), layer.bias.detach()
        self.bias = self.sent_bias.repeat(clients, 1)
        self.bias_velocity = torch.zeros_like(self.bias)

    def _move_bias(self, slopes: Tensor, step: Step) -> None:
        bias, velocity = self.bias[: step.clients], self.bias_velocity[: step.clients]
        velocity.mul_(self.settings.momentum).add_(slopes.sum(1)).add_(bias, alpha=self.settings.weight_decay)
        bias.sub_(velocity, alpha=self.settings.learning_rate)


class SharedLayer(Layer):
    """All clients multiply with the matrix that the server sent, and keep the inputs and slopes of all their steps."""

    def __init__(self, layer: torch.nn.Linear, clients: int, settings: ClientSettings, slots: int) -> None:
        super().__init__(layer, clients, settings)
        self.inputs = self.weight.new_zeros(clients, slots, self.weight.shape[1])
        self.slopes = self.weight.new_zeros(clients, slots, self.weight.shape[0])

    def forward(self, x: Tensor, step: Step, a: float, k: Tensor) -> Tensor:
        padded, used = step.padded(x), len(k)
        self.inputs[: step.clients, used : used + step.width] = padded
        out = torch.addmm(self.bias[step.client], x, self.weight.T, alpha=a)
        if used:
            like = torch.bmm(padded, self.inputs[: step.clients, :used].mT).mul_(k)
            out -= step.flat(torch.bmm(like, self.slopes[: step.clients, :used]))
        return out

    def backward(self, slope: Tensor, step: Step, a: float, k: Tensor) -> Tensor:
        padded, used = step.padded(slope), len(k)
        self.slopes[: step.clients, used : used + step.width] = padded
        out = torch.mm(slope, self.weight).mul_(a)
        if used:
            like = torch.bmm(padded, self.slopes[: step.clients, :used].mT).mul_(k)
            out -= step.flat(torch.bmm(like, self.inputs[: step.clients, :used]))
        return out

    def move(self, step: Step, used: int) -> None:
        self._move_bias(self.slopes[: step.clients, used : used + step.width], step)

    def undo(self, clients: list[int]) -> None:
        self.bias[clients] = self.sent_bias
        self.inputs[clients] = self.slopes[clients] = 0

    def add_change(self, change: Tensor, weight: Tensor, a: Tensor, k: Tensor) -> None:
        """Add Σ p_u (θ - θ_u) of the matrix, where θ_u = a θ - Σ_i k_i B_iᵀ A_i."""
        factor = (k * weight.unsqueeze(1)).view(-1, 1)
        change.addmm_((self.slopes.flatten(0, 1) * factor).T, self.inputs.flatten(0, 1))
        if lost := float((weight * (1 - a)).sum()):
            change.add_(self.weight, alpha=lost)


class OwnLayer(Layer):
    """Each client has a matrix of its own. Every step needs records: a sample may have none, but it is one step."""

    def __init__(self, layer: torch.nn.Linear, clients: int, settings: ClientSettings) -> None:
        super().__init__(layer, clients, settings)
        self.own = self.weight.repeat(clients, 1, 1)
        self.velocity = torch.zeros_like(self.own) if settings.momentum else None
        self.inputs = self.slopes = self.own[:, :0]

    def forward(self, x: Tensor, step: Step, a: float, k: Tensor) -> Tensor:
        self.inputs = step.padded(x)
        return step.flat(torch.baddbmm(self.bias[: step.clients].unsqueeze(1), self.inputs, self._of(step).mT))

    def backward(self, slope: Tensor, step: Step, a: float, k: Tensor) -> Tensor:
        self.slopes = step.padded(slope)
        return step.flat(torch.bmm(self.slopes, self._of(step)))

    def move(self, step: Step, used: int) -> None:
        rate, decay, slopes = self.settings.learning_rate, self.settings.weight_decay, self.slopes
        if self.velocity is None:
            self._of(step).baddbmm_(slopes.mT, self.inputs, beta=1 - rate * decay, alpha=-rate)
        else:
            velocity = self.velocity[: step.clients]
            velocity.baddbmm_(slopes.mT, self.inputs, beta=self.settings.momentum).add_(self._of(step), alpha=decay)
            self._of(step).sub_(velocity, alpha=rate)
        self._move_bias(slopes, step)

    def undo(self, clients: list[int]) -> None:
        self.bias[clients], self.own[clients] = self.sent_bias, self.weight

    def add_change(self, change: Tensor, weight: Tensor, a: Tensor, k: Tensor) -> None:
        change.add_(self.weight, alpha=float(weight.sum())).sub_(torch.tensordot(weight, self.own, 1))

    def _of(self, step: Step) -> Tensor:
        return self.own[: step.clients]


class LocalSteps:
    """A group of clients with an encoder of sparse features. They stand in the order of their numbers of steps, most
    first, so that those that still work are the first ones.

    Memory: for each client and record visit a row of inputs and slopes for each dense layer, or with `own` a matrix for
    each client and dense layer (two with momentum); for each client records × records and records × width of the first
    matrix.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        rows: Tensor,
        settings: ClientSettings,
        chance: Chance,
        steps: list[Step],
        trains_rows: bool,
        own: bool = False,
    ) -> None:
        self.encoder, self.settings, self.chance, self.steps = encoder, settings, chance, steps
        self.sent_rows, self.rows, self.trains_rows = rows, rows.clone(), trains_rows
        self.row_velocity = torch.zeros_like(self.rows)
        self.coefficients = Coefficients(settings)
        dense, slots = encoder.dense_layers, 0 if own else sum(step.width for step in steps)
        self.layers: Sequence[SharedLayer | OwnLayer]
        if own:
            self.layers = [OwnLayer(layer, len(rows), settings) for layer in dense]
        else:
            self.layers = [SharedLayer(layer, len(rows), settings, slots) for layer in dense]
        self.keeps_steps = len(dense) > 0 and not own
        self.final_a = rows.new_ones(len(rows))
        self.final_k = rows.new_zeros(len(rows), slots)

    def run(self, held: HeldRecords, slope: Slope, observer: Observer | None = None) -> None:
        """Take all steps. `held`: the clients' records, in which their parts of the first matrix's change remain."""
        now = self.coefficients
        for number, step in enumerate(self.steps):
            used = len(now.k)
            if len(step.client):
                self._take(step, held, slope, observer)
            else:
                held.add(None, step, self.settings)
                for layer in self.layers:
                    layer.move(step, used)
            now.step(step.width if self.keeps_steps else 0)
            last = number + 1 == len(self.steps)
            working = 0 if last else self.steps[number + 1].clients
            self.final_a[working : step.clients] = now.a
            self.final_k[working : step.clients, : len(now.k)] = self._k()

    def undo(self, clients: list[int], held: HeldRecords) -> None:
        """Put these clients back to the θ and the rows that the server sent: all is finite again, for weights of 0."""
        self.rows[clients] = self.sent_rows[clients]
        held.added[clients] = 0
        for layer in self.layers:
            layer.undo(clients)

    def _k(self) -> Tensor:
        return torch.from_numpy(self.coefficients.k).to(self.rows)

    def _take(self, step: Step, held: HeldRecords, slope: Slope, observer: Observer | None) -> None:
        a, k = self.coefficients.a, self._k()
        h = held.product(step, a)
        keys, passed = held.keys(step), []
        for depth, layer in enumerate(self.layers):
            positive = torch.relu_(h) if depth or self.encoder.relu_first else None
            before = h.requires_grad_()
            after = self.chance.drop(before, keys, self.encoder.first_layer + depth)
            passed.append((positive, before, after))
            h = layer.forward(after.detach(), step, a, k)
        pull, by_rows = slope(h, step, self.rows)
        for depth, layer in reversed(list(enumerate(self.layers))):
            positive, before, after = passed[depth]
            if observer is not None:
                observer.layer(step, depth, after.detach(), pull)
            below = layer.backward(pull, step, a, k)
            layer.move(step, len(k))
            if before is not after:
                (below,) = torch.autograd.grad(after, before, below)
            pull = below if positive is None else torch.ops.aten.threshold_backward(below, positive.detach(), 0)
        held.add(pull, step, self.settings)
        moved = None if by_rows is None else self._move_rows(step, by_rows)
        if observer is not None:
            observer.first_matrix(step, pull)
            observer.end_step(step, moved)

    def _move_rows(self, step: Step, gradient: Tensor) -> Tensor:
        """Return the rows before they are scaled back to length 1."""
        rows, velocity = self.rows[: step.clients], self.row_velocity[: step.clients]
        velocity.mul_(self.settings.momentum).add_(gradient[: step.clients])
        moved = rows - self.settings.row_rate * velocity
        rows.copy_(unit_rows(moved))
        return moved


class HeldRecords:
    """The first matrix: the clients' records X_u, their products with θ and with each other, and C_u."""

    def __init__(
        self,
        start: Tensor,
        keys: Tensor,
        of_pair: tuple[Tensor, ...],
        likeness: Tensor | None,
        shape: tuple[int, int],
        momentum: bool,
    ) -> None:
        """`start`: the product of the records and θ. `of_pair`: the row of the product of each pair, its client,
        and its place among the client's records. `likeness`: X_u X_uᵀ of each client; None if no client takes a second
        step. `shape`: clients, and the most records of one."""
        self.start, self._keys = start, keys
        self.record, self.client, self.place = of_pair
        self.likeness = likeness
        self.of_place = torch.zeros(shape, dtype=torch.int64, device=start.device)
        self.of_place[self.client, self.place] = self.record
        self.added = start.new_zeros(*shape, start.shape[1])
        self.velocity = torch.zeros_like(self.added) if momentum else None
        self.moved = False

    def keys(self, step: Step) -> Tensor:
        return self._keys[self.of_place[step.client, step.place]]

    def product(self, step: Step, a: float) -> Tensor:
        h = self.start[self.of_place[step.client, step.place]]
        if a != 1:
            h *= a
        if self.moved:
            assert self.likeness is not None
            whole = self._is_whole(step)
            like = self.likeness[: step.clients] if whole else step.padded(self.likeness[step.client, step.place])
            h -= step.flat(torch.bmm(like, self.added[: step.clients]))
        return h

    def _is_whole(self, step: Step) -> bool:
        """Return whether a step has all records of its clients, in their order."""
        return step.width == self.added.shape[1] and step.in_order

    def add(self, slope: Tensor | None, step: Step, settings: ClientSettings) -> None:
        """Take a step of the first matrix along the slopes of its outputs."""
        added, rate, decay = self.added[: step.clients], settings.learning_rate, settings.weight_decay
        if self.velocity is None:
            if decay:
                added.mul_(1 - rate * decay)
            if slope is not None and self._is_whole(step):
                added.add_(step.padded(slope), alpha=rate)
            elif slope is not None:
                self.added[step.client, step.place] += rate * slope
        else:
            velocity = self.velocity[: step.clients]
            velocity.mul_(settings.momentum).sub_(added, alpha=decay)
            if slope is not None:
                self.velocity[step.client, step.place] += slope
            added.add_(velocity, alpha=rate)
        self.moved = True


def likeness(
    design: SparseRows | Design, record: np.ndarray, client: np.ndarray, place: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Return X_u X_uᵀ of each client, as clients × records × records, from the rows of all records. Pairs are in the
    order of clients, and those of a client in the order of places."""
    matrix, columns = _parts(design)
    out = np.zeros((*shape, shape[1]), dtype=columns.dtype)
    if matrix is not None:
        starts = np.searchsorted(client, np.arange(shape[0] + 1))
        for number, (start, stop) in enumerate(pairwise(starts.tolist())):
            own = matrix[record[start:stop]]
            out[number, : stop - start, : stop - start] = (own @ own.T).toarray()
    if columns.shape[1]:
        padded = np.zeros((*shape, columns.shape[1]), dtype=columns.dtype)
        padded[client, place] = columns[record]
        out += padded @ padded.transpose(0, 2, 1)
    return out


def _parts(design: SparseRows | Design) -> tuple[csr_matrix | None, np.ndarray]:
    """Return the sparse and the dense columns of a design."""
    rows = design.rows if isinstance(design, Design) else design
    if rows is None or rows.is_dense:
        return None, design.dense().cpu().numpy()
    arrays = tuple(part.cpu().numpy() for part in (rows.rows.weight, rows.rows.index, rows.rows.starts))
    matrix = csr_matrix(arrays, (len(rows), rows.feature_count))
    beside = design.columns.cpu().numpy() if isinstance(design, Design) else matrix.data[:0].reshape(len(rows), 0)
    return matrix, beside
