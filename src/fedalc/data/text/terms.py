"""The terms of a text: runs of words, and runs of characters within words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from fedalc.data.text.settings import TextSettings

VERSION = 1
"""Raise it when a text would give other terms. A saved model names the version that it was made with."""
CHARACTERS = "#"  # begins a term of characters; no term of words has it

_ASCII_WORD = re.compile(r"\w\w+", re.ASCII)


@cache
def _word() -> re.Pattern[str]:
    """Two or more letters, digits or underscores of any script, with the marks upon them (Devanagari's vowels, …).

    Python's \\w has no marks and would cut such words apart.
    """
    marks = [chr(code) for code in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)) if _is_mark(chr(code))]
    return re.compile(rf"\w[\w{''.join(marks)}]+")


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


@dataclass(frozen=True)
class Terms:
    """Turns a text into the list of its terms, with repetitions."""

    words: tuple[int, int] | None
    characters: tuple[int, int] | None
    lowercase: bool

    @classmethod
    def of(cls, settings: TextSettings) -> Terms:
        return cls(settings.words, settings.characters, settings.lowercase)

    def __call__(self, text: str) -> list[str]:
        words = self._words(text)
        terms = [] if self.words is None else _runs_of_words(words, *self.words)
        if self.characters is not None:
            for word in words:
                terms += _runs_of_characters(word, *self.characters)
        return terms

    def _words(self, text: str) -> list[str]:
        if text.isascii():
            return _ASCII_WORD.findall(text.lower() if self.lowercase else text)
        text = unicodedata.normalize("NFC", text)
        if self.lowercase:
            text = unicodedata.normalize("NFC", text.lower())
        return _word().findall(text)


def _runs_of_words(words: list[str], shortest: int, longest: int) -> list[str]:
    terms = list(words) if shortest == 1 else []
    for length in range(max(2, shortest), longest + 1):
        terms += map(" ".join, zip(*(words[start:] for start in range(length)), strict=False))
    return terms


def _runs_of_characters(word: str, shortest: int, longest: int) -> Iterator[str]:
    """Yield the runs of a word with a space at both ends, which tells beginnings and ends from middles."""
    padded = f" {word} "
    for length in range(shortest, longest + 1):
        if length >= len(padded):
            yield CHARACTERS + padded
            return
        for start in range(len(padded) - length + 1):
            yield CHARACTERS + padded[start : start + length]
