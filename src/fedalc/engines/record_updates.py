"""A round with differential privacy of whole records: a clipped gradient of the softmax loss, noised (DP-SGD).

Owner u of a record x with m labels sends x ⊗ (p - e_u)/m, where p are the probabilities of all labels, and limits
‖p - e_u‖ to `clip`. The m owners together send at most `clip`, without knowing each other (docs/private-model.md).
"""

from __future__ import annotations

import numpy as np
import torch

from fedalc.engines.base import RoundResult, no_rows
from fedalc.engines.owned_records import Owned, OwnedRecords, whole
from fedalc.engines.record_sums import OF_COUNT, noised_count
from fedalc.labels.privacy.record_sums import UNIT
from fedalc.models.model import Model


@torch.no_grad()
def private_update(records: OwnedRecords, model: Model, round_number: int) -> RoundResult:
    """Return the noised mean gradient of a round, times the clients' learning rate. The loss is not released: 0."""
    settings, noise = records.settings, records.noise(round_number)
    (theta,) = model.theta
    of_labels = theta.double().cpu().numpy() @ model.W.double().cpu().numpy().T  # columns × labels
    total = np.zeros(of_labels.shape, dtype=np.int64)
    for some in records:
        total += whole(some.x, np.ones(some.x.shape[0])).T @ owners_slopes(
            some, some.x @ of_labels, settings.privacy.clip
        )
    count = noised_count(records, noise)
    spread = noise.deviation(settings.privacy.clip, 1 - OF_COUNT)
    gradient = noise.noised(total, spread * UNIT**2) / (UNIT**2 * count)
    change = torch.from_numpy(gradient).to(theta) @ model.W * settings.client.learning_rate
    traffic = records.traffic(1 + of_labels.size, theta.numel() * theta.element_size())
    return RoundResult([change], *no_rows(model.W), 0.0, traffic)


def owners_slopes(some: Owned, scores: np.ndarray, clip: float) -> np.ndarray:
    """Return Σ_u (p - e_u)/m over each record's owners u, each clipped and rounded towards zero, in units."""
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
