"""A vocabulary of keyed digests: the features of the words, for those who have the key."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from fedalc.data.text.features import VocabularyText, fit_text, text_from_parts
from fedalc.data.text.keyed import KeyedVocabularyText, is_ascending, key_check, term_digest, term_digests
from fedalc.data.text.settings import TextSettings
from fedalc.errors import FedalcError

KEY = bytes(range(64))
TEXTS = ["dry throat", "a dry cough, a cough", "naïve Übung", ""]


def keyed() -> tuple[VocabularyText, np.ndarray, KeyedVocabularyText]:
    plain = fit_text(TEXTS, TextSettings())
    assert isinstance(plain, VocabularyText) and plain.idf is not None
    digests = term_digests(KEY, plain.terms)
    order = np.array(sorted(range(len(digests)), key=lambda row: digests[row].tobytes()))
    return plain, order, KeyedVocabularyText(plain.settings, digests[order], plain.idf[order], key_check(KEY))


def test_a_digest_is_an_hmac() -> None:
    expected = hmac.new(KEY, "übung".encode(), hashlib.sha256).digest()[:16]
    assert term_digest(KEY, "übung") == expected


def test_features_are_those_of_the_words() -> None:
    plain, order, text = keyed()
    unlocked = text.unlocked(KEY)
    for workers in (None, 2):
        found = unlocked.transform([*TEXTS, "unknown words"], workers)
        assert (found != plain.transform([*TEXTS, "unknown words"])[:, order]).nnz == 0
    assert unlocked.feature_count == len(plain.terms)


def test_without_the_key() -> None:
    _, _, text = keyed()
    assert text.is_locked and not text.unlocked(KEY).is_locked
    with pytest.raises(FedalcError, match="fedalc key name-model"):
        text.transform(["dry"])
    with pytest.raises(FedalcError, match="not the key"):
        text.unlocked(bytes(64))


@pytest.mark.parametrize("unlock", [True, False])
def test_saved_and_read_again(unlock: bool) -> None:
    _, _, text = keyed()
    text = text.unlocked(KEY) if unlock else text
    arrays, facts = text.parts()
    again = text_from_parts(arrays, facts)
    assert isinstance(again, KeyedVocabularyText) and again.is_locked is not unlock
    assert (KEY.hex() in repr(facts)) is unlock
    np.testing.assert_array_equal(again.digests, text.digests)
    if unlock:
        assert (again.transform(TEXTS) != text.transform(TEXTS)).nnz == 0


def test_damaged_parts() -> None:
    _, _, text = keyed()
    arrays, facts = text.unlocked(KEY).parts()
    for wrong in (arrays["digests"][::-1], arrays["digests"][:, :8], arrays["digests"][:0], arrays["digests"][[0, 0]]):
        with pytest.raises(ValueError):
            text_from_parts(arrays | {"digests": wrong}, facts)
    with pytest.raises(ValueError, match="idf for"):
        text_from_parts(arrays | {"idf": arrays["idf"][:-1]}, facts)
    for known in ({"check": "00", "key": KEY.hex()}, {"check": key_check(KEY), "key": "xyz"}):
        with pytest.raises(ValueError):
            text_from_parts(arrays, facts | {"keyed": known})
    for known in ({}, {"check": 5}):
        with pytest.raises((KeyError, TypeError)):
            text_from_parts(arrays, facts | {"keyed": known})


def test_ascending() -> None:
    rows = np.zeros((3, 16), dtype=np.uint8)
    rows[1, 15], rows[2, 0] = 255, 128  # the last byte counts least, and bytes are not signed
    assert is_ascending(rows) and not is_ascending(rows[[0, 0]]) and not is_ascending(rows[[2, 1]])
    assert is_ascending(rows[:1]) and is_ascending(rows[:0])
