"""Noise on the numbers of documents that a party shares, so that its hashed texts get document frequencies.

A document counts in at most `text.terms_per_document` buckets, drawn at random, and in the number of documents:
removing it changes that many whole numbers by 1. Each gets discrete Gaussian noise, also buckets that no document has.
Every party adds the whole noise, so that its promise does not depend on the others or on the server.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.text.settings import TextSettings
from fedalc.labels.privacy.accounting import (
    MOST_EPSILON_OF_COUNTS,
    PRECISION,
    Release,
    epsilon_of,
    noise_multiplier,
)
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.labels.privacy.noisy_counts import clip_label_sets
from fedalc.labels.privacy.tables import discrete_gaussian


def documents_release(settings: TextSettings) -> Release:
    """Return what a party releases about each of its documents."""
    assert settings.epsilon is not None
    moved = 1 + settings.terms_per_document
    return Release("discrete", _noise(settings.epsilon, settings.delta, moved), moved)


@cache
def _noise(epsilon: float, delta: float, moved: int) -> float:
    """Return the σ with which `moved` numbers that move by 1 are (ε, δ)-private."""
    epsilon = min(epsilon, MOST_EPSILON_OF_COUNTS)
    noise = noise_multiplier(epsilon, delta, 1) * math.sqrt(moved)
    while (spent := epsilon_of([Release("discrete", noise, moved)], delta)) > epsilon:
        noise *= max(1 + PRECISION / 2, (spent / epsilon) ** 0.5)
    return noise


def noised_documents(
    presence: csr_matrix, settings: TextSettings, generator: SecureGenerator
) -> tuple[int, np.ndarray]:
    """Return the noised number of documents, and of those in each bucket. `presence`: documents × buckets. Numbers may
    be below 0: set to 0 here, the sum over parties would be too large."""
    noise = discrete_gaussian(documents_release(settings).noise)
    clipped = clip_label_sets(presence, settings.terms_per_document, generator)
    documents = presence.shape[0] + int(noise.draw(generator, 1)[0])
    return documents, clipped.getnnz(axis=0) + noise.draw(generator, presence.shape[1])


def seeded_documents(presence: csr_matrix, settings: TextSettings, party: int) -> tuple[int, np.ndarray]:
    """The same with noise that is always the same, for a simulation, which may be loaded and resumed many times."""
    return noised_documents(presence, settings, SecureGenerator.seeded(party))
