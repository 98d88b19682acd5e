"""Bytes between server and clients, counted on the tensors that are sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


def payload_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass
class Ledger:
    """Bytes sent, over all clients and rounds: `down` from the server to the clients, `up` from the clients to it."""

    down: int = 0
    up: int = 0

    def rows_once(self, W: Tensor, clients: int, rows: int = 1) -> None:
        """Count that each client receives its row, or `rows` of them, before round 1: a fixed W is never sent again."""
        self.down += clients * rows * payload_bytes([W[0]])

    def add(self, other: Ledger) -> None:
        self.down += other.down
        self.up += other.up

    @classmethod
    def of_sums(
        cls,
        features: int,
        number: int,
        clients: int,
        users: int | None = None,
        sends_gram: bool = True,
        secret_dim: int | None = None,
    ) -> Ledger:
        """Return the traffic of a method of one round, with `number` bytes per number. Each client sends half of a
        symmetric features × features matrix, dense, as a masked sum must be, and a vector; it receives nothing. The
        clients of a user send one matrix, their sum; without `users`, each client is a user. Without `sends_gram` each
        client sends only the vector. With `secret_dim`, D of secret rows, a user sends a features × D matrix in place
        of its vectors."""
        users = clients if users is None else users
        vectors = clients if secret_dim is None else users * secret_dim
        return cls(0, number * (users * sends_gram * (features * (features + 1) // 2) + vectors * features))

    @classmethod
    def of_round(
        cls, theta: Iterable[Tensor], W: Tensor, clients: int, rows_travel: bool, users: int | None = None
    ) -> Ledger:
        """Return the traffic of a round. Each participant receives θ, and its row if rows are trained, and sends back
        as much. The clients of a user share one θ and send one mean change; without `users`, each client is a user."""
        copies = clients if users is None else users
        one_way = copies * payload_bytes(theta) + (clients * payload_bytes([W[0]]) if rows_travel else 0)
        return cls(one_way, one_way)

    @classmethod
    def of_curvature(cls, theta: Tensor, users: int) -> Ledger:
        """Return the traffic of H p: each user receives θ and the direction p, and sends a product."""
        once = users * payload_bytes([theta])
        return cls(2 * once, once)
