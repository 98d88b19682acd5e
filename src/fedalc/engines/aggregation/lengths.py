"""How long parties' changes usually are. The answer is a median over parties, so that no single one can move it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

JUDGES = 3  # lengths among which one can be called absurd


def norm(tensors: Iterable[Tensor]) -> float:
    """The length of a change: of all its numbers as one vector."""
    return math.sqrt(sum(_square(tensor) for tensor in tensors))


def _square(tensor: Tensor) -> float:
    numbers = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(numbers.double().square().sum().item())


def median_length(lengths: Iterable[float]) -> float:
    """Of an even number the lower one of the two in the middle. So half of the parties may lie without raising it
    above the longest honest length, and of two parties neither can raise it above the other's."""
    return statistics.median_low(lengths)


def usual_length(lengths: Iterable[float], least: int = 2) -> float:
    """The median; where most are zero (nothing left to learn, or nothing that a party may say), that of the others, if
    there are at least `least` of these. Otherwise zero: one party alone cannot say what is usual.

    >>> usual_length([1.0, 2.0, 9.0]), usual_length([0.0, 0.0, 0.0, 2.0, 2e9]), usual_length([0.0, 0.0, 2e9])
    (2.0, 2.0, 0.0)
    """
    known = list(lengths)
    moving = [length for length in known if length > 0]
    if len(known) > 1 and (median := median_length(known)) > 0:
        return median
    return median_length(moving) if len(moving) >= max(least, 2) else 0.0


class Lengths:
    """The length of each party's last change, also of those that were not drawn for the last round.

    `usual` is what is usual among them, `largest` the largest such length that has been. Where nobody can say what is
    usual, they stay as they were. `largest` never falls, and who is above a hundred times it is refused. So where most
    lengths are zero it takes JUDGES others: of two, one could put it so low that nobody is heard any more.
    """

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self.usual = 0.0
        self.largest = 0.0

    def note(self, lengths: Mapping[int, float]) -> None:
        """After a round: of those whose change was taken, before it was cut."""
        self.last.update(lengths)
        self.usual = usual_length(self.last.values()) or self.usual
        self.largest = max(self.largest, usual_length(self.last.values(), JUDGES))

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            "lengths.party": torch.tensor(list(self.last), dtype=torch.int64),
            "lengths.last": torch.tensor(list(self.last.values()), dtype=torch.float64),
            "lengths.usual": torch.tensor(self.usual, dtype=torch.float64),
            "lengths.largest": torch.tensor(self.largest, dtype=torch.float64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Checkpoints of earlier versions have none of this, or all but the largest."""
        if "lengths.party" in tensors:
            parties, last = tensors["lengths.party"].tolist(), tensors["lengths.last"].tolist()
            self.last = dict(zip(parties, last, strict=True))
            self.usual = tensors["lengths.usual"].item()
        if "lengths.largest" in tensors:
            self.largest = tensors["lengths.largest"].item()
