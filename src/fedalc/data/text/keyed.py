"""A vocabulary whose words nobody wrote down: terms are known by digests under a key of the parties.

The parties' server adds up numbers of documents by these digests, and the model that it keeps has no words. Whoever has
the key hashes the words of a new text, and finds the columns of those that the model knows.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.text.counted import CountedText, placed_counts
from fedalc.data.text.settings import TextSettings
from fedalc.data.text.terms import Terms
from fedalc.errors import FedalcError

KEYED = "keyed"  # in a model's facts: what is known of the key
DIGEST_BYTES = 16
KEY_BYTES = 64
MOST_REMEMBERED = 1_000_000  # terms whose columns were looked up, about 150 MB
_CHECK = b"\0check"  # no term has a null character


def term_digest(key: bytes, term: str) -> bytes:
    return hmac.digest(key, term.encode(), "sha256")[:DIGEST_BYTES]


def term_digests(key: bytes, terms: Iterable[str]) -> np.ndarray:
    """Return one row of 16 bytes for each term. Takes about two microseconds each."""
    joined = b"".join([term_digest(key, term) for term in terms])
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def key_check(key: bytes) -> str:
    """Return a value that shows whether two parties have the same key of terms, and reveals nothing else."""
    return hmac.digest(key, _CHECK, "sha256")[:8].hex()


class KeyedVocabularyText(CountedText):
    """A feature for each term of a vocabulary, in the order of the terms' digests. `key`: that of the digests, if it is
    known; `check`: its check value."""

    def __init__(
        self, settings: TextSettings, digests: np.ndarray, idf: np.ndarray | None, check: str, key: bytes | None = None
    ) -> None:
        super().__init__(settings, idf)
        self.digests, self.check, self._key = digests, check, key
        self._remembered: dict[str, int | None] = {}

    @property
    def feature_count(self) -> int:
        return len(self.digests)

    @property
    def is_locked(self) -> bool:
        """Whether it cannot read texts, for want of the key."""
        return self._key is None

    def unlocked(self, key: bytes) -> KeyedVocabularyText:
        """Return it with the key of its terms."""
        if key_check(key) != self.check:
            raise FedalcError("this is not the key under which parties agreed on the terms; see the run id too")
        return KeyedVocabularyText(self.settings, self.digests, self.idf, self.check, key)

    def counts(self, texts: list[str]) -> csr_matrix:
        if self._key is None:
            raise FedalcError(
                "the terms of this model are known by digests under the parties' key only, so that it cannot read a "
                "text: a holder of the key makes a model that can, with fedalc key name-model RUN KEY NAMES"
            )
        return placed_counts(texts, Terms.of(self.settings), self._place_of, self.feature_count)

    def _place_of(self, term: str) -> int | None:
        if term not in self._remembered:
            assert self._key is not None
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[term] = self._places.get(term_digest(self._key, term))
        return self._remembered[term]

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {digest.tobytes(): place for place, digest in enumerate(self.digests)}

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays = {"digests": self.digests} | ({} if self.idf is None else {"idf": self.idf})
        known = {"check": self.check} | ({} if self._key is None else {"key": self._key.hex()})
        return arrays, self.facts() | {KEYED: known}

    @classmethod
    def from_parts(
        cls, settings: TextSettings, digests: np.ndarray, idf: np.ndarray | None, known: Mapping[str, Any]
    ) -> KeyedVocabularyText:
        """Return what `parts` described. Raises ValueError, KeyError or TypeError if parts do not fit."""
        check_digests(digests)
        if idf is not None and len(idf) != len(digests):
            raise ValueError(f"{len(idf)} idf for {len(digests)} terms")
        if not isinstance(known["check"], str):
            raise TypeError("the check value of its terms' key is not a text")
        text = cls(settings, digests, idf, known["check"])
        if "key" not in known:
            return text
        try:
            return text.unlocked(bytes.fromhex(known["key"]))
        except FedalcError as error:
            raise ValueError(str(error)) from None


def check_digests(digests: np.ndarray) -> None:
    """Raise ValueError unless these are digests of terms, ascending and each once."""
    if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES or not len(digests):
        raise ValueError(f"digests of terms: {digests.shape} of {digests.dtype}")
    if not is_ascending(digests):
        raise ValueError("digests of terms that are not ascending")


def is_ascending(digests: np.ndarray) -> bool:
    """Return whether digests are in ascending order, each once."""
    first, second = np.ascontiguousarray(digests).view(">u8").reshape(-1, 2).T
    return bool(((first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))).all())
