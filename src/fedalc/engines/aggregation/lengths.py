"""The usual length of the parties' changes: a median over parties, so that no single party can move it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

JUDGES = 3  # with fewer lengths none can be called absurd


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the length of a change: the norm of all its numbers as one vector."""
    return math.sqrt(sum(_square(tensor) for tensor in tensors))


def _square(tensor: Tensor) -> float:
    numbers = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(numbers.double().square().sum().item())


def median_length(lengths: Iterable[float]) -> float:
    """Return the median; of an even number, the lower of the middle two. So half of the parties may lie without raising
    it above the longest honest length, and of two parties neither can raise it above the other's length."""
    return statistics.median_low(lengths)


def usual_length(lengths: Iterable[float], least: int = 2) -> float:
    """Return the median. If most lengths are zero (parties have nothing left to learn, or withhold their change), it is
    the median of the others, if there are at least `least`; else zero: one party alone does not show what is usual.

    >>> usual_length([1.0, 2.0, 9.0]), usual_length([0.0, 0.0, 0.0, 2.0, 2e9]), usual_length([0.0, 0.0, 2e9])
    (2.0, 2.0, 0.0)
    """
    known = list(lengths)
    moving = [length for length in known if length > 0]
    if len(known) > 1 and (median := median_length(known)) > 0:
        return median
    return median_length(moving) if len(moving) >= max(least, 2) else 0.0


class Lengths:
    """The length of each party's last change, including parties that were not drawn for the last round.

    `usual` is the usual length among them, `largest` the largest usual length so far. Both stay unchanged if there is
    no usual length. `largest` never falls, and a change above a hundred times `largest` is refused. So if most lengths
    are zero, `largest` needs JUDGES others: one of two could otherwise set it so low that all others are refused.
    """

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self.usual = 0.0
        self.largest = 0.0

    def note(self, lengths: Mapping[int, float]) -> None:
        """Record the lengths of a round's accepted changes, as they were before they were cut."""
        self.last.update(lengths)
        self.usual = usual_length(self.last.values()) or self.usual
        self.largest = max(self.largest, usual_length(self.last.values(), JUDGES))

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {
            "lengths.party": torch.tensor(list(self.last), dtype=torch.int64),
            "lengths.last": torch.tensor(list(self.last.values()), dtype=torch.float64),
            "lengths.usual": torch.tensor(self.usual, dtype=torch.float64),
            "lengths.largest": torch.tensor(self.largest, dtype=torch.float64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state. Checkpoints of older versions have none of it, or all but `largest`."""
        if "lengths.party" in tensors:
            parties, last = tensors["lengths.party"].tolist(), tensors["lengths.last"].tolist()
            self.last = dict(zip(parties, last, strict=True))
            self.usual = tensors["lengths.usual"].item()
        if "lengths.largest" in tensors:
            self.largest = tensors["lengths.largest"].item()
