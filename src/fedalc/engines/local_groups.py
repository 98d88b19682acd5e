"""Which clients take their local steps side by side: those that fit into memory, and into the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.models.encoders.text import TextEncoder

OWN = 16.0  # a client gets dense matrices of its own if records of a step × record visits exceed OWN × layers' width
STEP = 2**20  # numbers of a step's records in the first matrix: more leave the cache, and their memory comes anew
CACHE = 2**22  # numbers in the dense matrices of clients that work together, if each has its own: more leave the cache
PART = 0.25  # of the memory budget for a group; as much is kept for later rounds


@dataclass(frozen=True)
class Work:
    """What a client does in a round."""

    place: int  # among the participants
    client: int
    instances: np.ndarray
    batches: list[list[np.ndarray]]  # of each epoch: places in `instances`

    @cached_property
    def steps(self) -> int:
        return sum(map(len, self.batches))

    @cached_property
    def visits(self) -> int:
        return sum(len(batch) for epoch in self.batches for batch in epoch)

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.batches[0]))


class Room:
    """The memory for groups of clients, in numbers, and what a client needs of it."""

    def __init__(self, encoder: TextEncoder, settings: Experiment, compared: int) -> None:
        """`compared`: labels that a loss over all labels compares with."""
        layers = encoder.dense_layers
        self.matrices = sum(layer.weight.numel() for layer in layers)
        self.widths = sum(layer.in_features + layer.out_features for layer in layers)
        self.first, self.columns = encoder.embedding.shape[1], count_columns(encoder)
        self.momentum, self.compared = settings.client.momentum > 0, compared
        self.most = PART * settings.memory_budget / encoder.embedding.element_size()

    def numbers(self, work: Work) -> float:
        """Return how many numbers a client needs in memory."""
        of_layers = work.visits * self.widths
        if self.own(work):
            of_layers = (1 + self.momentum) * self.matrices + 2 * work.longest * self.widths
        records = len(work.instances)
        of_record = (4 + self.momentum) * self.first + 2 * self.columns + 2 * records * (work.steps > 1)
        return of_layers + records * of_record + 3 * work.longest * self.compared

    def of_products(self, records: int) -> int:
        """Return how many numbers the products of records and θ need."""
        return records * (2 * self.first + self.columns)

    def own(self, work: Work) -> bool:
        """Return whether a client needs dense matrices of its own. To read and write them takes time by their size; to
        correct the shared product takes time by (records of a step) × (records of all steps before)."""
        if not self.matrices or work.steps < 2:
            return False
        return work.longest * work.visits > OWN * self.matrices / (self.widths / 2)

    def groups(self, work: list[Work]) -> Iterator[list[Work]]:
        """Yield clients together, those with the most steps first."""
        group: list[Work] = []
        taken, of_own = 0.0, False
        for one in sorted(work, key=lambda one: (self.own(one), -one.steps, -len(one.instances))):
            own, needs = self.own(one), self._share(one)
            if group and (own != of_own or taken + needs > 1):
                yield group
                group, taken = [], 0.0
            group.append(one)
            taken, of_own = taken + needs, own
        if group:
            yield group

    def _share(self, work: Work) -> float:
        """Return which part of a group's memory or cache a client takes."""
        of_step, of_matrices = work.longest * self.first / STEP, self.own(work) * self.matrices / CACHE
        return max(self.numbers(work) / self.most, of_step, of_matrices)


def count_columns(encoder: TextEncoder) -> int:
    """Return how many dense columns its design has besides the features."""
    return encoder.width - encoder.feature_count * encoder.uses_features
