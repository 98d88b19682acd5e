"""How long parties' changes usually are. The answer is a median over parties, so that no single one can move it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


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


class Lengths:
    """The length of each party's last change, also of those that were not drawn for the last round.

    `usual` is their median, `largest` the largest that has been. One party alone has no median, and a median of zero
    (most parties have nothing left to learn) says nothing of the others: then both stay as they were.
    """

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self.usual = 0.0
        self.largest = 0.0

    def note(self, lengths: Mapping[int, float]) -> None:
        """After a round: of those whose change was taken, before it was cut."""
        self.last.update(lengths)
        if len(self.last) > 1 and (median := median_length(self.last.values())) > 0:
            self.usual = median
            self.largest = max(self.largest, median)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            "lengths.party": torch.tensor(list(self.last), dtype=torch.int64),
            "lengths.last": torch.tensor(list(self.last.values()), dtype=torch.float64),
            "lengths.usual": torch.tensor(self.usual, dtype=torch.float64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Checkpoints of earlier versions have none of this."""
        if "lengths.party" in tensors:
            parties, last = tensors["lengths.party"].tolist(), tensors["lengths.last"].tolist()
            self.last = dict(zip(parties, last, strict=True))
            self.usual = self.largest = tensors["lengths.usual"].item()
