"""The dense layers of several clients in local steps (`local_steps`): with θ and corrections, or with matrices of their
own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalc.config.schema import ClientSettings
from fedalc.core.dense_products import product
from fedalc.engines.local_schedule import Slots, Step, Visits


class Layer:
    """A dense layer of all clients. Each has its own bias."""

    def __init__(self, layer: torch.nn.Linear, clients: int, settings: ClientSettings) -> None:
        self.settings, self.weight, self.sent_bias = settings, layer.weight.detach(), layer.bias.detach()
        self.bias = self.sent_bias.repeat(clients, 1)
        self.bias_velocity = torch.zeros_like(self.bias)

    def move(self, step: Step, x: Tensor, slope: Tensor) -> None:
        """Take a step. `x`, `slope`: the inputs of its records and the slopes of their outputs."""
        bias, velocity = self.bias[: step.clients], self.bias_velocity[: step.clients]
        velocity.mul_(self.settings.momentum).add_(step.sums(slope)).add_(bias, alpha=self.settings.weight_decay)
        bias.sub_(velocity, alpha=self.settings.learning_rate)


class SharedLayer(Layer):
    """All clients multiply with the matrix that the server sent, and keep the inputs and slopes of all their steps."""

    def __init__(self, layer: torch.nn.Linear, clients: int, settings: ClientSettings, slots: int) -> None:
        super().__init__(layer, clients, settings)
        self.inputs = self.weight.new_zeros(slots, self.weight.shape[1])
        self.slopes = self.weight.new_zeros(slots, self.weight.shape[0])

    def forward(self, x: Tensor, step: Step, a: float, slots: Sequence[Slots]) -> Tensor:
        out = product(x, self.weight.T).mul_(a).add_(step.of_clients(self.bias))
        _keep_and_correct(x, out, step, slots, self.inputs, self.slopes)
        return out

    def backward(self, slope: Tensor, step: Step, a: float, slots: Sequence[Slots]) -> Tensor:
        out = product(slope, self.weight).mul_(a)
        _keep_and_correct(slope, out, step, slots, self.slopes, self.inputs)
        return out

    def undo(self, clients: Sequence[int], visits: Visits | None) -> None:
        assert visits is not None
        for client in clients:
            self.bias[client] = self.sent_bias
            self.inputs[visits.of(client)] = self.slopes[visits.of(client)] = 0

    def add_change(self, change: Tensor, weight: Tensor, a: Tensor, of_slots: Tensor) -> None:
        """Add Σ p_u (θ - θ_u) of the matrix, where θ_u = a θ - Σ_i k_i B_iᵀ A_i. `of_slots`: p_u k_i."""
        change.addmm_((self.slopes * of_slots.unsqueeze(1)).T, self.inputs)
        if lost := float((weight * (1 - a)).sum()):
            change.add_(self.weight, alpha=lost)


def _keep_and_correct(
    rows: Tensor, out: Tensor, step: Step, slots: Sequence[Slots], kept: Tensor, other: Tensor
) -> None:
    """Keep the rows, and subtract Σ_i k_i (rows kept_iᵀ) other_i from their product with θ."""
    for own, own_out, of_client in zip(step.split(rows), step.split(out), slots, strict=True):
        kept[of_client.now] = own
        if len(own) and len(of_client.k):
            like = torch.mm(own, kept[of_client.before].T).mul_(of_client.k)
            own_out.addmm_(like, other[of_client.before], alpha=-1)


class OwnLayer(Layer):
    """Each client has a matrix of its own. Every step needs records: a sample may have none, but it is one step."""

    def __init__(self, layer: torch.nn.Linear, clients: int, settings: ClientSettings) -> None:
        super().__init__(layer, clients, settings)
        self.own = self.weight.repeat(clients, 1, 1)
        self.velocity = torch.zeros_like(self.own) if settings.momentum else None

    def forward(self, x: Tensor, step: Step, a: float, slots: Sequence[Slots]) -> Tensor:
        pairs = zip(step.split(x), self.own, strict=False)  # the first ones still work
        return torch.cat([product(rows, own.T) for rows, own in pairs]).add_(step.of_clients(self.bias))

    def backward(self, slope: Tensor, step: Step, a: float, slots: Sequence[Slots]) -> Tensor:
        return torch.cat([product(rows, own) for rows, own in zip(step.split(slope), self.own, strict=False)])

    def move(self, step: Step, x: Tensor, slope: Tensor) -> None:
        super().move(step, x, slope)
        rate, decay, own = self.settings.learning_rate, self.settings.weight_decay, self.own[: step.clients]
        moved, factor = (own, -rate) if self.velocity is None else (self.velocity[: step.clients], 1.0)
        if self.velocity is not None:
            moved.mul_(self.settings.momentum).add_(own, alpha=decay)
        elif decay:
            own.mul_(1 - rate * decay)
        for matrix, inputs, slopes in zip(moved, step.split(x), step.split(slope), strict=True):
            matrix.addmm_(slopes.T, inputs, alpha=factor)
        if self.velocity is not None:
            own.sub_(moved, alpha=rate)

    def undo(self, clients: Sequence[int], visits: Visits | None) -> None:
        for client in clients:
            self.bias[client], self.own[client] = self.sent_bias, self.weight

    def add_change(self, change: Tensor, weight: Tensor, a: Tensor, of_slots: Tensor) -> None:
        change.add_(self.weight, alpha=float(weight.sum())).sub_(torch.tensordot(weight, self.own, 1))
