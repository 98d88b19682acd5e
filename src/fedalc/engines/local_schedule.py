"""What the clients of a group do in each local step, and what SGD makes of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedalc.config.schema import ClientSettings


@dataclass
class Coefficients:
    """θ_u = a θ - Σ_i k_i ∇_i and momentum v = a' θ + Σ_i m_i ∇_i, over all steps so far."""

    settings: ClientSettings
    a: float = 1.0
    a_velocity: float = 0.0
    k: np.ndarray = field(default_factory=lambda: np.zeros(0))
    m: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def step(self) -> None:
        rate, decay, momentum = self.settings.learning_rate, self.settings.weight_decay, self.settings.momentum
        self.m = np.append(momentum * self.m - decay * self.k, 1.0)
        self.k = np.append(self.k, 0.0) + rate * self.m
        self.a_velocity = momentum * self.a_velocity + decay * self.a
        self.a -= rate * self.a_velocity


@dataclass(frozen=True)
class Step:
    """The records of one step of the clients that still work: the first ones of the group. Records are in the order of
    clients."""

    sizes: tuple[int, ...]  # of each client that still works, its records
    client: Tensor  # of each record: its client's place in the group
    at: Tensor  # and its own among the records of the whole group
    first_epoch: Tensor  # and whether it is in its client's first epoch

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @cached_property
    def in_order(self) -> bool:
        """Whether it has the first ones of the group's records, in their order."""
        return torch.equal(self.at, torch.arange(len(self.at), device=self.at.device))

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Return the rows of each client."""
        return rows.split(self.sizes)

    def of_clients(self, rows: Tensor) -> Tensor:
        """Return for each record the row of its client."""
        return rows.index_select(0, self.client)

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sum of the rows of each client."""
        return rows.new_zeros(self.clients, *rows.shape[1:]).index_add_(0, self.client, rows)


@dataclass(frozen=True)
class Slots:
    """Where a client keeps rows of the records of its steps: one for each visit, in the order of steps."""

    before: slice  # those of earlier steps
    now: slice
    k: Tensor  # of each earlier row: the coefficient of its gradient


class Visits:
    """A slot for each visit of a record, client by client."""

    def __init__(self, steps: Sequence[Step], clients: int) -> None:
        sizes = np.zeros((len(steps) + 1, clients), dtype=np.int64)
        for number, step in enumerate(steps):
            sizes[number + 1, : step.clients] = step.sizes
        self.starts = np.append(0, sizes.sum(0).cumsum()).tolist()
        self._begins = self.starts[:-1] + sizes.cumsum(0)  # of each step and client
        self._step = np.concatenate([np.repeat(np.arange(len(steps)), of_client) for of_client in sizes[1:].T])

    def of(self, client: int) -> slice:
        return slice(self.starts[client], self.starts[client + 1])

    def of_slots(self, of_clients: Tensor) -> Tensor:
        """Return for each slot the number of its client."""
        counts = torch.tensor(self.starts, device=of_clients.device).diff()
        return of_clients.repeat_interleave(counts)

    def coefficients(self, k: np.ndarray, like: Tensor) -> Tensor:
        """Return the coefficient of each slot, from those of the steps so far; 0 for later steps."""
        of_steps = np.append(k, np.zeros(len(self._begins) - 1 - len(k)))
        return torch.from_numpy(of_steps[self._step]).to(like)

    def slots(self, number: int, step: Step, k: np.ndarray, like: Tensor) -> list[Slots]:
        """Return the slots of each client in a step."""
        factors = self.coefficients(k, like)
        begins, ends = self._begins[number : number + 2].tolist()
        bounds = zip(self.starts[: step.clients], begins, ends, strict=False)
        return [Slots(slice(start, begin), slice(begin, end), factors[start:begin]) for start, begin, end in bounds]


class Observer(Protocol):
    """Sees the inputs and the slopes of every step's records."""

    def output(self, step: Step, h: Tensor, slope: Tensor, along: Tensor) -> None:
        """`slope`: by the output h, before it is scaled. `along`: the slope of the scaled output along itself, which
        scaling takes away (0 without scaling)."""

    def layer(self, step: Step, depth: int, inputs: Tensor, slope: Tensor) -> None: ...

    def first_matrix(self, step: Step, slope: Tensor) -> None: ...

    def end_step(self, step: Step, rows: Tensor | None) -> None:
        """`rows`: of the clients, before they are scaled back to length 1; None if they are fixed."""
