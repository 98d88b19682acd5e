"""The sums of one round with differential privacy of whole records (docs/private-model.md).

Owners of a record with m labels send whole numbers. All of a record's owners together change

    the number of records           by at most 1
    Σ x∘x and Σ x, or Σ x xᵀ        by at most 1 each, in Euclidean length
    Σ x for each label              by at most √labels_per_instance

because ‖x‖ ≤ 1 and each owner rounds its part towards zero. The noise follows from these numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import Tensor

from fedalc.core.blocks import blocks
from fedalc.engines.noised_sums import DiagonalMoments, FullMoments, NoisedSums
from fedalc.engines.owned_records import Owned, OwnedRecords, whole
from fedalc.engines.sums import LARGEST_GRAM
from fedalc.labels.privacy import NoiseShares
from fedalc.labels.privacy.record_sums import UNIT

# Parts of the budget. Chosen on a part of Bibtex's train; docs/private-model.md says how.
OF_COUNT = 0.01
OF_DIAGONAL = 0.05  # each of Σ x∘x and Σ x
OF_FULL = 0.3
RECORDS_PER_EDGE = 80.0  # with more records than this times the noise's largest eigenvalue Σ x xᵀ is worth its noise

Moments = Literal["diagonal", "full"]


def private_sums(records: OwnedRecords, W: Tensor) -> NoisedSums:
    """Return the noised sums of all owners. Nothing else of the records leaves this function."""
    settings, noise, width = records.settings.privacy, records.noise(1), records.encoder.width
    count = noised_count(records, noise)
    moments = chosen_moments(settings.moments, width, count, noise)
    sums = RecordSums(width, records.federation.label_count, settings.labels_per_instance, moments)
    sums.add_all(records)
    numbers = 1 + width + (width * (width + 1) // 2 if moments == "full" else 2 * width)
    spread = noise.deviation(math.sqrt(settings.labels_per_instance), 1 - OF_COUNT - OF_MOMENTS[moments])
    cross = torch.from_numpy(noise.noised(sums.cross, spread * UNIT) / UNIT)
    return NoisedSums(sums.noised_moments(count, noise), cross, W, spread, count, records.traffic(numbers))


OF_MOMENTS = {"diagonal": 2 * OF_DIAGONAL, "full": OF_FULL}


class RecordSums:
    """Adds up the owners' whole numbers, before the noise."""

    def __init__(self, width: int, labels: int, labels_per_record: int, moments: Moments) -> None:
        self.labels_per_record, self.moments = labels_per_record, moments
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

    def noised_moments(self, count: float, noise: NoiseShares) -> DiagonalMoments | FullMoments:
        if self.moments == "full":
            deviation = noise.deviation(1, OF_FULL)
            gram = noise.noised_symmetric(self.gram, deviation * UNIT**2) / UNIT**2
            return FullMoments(torch.from_numpy(gram), deviation)
        deviation = noise.deviation(1, OF_DIAGONAL)
        squares, totals = (noise.noised(sums, deviation * UNIT) / UNIT for sums in (self.squares, self.totals))
        return DiagonalMoments(torch.from_numpy(squares), torch.from_numpy(totals), count, deviation)


def noised_count(records: OwnedRecords, noise: NoiseShares) -> float:
    """Return the number of records with noise, at least 1."""
    noised = noise.noised(records.count_units(), noise.deviation(1, OF_COUNT) * UNIT)
    return max(1.0, float(noised[0]) / UNIT)


def chosen_moments(wanted: str, width: int, count: float, noise: NoiseShares) -> Moments:
    """Return which second moments to sum: all products of two features only if the records outweigh the noise on them,
    whose largest eigenvalue is about σ √(2 · width). The count has its noise already, so the choice costs nothing."""
    if wanted != "auto":
        return "full" if wanted == "full" else "diagonal"
    edge = noise.deviation(1, OF_FULL) * math.sqrt(2 * width)
    return "full" if width**2 <= LARGEST_GRAM and count > RECORDS_PER_EDGE * edge else "diagonal"


def _total(rows: csr_matrix, times: np.ndarray) -> np.ndarray:
    return np.asarray(rows.T @ times)
