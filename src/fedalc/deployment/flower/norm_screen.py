"""Which changes are refused. A sanity check: it stops what is broken. What a lying party can do with a change of
credible length depends on `server.aggregation`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from fedalc.engines.aggregation.lengths import JUDGES, Lengths, usual_length

FACTOR = 100.0  # a change this many times as long as the usual one is absurd
ROW_ERROR = 1e-3  # how far a row's length may be from 1


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

    The usual length is the largest median over parties so far (`Lengths`). It does not fall with the gradients, for at
    the end most of them may be zero; and no party alone can raise it, whoever else is heard. In the first round it is
    that of the first three replies, which wait for each other; if most are zero, of the first three that are not. With
    fewer than three parties nobody can say whose length is the absurd one, so until two have been heard only a `limit`
    helps.
    """

    def __init__(self, lengths: Lengths, limit: float | None = None) -> None:
        self.lengths = lengths
        self.limit = limit

    def sift(self, changes: Iterable[Change]) -> Iterator[Change | Refusal]:
        """Those that are in order, and of the others who and why."""
        waiting: list[Change] = []  # never more than two
        heard: list[float] = []
        bound = self._bound(self.lengths.largest)
        for change in changes:
            if bound is None and math.isfinite(change.norm):
                heard.append(change.norm)
                bound = self._bound(usual_length(heard, JUDGES)) if len(heard) >= JUDGES else None
            if bound is None and 0 < change.norm < math.inf:
                waiting.append(change)
                continue
            if bound is not None:
                yield from _judged(waiting, bound)
                waiting = []
            yield from _judged([change], bound)
        yield from _judged(waiting, bound)

    def _bound(self, usual: float) -> float | None:
        return self.limit or (FACTOR * usual if usual > 0 else None)


def _judged(changes: list[Change], bound: float | None) -> Iterator[Change | Refusal]:
    for change in changes:
        limit = math.inf if bound is None else bound
        if change.norm > limit or not math.isfinite(change.norm):
            yield change.party, f"a change of length {change.norm:.3g}, where at most {limit:.3g} is credible"
        else:
            yield change
