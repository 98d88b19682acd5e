"""Text features of a federation: parties share numbers of documents instead of texts.

Each party counts in how many of its documents a term occurs. The numbers are added up. A record that several parties
have counts once for each: which records are equal follows from their features, which do not exist yet. Hashed features
without idf need no numbers at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedalc.data.text.counts import BucketCounts, DocumentCounts, TermCounts
from fedalc.data.text.features import TextFeatures, count_documents, fit_text, text_from_counts
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError


def needs_counts(settings: TextSettings) -> bool:
    """Return whether features depend on the parties' documents, so that numbers have to be shared."""
    return settings.kind == "vocabulary" or (settings.kind == "hashing" and settings.idf)


def agreed_text(parties: Sequence[Sequence[str]], settings: TextSettings) -> TextFeatures:
    """Return the features that parties with these texts agree on. Only their numbers of documents meet."""
    if not needs_counts(settings):
        return fit_text(parties[0], settings)
    return text_from_counts(summed([count_documents(texts, settings) for texts in parties], settings), settings)


def summed(counts: Sequence[DocumentCounts], settings: TextSettings) -> DocumentCounts:
    """Return the sum of the parties' counts, without terms that fewer than `text.least_parties` of them have.

    >>> north, south = TermCounts(3, {"cough": 3, "fever": 1}), TermCounts(2, {"fever": 2})
    >>> total = summed([north, south], TextSettings(least_parties=2))
    >>> total.documents, dict(total.items())
    (5, {'fever': 3})
    """
    if isinstance(counts[0], BucketCounts):
        buckets = BucketCounts(0, counts[0].buckets * 0)
        for party in counts:
            assert isinstance(party, BucketCounts)
            buckets.merge(party)
        return buckets
    holders: Counter[str] = Counter()
    terms: Counter[str] = Counter()
    for party in counts:
        assert isinstance(party, TermCounts)
        for term, number in party.items():
            holders[term] += 1
            terms[term] += number
    least = min(settings.least_parties, len(counts))
    kept = {term: number for term, number in terms.items() if holders[term] >= least}
    if not kept:
        raise DataError(f"no term is at {least} parties: lower text.least_parties, or hash terms (text.kind=hashing)")
    return TermCounts(sum(party.documents for party in counts), kept)
