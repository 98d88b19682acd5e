"""What turns texts into features, of whatever kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.tables.cells import is_missing
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError

COUNTING, TURNING = "texts counted", "texts to features"


class TextFeatures(ABC):
    """Turns texts into rows of features, always in the same way. A model that was trained on texts keeps it."""

    settings: TextSettings

    @property
    @abstractmethod
    def feature_count(self) -> int: ...

    @abstractmethod
    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        """Return texts × features as float32. A text without known terms gives an empty row. Rows are not scaled:
        `encoder.features` says how training and prediction scale them."""

    @abstractmethod
    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and facts to save, from which `text_from_parts` makes it again."""


def listed_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list, if they are strings."""
    refuse_single(texts)
    listed = list(texts)
    for number, text in enumerate(listed):
        check_text(number, text)
    return listed


def refuse_single(texts: Iterable[str]) -> None:
    if isinstance(texts, str | bytes):
        raise DataError("expected a list of texts, found a single one: give [text]")


def check_text(number: int, text: Any) -> None:
    """Refuse what is not a string, with what to do about it."""
    if isinstance(text, str):
        return
    if isinstance(text, bytes):
        raise DataError(f"text {number} is bytes, not a string: decode it, such as text.decode('utf-8')")
    if is_missing(text):
        raise DataError(f"text {number} is missing ({text!r:.20}): leave it out, or give an empty string")
    raise DataError(f"text {number} is not a string: {text!r:.60}")
