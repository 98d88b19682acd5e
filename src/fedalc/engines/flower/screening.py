"""Which changes are refused. A sanity check: it stops what is broken, not a party that lies within reason."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

FACTOR = 100.0  # a change this many times as long as the usual one is absurd
FIRST = 3  # replies from which the usual length is taken when there is no earlier round
ROW_ERROR = 1e-3  # how far a row's length may be from 1


def norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors))


def bad_rows(rows: Tensor) -> bool:
    """Rows are put back to length 1 by their owners; any other length says that something went wrong."""
    return not bool(((rows.norm(dim=1) - 1).abs() <= ROW_ERROR).all())  # also of numbers that are none


@dataclass(frozen=True)
class Change:
    """A party's reply, read and well-formed."""

    party: int
    tensors: list[Tensor]  # the change of θ; of methods of one round, the sums
    rows: Tensor | None
    loss: float
    norm: float


Refusal = tuple[int, str]
"""Who, and why."""


class NormScreen:
    """Refuses changes of absurd length: longer than `limit`, or without one than FACTOR times the usual.

    The usual length is the largest median of an earlier round; it does not fall with the gradients, for at the end most
    of them may be zero. In the first round it is the median of the first three replies, which wait for each other.
    With fewer than three parties nobody can say whose length is the absurd one, so only a `limit` helps.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self.usual = 0.0

    def sift(self, changes: Iterable[Change]) -> Iterator[Change | Refusal]:
        """Those that are in order, and of the others who and why."""
        accepted: list[float] = []
        waiting: list[Change] = []
        bound = self._bound(self.usual)
        for change in changes:
            waiting.append(change)
            if bound is None and len(waiting) < FIRST:
                continue
            bound = bound or self._bound(statistics.median(c.norm for c in waiting))
            yield from self._judged(waiting, bound, accepted)
            waiting = []
        yield from self._judged(waiting, bound, accepted)
        if accepted:
            self.usual = max(self.usual, statistics.median_low(accepted))  # low: of two, the long one must not raise it

    def _bound(self, usual: float) -> float | None:
        return self.limit or (FACTOR * usual if usual > 0 else None)

    def _judged(self, changes: list[Change], bound: float | None, accepted: list[float]) -> Iterator[Change | Refusal]:
        for change in changes:
            limit = math.inf if bound is None else bound
            if change.norm > limit or not math.isfinite(change.norm):
                yield change.party, f"a change of length {change.norm:.3g}, where at most {limit:.3g} is credible"
            else:
                accepted.append(change.norm)
                yield change
