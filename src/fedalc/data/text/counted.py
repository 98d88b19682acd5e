"""Texts as numbers of terms, weighted. What the terms' columns are is for subclasses to say."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedalc.data.text.base import TURNING, TextFeatures, refuse_single
from fedalc.data.text.blocks import by_blocks
from fedalc.data.text.settings import TextSettings
from fedalc.data.text.terms import VERSION, Terms


class CountedText(TextFeatures):
    """Terms counted in each text, weighted by the two settings sublinear and idf."""

    def __init__(self, settings: TextSettings, idf: np.ndarray | None) -> None:
        self.settings = settings
        self.idf = idf  # float32, per feature

    @abstractmethod
    def counts(self, texts: list[str]) -> csr_matrix:
        """Return how often the texts have each feature's terms."""

    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        """Return texts × features as float32. Rows are not scaled. Memory: the result twice, and a few blocks of
        texts per process."""
        refuse_single(texts)
        rows = [part for _, part in by_blocks(TURNING, self._weighted, texts, workers)]
        return vstack(rows, format="csr") if rows else csr_matrix((0, self.feature_count), dtype=np.float32)

    def _weighted(self, texts: list[str]) -> csr_matrix:
        counts = self.counts(texts)
        # Products of two float32 are rounded once: the same on every machine, whatever its logarithm's last bit.
        weights = counts.data.astype(np.float32)
        if self.settings.sublinear:
            numbers, places = np.unique(np.abs(counts.data), return_inverse=True)
            weights = np.sign(weights) * (1 + np.log(numbers.astype(np.float64))).astype(np.float32)[places]
        if self.idf is not None:
            weights *= self.idf[counts.indices]
        return csr_matrix((weights, counts.indices.astype(np.int32), counts.indptr), shape=counts.shape)

    def facts(self) -> dict[str, Any]:
        return {"version": VERSION, "settings": self.settings.model_dump(mode="json")}


def placed_counts(texts: list[str], terms: Terms, place_of: Callable[[str], int | None], width: int) -> csr_matrix:
    """Return how often the texts have the term of each column. `place_of`: the column of a term, or None."""
    # (scikit-learn's CountVectorizer gives the same, but importing it takes longer than a small prediction.)
    ends, columns, numbers = [0], [], []
    for text in texts:
        known = Counter(place for term in terms(text) if (place := place_of(term)) is not None)
        for place in sorted(known):
            columns.append(place)
            numbers.append(known[place])
        ends.append(len(columns))
    shape = (len(texts), width)
    return csr_matrix((np.array(numbers, dtype=np.int64), np.array(columns, dtype=np.int32), ends), shape)


def idf_of(documents: int, with_term: np.ndarray) -> np.ndarray:
    """Return the weight of each term from the numbers of documents: all, and those that have it."""
    return (1 + np.log((1 + documents) / (1 + with_term.astype(np.float64)))).astype(np.float32)
