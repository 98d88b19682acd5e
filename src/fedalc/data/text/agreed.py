"""Text features of a federation: parties share numbers of documents instead of texts.

Each party counts in how many of its documents a term occurs. The numbers are added up. A record that several parties
have counts once for each: which records are equal follows from their features, which do not exist yet. Hashed features
without idf need no numbers at all.

A simulation knows the terms, a deployment's server only keyed digests of them (`keyed.py`), so that no rule here
depends on a word: `kept_terms` is both's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.registry import imported
from fedalc.data.text.base import TextFeatures, listed_texts
from fedalc.data.text.counted import idf_of
from fedalc.data.text.counts import BucketCounts, TermCounts
from fedalc.data.text.encoded import EncodedText
from fedalc.data.text.features import HashedText, VocabularyText, count_documents, fit_text, text_from_counts
from fedalc.data.text.joined import JoinedText
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError

NOISED = "fedalc.labels.privacy.documents:seeded_documents"
"""What adds noise in a simulation, in a layer above."""


class NotAgreed(DataError):
    """Texts of a party, whose features depend on the other parties' documents too."""


def needs_counts(settings: TextSettings) -> bool:
    """Return whether features depend on the parties' documents, so that numbers have to be shared."""
    return settings.kind == "vocabulary" or settings.tfidf > 0 or (settings.kind == "hashing" and settings.idf)


def agreed_text(parties: Sequence[Sequence[str]], settings: TextSettings) -> TextFeatures:
    """Return the features that parties with these texts agree on. Only their numbers of documents meet."""
    if not needs_counts(settings):
        return fit_text(parties[0], settings)
    if settings.kind == "encoder":
        return JoinedText.beside(EncodedText.open(settings), agreed_text(parties, settings.of_terms))
    if settings.kind == "hashing":
        parts = [_bucket_counts(texts, settings, party) for party, texts in enumerate(parties)]
        total = summed_buckets([buckets for _, buckets in parts])
        return text_from_counts(plausible(sum(documents for documents, _ in parts), total), settings)
    counts = [count_documents(texts, settings) for texts in parties]
    documents = sum(party.documents for party in counts)
    terms, numbers, holders = summed_terms([party for party in counts if isinstance(party, TermCounts)])
    kept = np.flatnonzero(kept_terms(documents, numbers, holders, len(parties), settings))
    idf = idf_of(documents, numbers[kept]) if settings.idf else None
    return VocabularyText(settings, tuple(terms[term] for term in kept.tolist()), idf)


def _bucket_counts(texts: Sequence[str], settings: TextSettings, party: int) -> tuple[int, np.ndarray]:
    """Return a party's number of documents, and of those in each bucket, noised if the settings say so."""
    presence = DocumentCounter(settings).transform(texts)
    if settings.epsilon is None:
        return presence.shape[0], presence.getnnz(axis=0)
    documents, buckets = imported(NOISED)(presence, settings, party)
    return documents, buckets


def plausible(documents: int, buckets: np.ndarray) -> BucketCounts:
    """Return summed numbers of documents. Noise may have made them less than 0, or more than all documents."""
    documents = max(documents, 1)
    return BucketCounts(documents, np.clip(buckets, 0, documents))


def summed_buckets(parties: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sum of the parties' vectors. Nobody needs a single party's: a masked sum would do."""
    return np.asarray(np.sum(list(parties), axis=0, dtype=np.int64))


def summed_terms(counts: Sequence[TermCounts]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return all terms, by code point, how many documents have each, and how many parties.

    >>> summed_terms([TermCounts(3, {"cough": 3, "fever": 1}), TermCounts(2, {"fever": 2})])
    (['cough', 'fever'], array([3, 3]), array([1, 2]))
    """
    numbers: Counter[str] = Counter()
    holders: Counter[str] = Counter()
    for party in counts:
        for term, number in party.items():
            numbers[term] += number
            holders[term] += 1
    terms = sorted(numbers)
    return terms, *(np.array([of[term] for term in terms], dtype=np.int64) for of in (numbers, holders))  # type: ignore[return-value]


def kept_terms(
    documents: int, numbers: np.ndarray, holders: np.ndarray, parties: int, settings: TextSettings
) -> np.ndarray:
    """Return which terms are features. `numbers`: of the documents that have each, of all `documents` of all parties.
    `holders`: of the parties that have each.

    If more than `text.most_terms` could be, of terms in equally many documents all are or none: to choose among them by
    the alphabet one would have to know the words.

    >>> numbers, holders = np.array([5, 3, 3, 2, 9]), np.array([2, 2, 2, 2, 1])
    >>> kept_terms(9, numbers, holders, 3, TextSettings(most_terms=2))
    array([ True, False, False, False, False])
    """
    least, most = min(settings.least_parties, parties), settings.largest_share * documents
    kept: np.ndarray = holders >= least
    if not kept.any():
        raise DataError(f"no term is at {least} parties: lower text.least_parties, or hash terms (text.kind=hashing)")
    kept &= (numbers >= settings.least_documents) & (numbers <= most)
    if not kept.any():
        raise DataError(
            f"no terms: of {documents} texts, no word is in at least {settings.least_documents} "
            f"(text.least_documents) and in at most {most:.0f} of them (text.largest_share)"
        )
    if int(kept.sum()) > settings.most_terms:
        kept &= numbers > -np.partition(-numbers[kept], settings.most_terms)[settings.most_terms]
        if not kept.any():
            raise DataError(
                f"more than {settings.most_terms} terms (text.most_terms) are each in as many documents as any other: "
                "raise it"
            )
    return kept


class DocumentCounter(TextFeatures):
    """Turns texts into features of their own, a column for each term or bucket that they have: by these a party counts
    its documents before parties agree. `fitted`: the columns, of no terms before there were texts. `documents`: how
    many texts there were."""

    def __init__(self, settings: TextSettings) -> None:
        self.asked, self.documents = settings, 0
        every = {"idf": False, "least_documents": 1, "largest_share": 1.0, "most_terms": sys.maxsize}
        self.settings = settings.model_copy(update=every)
        self.fitted: HashedText | VocabularyText
        if settings.kind == "hashing":
            self.fitted = HashedText(self.settings, None)
        else:
            self.fitted = VocabularyText(self.settings, (), None)

    @property
    def feature_count(self) -> int:
        return self.fitted.feature_count

    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        listed = listed_texts(texts)
        self.documents = len(listed)
        if self.settings.kind != "hashing":
            fitted = fit_text(listed, self.settings, workers)
            assert isinstance(fitted, VocabularyText)
            self.fitted = fitted
        return self.fitted.transform(listed, workers)

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self.fitted.parts()
