"""Noise on numbers of documents: how far one document moves them, and that they are whole numbers with enough noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.data.text.settings import TextSettings
from fedalc.labels.privacy.accounting import Release, epsilon_of
from fedalc.labels.privacy.documents import documents_release, noised_documents, seeded_documents
from fedalc.labels.privacy.generator import SecureGenerator

SETTINGS = TextSettings(kind="hashing", buckets=300, epsilon=1.0, terms_per_document=3)


def presence(documents: int) -> csr_matrix:
    dense = np.random.default_rng(3).random((documents, 300)) < 0.03
    return csr_matrix(dense.astype(np.float32))


def test_the_noise_is_enough_and_not_much_more() -> None:
    release = documents_release(SETTINGS)
    assert release.times == 4 and release.kind == "discrete"
    assert epsilon_of([release], 1e-5) <= 1 < epsilon_of([Release("discrete", 0.99 * release.noise, 4)], 1e-5)


def test_one_document_moves_as_many_numbers_as_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Literally: without noise, with and without each document."""

    class Zero:
        def draw(self, generator: SecureGenerator, count: int) -> np.ndarray:
            return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr("fedalc.labels.privacy.documents.discrete_gaussian", lambda sigma: Zero())
    one = presence(1)
    assert one.nnz > 3
    documents, numbers = noised_documents(one, SETTINGS, SecureGenerator.seeded(1))
    assert documents == 1 and numbers.sum() == 3 and numbers.max() == 1 and (numbers <= one.toarray()[0]).all()
    documents, numbers = noised_documents(presence(50), SETTINGS, SecureGenerator.seeded(1))
    assert documents == 50 and numbers.sum() == np.minimum(presence(50).getnnz(axis=1), 3).sum()


def test_every_bucket_gets_noise() -> None:
    empty = csr_matrix((10, 300), dtype=np.float32)
    documents, numbers = seeded_documents(empty, SETTINGS, 0)
    sigma = documents_release(SETTINGS).noise
    assert numbers.dtype.kind == "i" and abs(numbers.std() / sigma - 1) < 0.15 and (numbers < 0).any()
    assert isinstance(documents, int)
    again = seeded_documents(empty, SETTINGS, 0)[1]
    np.testing.assert_array_equal(numbers, again)
    assert (seeded_documents(empty, SETTINGS, 1)[1] != numbers).any()
