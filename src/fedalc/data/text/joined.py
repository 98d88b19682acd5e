"""Texts to the rows of a sentence encoder with tf-idf beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack

from fedalc.data.text.base import TextFeatures, listed_texts
from fedalc.data.text.encoded import EncodedText
from fedalc.data.text.settings import TextSettings


class JoinedText(EncodedText):
    """The output of a sentence encoder, then a feature for each term. Each of the two has length 1; terms are then
    multiplied by `text.tfidf`."""

    def __init__(
        self,
        settings: TextSettings,
        folder: Path,
        digest: str,
        width: int,
        device: str = "cpu",
        *,
        terms: TextFeatures,
    ) -> None:
        super().__init__(settings, folder, digest, width, device)
        self.terms = terms

    @classmethod
    def beside(cls, encoded: EncodedText, terms: TextFeatures) -> JoinedText:
        """Return these features side by side."""
        place = (encoded.settings, encoded.folder, encoded.digest, encoded.feature_count, encoded.device)
        joined = cls(*place, terms=terms)
        joined._network = encoded._network
        return joined

    @property
    def feature_count(self) -> int:
        return self._width + self.terms.feature_count

    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        """Return texts × features as float32. A blank text gives an empty row, a text without known terms the row of
        the encoder alone. Memory: that of both, and the result."""
        from sklearn.preprocessing import normalize  # slow to load

        given = listed_texts(texts)
        encoded = normalize(super().transform(given), copy=False)
        terms = normalize(self.terms.transform(given, workers), copy=False) * np.float32(self.settings.tfidf)
        return csr_matrix(hstack([encoded, terms], format="csr", dtype=np.float32))

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        _, facts = super().parts()
        arrays, of_terms = self.terms.parts()
        return arrays, {**facts, "terms": of_terms}
