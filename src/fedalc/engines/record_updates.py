"""A round with differential privacy of whole records: a clipped gradient of the softmax loss, noised (DP-SGD).

Owner u of a record x with m labels sends x ⊗ (p - e_u)/m, where p are the probabilities of all labels, and limits
‖p - e_u‖ to `clip`. The m owners together send at most `clip`, without knowing each other (docs/private-model.md).
"""

from __future__ import annotations

import numpy as np
import torch

from fedalc.engines.base import RoundResult, no_rows
from fedalc.engines.owned_records import Owned, OwnedRecords, whole
from fedalc.engines.record_sums import COUNT, OF_COUNT, noised_count, owners_answer
from fedalc.engines.traffic import Ledger
from fedalc.labels.privacy import NoiseShares
from fedalc.labels.privacy.record_sums import UNIT
from fedalc.models.model import Model

UPDATE = "update"
LARGEST = 1e300


def private_update(records: OwnedRecords, model: Model, round_number: int) -> RoundResult:
    """Return a round of all owners in this process."""
    (theta,) = model.theta
    numbers = owners_update(records, model, records.noise(round_number))
    traffic = records.traffic(len(numbers), theta.numel() * theta.element_size())
    return update_of(numbers, model, records.settings.client.learning_rate, traffic)


@torch.no_grad()
def owners_update(records: OwnedRecords, model: Model, noise: NoiseShares) -> np.ndarray:
    """Return the owners' gradient of each label's scores and their number of records, with noise: whole numbers."""
    (theta,), clip = model.theta, records.settings.privacy.clip
    of_labels = theta.double().cpu().numpy() @ model.W.double().cpu().numpy().T  # columns × labels
    total = np.zeros(of_labels.shape, dtype=np.int64)
    for some in records:
        total += whole(some.x, np.ones(some.x.shape[0])).T @ owners_slopes(some, some.x @ of_labels, clip)
    count = owners_answer(records, COUNT, of_labels.shape[1], noise)
    gradient = noise.noised(total, noise.deviation(clip, 1 - OF_COUNT) * UNIT**2)
    return np.concatenate([gradient.ravel(), count])


def update_of(numbers: np.ndarray, model: Model, rate: float, traffic: Ledger) -> RoundResult:
    """Return the noised mean gradient, times the clients' learning rate. The loss is not released: 0."""
    (theta,) = model.theta
    gradient = numbers[:-1].reshape(len(theta), -1) / (UNIT**2 * noised_count(numbers[-1:]))
    change = torch.from_numpy(gradient).to(theta) @ model.W * rate
    return RoundResult([change], *no_rows(model.W), 0.0, traffic)


def owners_slopes(some: Owned, scores: np.ndarray, clip: float) -> np.ndarray:
    """Return Σ_u (p - e_u)/m over each record's owners u, each clipped and rounded towards zero, in units."""
    scores = np.nan_to_num(scores, nan=0.0, posinf=LARGEST, neginf=-LARGEST)  # of a θ that would break the bound
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    chance = scores / scores.sum(axis=1, keepdims=True)
    record, label = np.repeat(np.arange(len(chance)), some.times), some.owners.indices
    slopes = chance[record]
    slopes[np.arange(len(record)), label] -= 1
    limit = clip / np.maximum(np.linalg.norm(slopes, axis=1), clip)
    slopes *= (limit * some.parts[record] / some.sizes[record] * UNIT)[:, None]
    owners = np.trunc(slopes).astype(np.int64)
    first = np.searchsorted(record, np.arange(len(chance)))
    sums = np.zeros(chance.shape, dtype=np.int64)
    held = some.times > 0
    sums[held] = np.add.reduceat(owners, first[held], axis=0)
    return sums
