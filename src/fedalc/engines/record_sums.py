"""The sums of one round with differential privacy of whole records (docs/private-model.md).

Owners of a record with m labels send whole numbers. All of a record's owners together change

    the number of records           by at most 1
    Σ x∘x and Σ x, or Σ x xᵀ        by at most 1 each, in Euclidean length
    Σ x for each label              by at most √labels_per_instance

because ‖x‖ ≤ 1 and each owner rounds its part towards zero. The noise follows from these numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import Tensor

from fedalc.config.schema import PrivacySettings
from fedalc.core.blocks import blocks
from fedalc.engines.noised_sums import DiagonalMoments, FullMoments, NoisedSums
from fedalc.engines.owned_records import Owned, OwnedRecords, whole
from fedalc.engines.sums import LARGEST_GRAM
from fedalc.engines.traffic import Ledger
from fedalc.engines.vectors import whole_of
from fedalc.labels.privacy import NoiseShares, NoiseSize
from fedalc.labels.privacy.record_sums import UNIT

# Parts of the budget. Chosen on a part of Bibtex's train; docs/private-model.md says how.
OF_COUNT = 0.01
OF_DIAGONAL = 0.05  # each of Σ x∘x and Σ x
OF_FULL = 0.3
RECORDS_PER_EDGE = 80.0  # with more records than this times the noise's largest eigenvalue Σ x xᵀ is worth its noise

Moments = Literal["diagonal", "full"]
OF_MOMENTS = {"diagonal": 2 * OF_DIAGONAL, "full": OF_FULL}
COUNT = "count"
Ask = Callable[[str, int], np.ndarray]
"""From what is summed, COUNT or the moments, and how many numbers that is: the owners' whole numbers with their noise.
"""


def private_sums(ask: Ask, settings: PrivacySettings, width: int, noise: NoiseSize, W: Tensor) -> NoisedSums:
    """Return the noised sums of all owners: first their number of records, which decides what else to sum."""
    count = noised_count(ask(COUNT, 1))
    moments = chosen_moments(settings.moments, width, count, noise)
    layout = Layout(width, len(W), settings.labels_per_instance, moments)
    return layout.noised_sums(ask(moments, layout.length), count, noise, W)


def owners_answer(records: OwnedRecords, what: str, labels: int, noise: NoiseShares) -> np.ndarray:
    """Return the owners' whole numbers with noise. Nothing else of the records leaves this function."""
    if what == COUNT:
        return noise.noised(records.count_units(), noise.deviation(1, OF_COUNT) * UNIT)
    moments: Moments = "full" if what == "full" else "diagonal"
    sums = RecordSums(records.encoder.width, labels, records.settings.privacy.labels_per_instance, moments)
    return sums.add_all(records).noised(noise)


def sums_in_one_place(records: OwnedRecords, W: Tensor) -> NoisedSums:
    """Return the noised sums of all owners in this process."""
    settings, noise, width = records.settings.privacy, records.noise(1), records.encoder.width

    def ask(what: str, length: int) -> np.ndarray:
        return owners_answer(records, what, records.federation.label_count, noise)

    found = private_sums(ask, settings, width, noise, W)
    moments = width * (width + 1) // 2 if isinstance(found.moments, FullMoments) else 2 * width
    return replace(found, traffic=records.traffic(1 + width + moments))


@dataclass(frozen=True)
class Layout:
    """What the sums after the count consist of, as one vector: Σ x for each label, then the second moments."""

    width: int
    labels: int
    labels_per_record: int
    moments: Moments

    @property
    def length(self) -> int:
        moments = self.width * (self.width + 1) // 2 if self.moments == "full" else 2 * self.width
        return self.width * self.labels + moments

    def label_deviation(self, noise: NoiseSize) -> float:
        """Return σ of the sums for each label."""
        return noise.deviation(math.sqrt(self.labels_per_record), 1 - OF_COUNT - OF_MOMENTS[self.moments])

    def noised_sums(self, numbers: np.ndarray, count: float, noise: NoiseSize, W: Tensor) -> NoisedSums:
        """Read the vector of all owners."""
        size = self.width * self.labels
        cross = torch.from_numpy(numbers[:size].reshape(self.width, self.labels) / UNIT)
        moments = self._moments(numbers[size:], count, noise)
        return NoisedSums(moments, cross, W, self.label_deviation(noise), count, Ledger())

    def _moments(self, numbers: np.ndarray, count: float, noise: NoiseSize) -> DiagonalMoments | FullMoments:
        if self.moments == "full":
            gram = whole_of(torch.from_numpy(numbers / UNIT**2), self.width)
            return FullMoments(gram, noise.deviation(1, OF_FULL))
        squares, totals = torch.from_numpy(numbers / UNIT).split(self.width)
        return DiagonalMoments(squares, totals, count, noise.deviation(1, OF_DIAGONAL))


class RecordSums:
    """Adds up the owners' whole numbers, before the noise."""

    def __init__(self, width: int, labels: int, labels_per_record: int, moments: Moments) -> None:
        self.labels_per_record, self.moments = labels_per_record, moments
        self.layout = Layout(width, labels, labels_per_record, moments)
        self.cross = np.zeros((width, labels), dtype=np.int64)
        self.squares, self.totals = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)
        self.gram = np.zeros((width, width) if moments == "full" else (0, 0), dtype=np.int64)

    def add_all(self, records: Iterable[Owned]) -> RecordSums:
        for some in records:
            self.add(some)
        return self

    def add(self, some: Owned) -> None:
        """Add what these owners send for these records."""
        x, owners, sizes, parts = some
        weight = parts * np.minimum(1, np.sqrt(self.labels_per_record / sizes))
        found = (whole(x, weight).T @ owners).tocoo()
        self.cross[found.row, found.col] += found.data
        if self.moments == "full":
            rows = whole(x, np.sqrt(parts / sizes))
            left = (diags(some.times, dtype=np.int64) @ rows).T.tocsr()
            for columns in blocks(len(self.gram), 20 * len(self.gram)):
                self.gram[columns] += (left[columns] @ rows).toarray()
            return
        self.squares += _total(whole(x.multiply(x).tocsr(), parts / sizes), some.times)
        self.totals += _total(whole(x, parts / sizes), some.times)

    def noised(self, noise: NoiseShares) -> np.ndarray:
        """Return the sums as one vector (`Layout`), with noise."""
        cross = noise.noised(self.cross, self.layout.label_deviation(noise) * UNIT)
        if self.moments == "full":
            gram = noise.noised_symmetric(self.gram, noise.deviation(1, OF_FULL) * UNIT**2)
            return np.concatenate([cross.ravel(), gram[np.triu_indices(len(gram))]])
        deviation = noise.deviation(1, OF_DIAGONAL) * UNIT
        return np.concatenate([cross.ravel(), *(noise.noised(sums, deviation) for sums in (self.squares, self.totals))])


def noised_count(units: np.ndarray) -> float:
    """Return the number of records, at least 1, from its noised units."""
    return max(1.0, float(units[0]) / UNIT)


def chosen_moments(wanted: str, width: int, count: float, noise: NoiseSize) -> Moments:
    """Return which second moments to sum: all products of two features only if the records outweigh the noise on them,
    whose largest eigenvalue is about σ √(2 · width). The count has its noise already, so the choice costs nothing."""
    if wanted != "auto":
        return "full" if wanted == "full" else "diagonal"
    edge = noise.deviation(1, OF_FULL) * math.sqrt(2 * width)
    return "full" if width**2 <= LARGEST_GRAM and count > RECORDS_PER_EDGE * edge else "diagonal"


def _total(rows: csr_matrix, times: np.ndarray) -> np.ndarray:
    return np.asarray(rows.T @ times)
