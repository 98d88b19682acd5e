"""A built-in problem of verification: embeddings of 40 enrolled persons and 20 strangers, generated.

They look like embeddings of a pretrained network: persons differ in some directions more than in others, all records
share a mean, and a person's records vary most in a few directions that say nothing about who it is (a microphone, the
light). So the cosine to a person's mean is good, and a model of both kinds of variation is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Dataset, Split

WIDTH = 64
_NUISANCE = 6  # directions in which a person's records vary most


@dataclass(frozen=True)
class IdentitiesSize:
    enrolled: int = 40
    strangers: int = 20
    train: int = 20
    """Records of each enrolled person to train on."""
    test: int = 8


def make_identities(size: IdentitiesSize | None = None, seed: int = 30) -> Dataset:
    """Generate the dataset of this size and seed. It is the same on every machine, up to rounding."""
    size = size or IdentitiesSize()
    rng = np.random.default_rng(seed)
    persons = size.enrolled + size.strangers
    spread = np.linspace(1.0, 0.2, WIDTH)
    means = 1.2 * rng.standard_normal(WIDTH) + 1.6 * spread * rng.standard_normal((persons, WIDTH))
    nuisance = np.linalg.qr(rng.standard_normal((WIDTH, _NUISANCE)))[0].T
    each = size.train + size.test

    def records(person: int) -> np.ndarray:
        noise = 1.5 * rng.standard_normal((each, WIDTH)) + 3.0 * rng.standard_normal((each, _NUISANCE)) @ nuisance
        found = means[person] + noise
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), dtype=np.float32)

    found = [records(person) for person in range(persons)]
    names = tuple(f"person {number + 1}" for number in range(size.enrolled))
    train, test = (
        _split([own[rows] for own in found[: size.enrolled]], size.enrolled)
        for rows in (slice(0, size.train), slice(size.train, each))
    )
    nobody = np.concatenate([own[size.train :] for own in found[size.enrolled :]])
    strangers = Split(csr_matrix(nobody), csr_matrix((len(nobody), size.enrolled), dtype=np.float32))
    return Dataset("identities", train, test, names, strangers=strangers)


def _split(records: list[np.ndarray], count: int) -> Split:
    owner = np.repeat(np.arange(count), [len(own) for own in records])
    return Split(csr_matrix(np.concatenate(records)), csr_matrix(np.eye(count, dtype=np.float32)[owner]))
