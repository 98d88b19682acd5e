"""Refuse changes of θ of absurd length.

This is a sanity check against broken replies. What a lying party can do with a change of plausible length depends on
`server.aggregation`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedalc.engines.aggregation.lengths import JUDGES, Lengths, usual_length

FACTOR = 100.0  # a change this many times as long as the usual one is absurd
ROW_ERROR = 1e-3  # how far a row's length may be from 1


def bad_rows(rows: Tensor) -> bool:
    """Return whether a row does not have length 1, to which its owner should have scaled it (or has NaN)."""
    return not bool(((rows.norm(dim=1) - 1).abs() <= ROW_ERROR).all())


@dataclass(frozen=True)
class Change:
    """A party's reply, well-formed and decoded."""

    party: int
    tensors: list[Tensor]  # the change of θ; for one-round methods, the sums
    rows: Tensor | None
    loss: float
    norm: float


Verdict = tuple[Change, str]
"""A change, and why it is refused; "" if it is accepted."""


class NormScreen:
    """Judges the changes of one round: refuses those longer than `limit`, or without one, than FACTOR × the usual.

    The usual length is the largest median over parties so far (`Lengths`). It does not fall as gradients shrink: in
    the end most changes may be zero. No single party can raise it, whoever else answers. In the first round it is the
    median of the first three replies, which wait for each other; if most are zero, of the first three that are not.
    With fewer than three parties nobody can tell whose length is absurd, so only a `limit` helps.
    """

    def __init__(self, lengths: Lengths, limit: float | None = None) -> None:
        self.lengths = lengths
        self.limit = limit
        self._bound = self._bound_for(lengths.largest)
        self._norms: list[float] = []  # while there is no bound
        self._waiting: list[Change] = []  # for a bound; never more than two

    def judge(self, change: Change) -> list[Verdict]:
        """Return the verdicts that can be given now: none while the change waits for others to compare with."""
        if self._bound is None and math.isfinite(change.norm):
            self._norms.append(change.norm)
            if len(self._norms) >= JUDGES:
                self._bound = self._bound_for(usual_length(self._norms, JUDGES))
        if self._bound is None and 0 < change.norm < math.inf:
            self._waiting.append(change)
            return []
        waiting = [] if self._bound is None else self.judge_waiting()
        return [*waiting, self._verdict(change)]

    def judge_waiting(self) -> list[Verdict]:
        """Return the verdicts on the changes that still wait. Call it after the last reply."""
        waiting, self._waiting = self._waiting, []
        return [self._verdict(change) for change in waiting]

    def _bound_for(self, usual: float) -> float | None:
        return self.limit or (FACTOR * usual if usual > 0 else None)

    def _verdict(self, change: Change) -> Verdict:
        bound = math.inf if self._bound is None else self._bound
        if change.norm > bound or not math.isfinite(change.norm):
            return change, f"a change of length {change.norm:.3g}, where at most {bound:.3g} is credible"
        return change, ""
