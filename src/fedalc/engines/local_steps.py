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

import torch
from torch import Tensor

from fedalc.config.schema import ClientSettings
from fedalc.engines.held_records import HeldRecords
from fedalc.engines.local_layers import OwnLayer, SharedLayer
from fedalc.engines.local_schedule import Coefficients, Observer, Step, Visits
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance
from fedalc.models.encoders.text import TextEncoder

Slope = Callable[[Tensor, Step, Tensor], tuple[Tensor, Tensor | None]]
"""From the encoder's outputs of a step's records, before they are scaled to length 1, and the clients' rows: the slopes
by both (None: rows are fixed)."""


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
        dense = encoder.dense_layers
        self.visits = Visits(steps, len(rows)) if len(dense) and not own else None
        self.layers: Sequence[SharedLayer | OwnLayer]
        if self.visits is None:
            self.layers = [OwnLayer(layer, len(rows), settings) for layer in dense]
        else:
            self.layers = [SharedLayer(layer, len(rows), settings, self.visits.starts[-1]) for layer in dense]
        self.final_a = rows.new_ones(len(rows))
        self.final_k = rows.new_zeros(0 if self.visits is None else self.visits.starts[-1])  # of each slot

    def run(self, held: HeldRecords, slope: Slope, observer: Observer | None = None) -> None:
        """Take all steps. `held`: the clients' records, in which their parts of the first matrix's change remain."""
        now = self.coefficients
        for number, step in enumerate(self.steps):
            if len(step.client):
                self._take(number, step, held, slope, observer)
            else:
                held.add(None, step, self.settings)
                for layer in self.layers:
                    layer.move(step, *(layer.weight.new_zeros(0, size) for size in reversed(layer.weight.shape)))
            now.step()
            last = number + 1 == len(self.steps)
            working = 0 if last else self.steps[number + 1].clients
            self.final_a[working : step.clients] = now.a
            if self.visits is not None and working < step.clients:
                done = slice(self.visits.starts[working], self.visits.starts[step.clients])
                self.final_k[done] = self.visits.coefficients(now.k, self.final_k)[done]

    def of_slots(self, weight: Tensor) -> Tensor:
        """Return the coefficient of each slot at the end, times its client's weight."""
        return self.final_k if self.visits is None else self.final_k * self.visits.of_slots(weight)

    def undo(self, clients: list[int], held: HeldRecords) -> None:
        """Put these clients back to the θ and the rows that the server sent: all is finite again, for weights of 0."""
        self.rows[clients] = self.sent_rows[clients]
        held.undo(clients)
        for layer in self.layers:
            layer.undo(clients, self.visits)

    def _take(self, number: int, step: Step, held: HeldRecords, slope: Slope, observer: Observer | None) -> None:
        a, k = self.coefficients.a, self.coefficients.k
        slots = [] if self.visits is None else self.visits.slots(number, step, k, self.rows)
        h = held.product(step, a)
        keys, passed = held.keys(step), []
        for depth, layer in enumerate(self.layers):
            positive = torch.relu_(h) if depth or self.encoder.relu_first else None
            before = h.requires_grad_()
            after = self.chance.drop(before, keys, self.encoder.first_layer + depth)
            passed.append((positive, before, after))
            h = layer.forward(after.detach(), step, a, slots)
        pull, by_rows = slope(h, step, self.rows)
        for depth, layer in reversed(list(enumerate(self.layers))):
            positive, before, after = passed[depth]
            if observer is not None:
                observer.layer(step, depth, after.detach(), pull)
            below = layer.backward(pull, step, a, slots)
            layer.move(step, after.detach(), pull)
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
