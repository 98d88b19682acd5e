"""Bytes between server and clients, counted on the tensors that travel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


def payload_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass
class Ledger:
    """Totals over all clients and rounds. `down` is from the server to the clients, `up` is back."""

    down: int = 0
    up: int = 0

    def rows_once(self, W: Tensor, clients: int) -> None:
        """Before round 1 each client receives its own row: all that ever travels of a fixed W."""
        self.down += clients * payload_bytes([W[0]])

    def add(self, other: Ledger) -> None:
        self.down += other.down
        self.up += other.up

    @classmethod
    def of_sums(cls, features: int, number: int, clients: int, users: int | None = None) -> Ledger:
        """Once: each client sends half of a symmetric features × features matrix, whole, as a masked sum has to be, and
        a vector. It receives nothing. A user's clients send one matrix, their sum (without `users` each is on its own).
        """
        matrices = clients if users is None else users
        return cls(0, number * (matrices * (features * (features + 1) // 2) + clients * features))

    @classmethod
    def of_round(
        cls, theta: Iterable[Tensor], W: Tensor, clients: int, rows_travel: bool, users: int | None = None
    ) -> Ledger:
        """Each participant receives θ, and its row if rows are trained, and sends back as much. A user's clients share
        one θ there, and one mean change back (without `users` each is on its own)."""
        copies = clients if users is None else users
        one_way = copies * payload_bytes(theta) + (clients * payload_bytes([W[0]]) if rows_travel else 0)
        return cls(one_way, one_way)
