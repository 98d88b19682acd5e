"""Raw texts to a sparse matrix of features.

`fit_text(texts, settings)` learns how, from data in one place. In a federation nobody shares texts: each party calls
`count_documents(texts, settings)`, the counts are summed, and `text_from_counts(sum, settings)` gives the same result.

The result is the same for any number of processes, and on any machine.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.text.base import COUNTING, TextFeatures, refuse_single
from fedalc.data.text.blocks import by_blocks
from fedalc.data.text.counted import CountedText, idf_of, placed_counts
from fedalc.data.text.counts import BucketCounts, DocumentCounts, TermCounts
from fedalc.data.text.encoded import EncodedText
from fedalc.data.text.joined import JoinedText
from fedalc.data.text.keyed import KEYED, KeyedVocabularyText
from fedalc.data.text.settings import TextSettings
from fedalc.data.text.terms import VERSION, Terms
from fedalc.errors import DataError


class VocabularyText(CountedText):
    """A feature for each term of a vocabulary, in the order of the terms' code points."""

    def __init__(self, settings: TextSettings, terms: tuple[str, ...], idf: np.ndarray | None) -> None:
        super().__init__(settings, idf)
        self.terms = terms

    @property
    def feature_count(self) -> int:
        return len(self.terms)

    def counts(self, texts: list[str]) -> csr_matrix:
        return placed_counts(texts, Terms.of(self.settings), self._places.get, self.feature_count)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {term: place for place, term in enumerate(self.terms)}

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays = {"terms": np.frombuffer("\n".join(self.terms).encode(), dtype=np.uint8)}
        return arrays | ({} if self.idf is None else {"idf": self.idf}), self.facts()


class HashedText(CountedText):
    """A feature for each bucket of a hash of the terms: nothing has to be agreed on or stored but the settings."""

    @property
    def feature_count(self) -> int:
        return self.settings.buckets

    def counts(self, texts: list[str]) -> csr_matrix:
        return _bucket_counts(texts, self.settings)

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {} if self.idf is None else {"idf": self.idf}, self.facts()


def fit_text(texts: Iterable[str], settings: TextSettings, workers: int | None = None) -> TextFeatures:
    """Learn from texts how to turn texts into features: the vocabulary, and how many documents have each term.

    Reads `texts` once; give train's texts only. Memory: see `count_documents`.
    """
    if settings.kind == "encoder":
        encoded = EncodedText.open(settings)
        return JoinedText.beside(encoded, fit_text(texts, settings.of_terms, workers)) if settings.tfidf else encoded
    return text_from_counts(count_documents(texts, settings, workers), settings)


def count_documents(texts: Iterable[str], settings: TextSettings, workers: int | None = None) -> DocumentCounts:
    """Return how many documents have each term, or for hashing each bucket.

    This is what a party can share instead of texts. Counts of several parties add up: `merge` one into another, or
    build one from what arrived, `TermCounts(documents, {term: number, …})` and `BucketCounts(documents, array)`.
    Memory: at most a million terms (200 MB; the rest goes to temporary files), or 8 bytes per bucket, and a few blocks
    of texts per process.
    """
    refuse_single(texts)
    if settings.kind == "hashing":
        buckets = BucketCounts(0, np.zeros(settings.buckets, dtype=np.int64))
        for documents, (places, numbers) in by_blocks(
            COUNTING, partial(_with_bucket, settings=settings), texts, workers
        ):
            buckets.documents += documents
            buckets.buckets[places] += numbers
        return buckets
    terms = TermCounts()
    for documents, counts in by_blocks(COUNTING, partial(_with_term, terms=Terms.of(settings)), texts, workers):
        terms.add(documents, counts)
    return terms


def text_from_counts(counts: DocumentCounts, settings: TextSettings) -> TextFeatures:
    """Return the features for these numbers of documents, of one place or summed over parties."""
    if isinstance(counts, BucketCounts):
        return HashedText(settings, idf_of(counts.documents, counts.buckets) if settings.idf else None)
    most = settings.largest_share * counts.documents
    usable = (item for item in counts.items() if settings.least_documents <= item[1] <= most)
    kept = sorted(heapq.nsmallest(settings.most_terms, usable, key=lambda item: (-item[1], item[0])))
    if not kept:
        raise DataError(
            f"no terms: of {counts.documents} texts, no word is in at least {settings.least_documents} "
            f"(text.least_documents) and in at most {most:.0f} of them (text.largest_share)"
        )
    numbers = np.array([count for _, count in kept])
    return VocabularyText(
        settings, tuple(term for term, _ in kept), idf_of(counts.documents, numbers) if settings.idf else None
    )


def text_from_parts(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], device: str = "cpu") -> TextFeatures:
    """Return what `TextFeatures.parts` described. Raises ValueError, KeyError or TypeError if parts do not fit.

    `device`: where a sentence encoder computes.
    """
    settings = TextSettings.model_validate(facts["settings"])
    if settings.kind == "encoder":
        encoded = EncodedText.from_facts(settings, facts, device)
        return JoinedText.beside(encoded, text_from_parts(arrays, facts["terms"])) if settings.tfidf else encoded
    if facts["version"] != VERSION:
        raise ValueError(f"terms of version {facts['version']!r}, but this version of fedalc makes {VERSION}")
    idf = _checked_idf(arrays["idf"]) if settings.idf else None
    if settings.kind == "hashing":
        if idf is not None and len(idf) != settings.buckets:
            raise ValueError(f"{len(idf)} idf for {settings.buckets} buckets")
        return HashedText(settings, idf)
    if KEYED in facts:
        return KeyedVocabularyText.from_parts(settings, arrays["digests"], idf, facts[KEYED])
    if arrays["terms"].dtype != np.uint8 or arrays["terms"].ndim != 1:
        raise ValueError(f"terms: {arrays['terms'].ndim} dimensions of {arrays['terms'].dtype}")
    terms = tuple(arrays["terms"].tobytes().decode().split("\n"))
    if len(set(terms)) != len(terms):
        raise ValueError("a term occurs twice")
    if idf is not None and len(idf) != len(terms):
        raise ValueError(f"{len(idf)} idf for {len(terms)} terms")
    return VocabularyText(settings, terms, idf)


def _checked_idf(idf: np.ndarray) -> np.ndarray:
    if idf.dtype != np.float32 or idf.ndim != 1 or not np.isfinite(idf).all():
        raise ValueError(f"idf: {idf.ndim} dimensions of {idf.dtype}, or not finite")
    return idf


def _with_term(texts: list[str], terms: Terms) -> Counter[str]:
    """Return the number of these texts that have each term."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(terms(text)))
    return counts


def _with_bucket(texts: list[str], settings: TextSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return buckets, and the number of these texts that have a term in each."""
    return np.unique(_bucket_counts(texts, settings).indices, return_counts=True)


def _bucket_counts(texts: list[str], settings: TextSettings) -> csr_matrix:
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(
        analyzer=Terms.of(settings), n_features=settings.buckets, alternate_sign=settings.sign, norm=None
    )
    counts = hashing.transform(texts)
    counts.eliminate_zeros()
    return counts
