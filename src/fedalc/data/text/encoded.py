"""Texts to the rows of a sentence encoder, read from a folder when they are first needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.pretrained.feature_cache import cached_rows
from fedalc.data.pretrained.weights import PACKAGE, check_folder, digest_of, find_weights
from fedalc.data.text.base import TURNING, TextFeatures, listed_texts
from fedalc.data.text.sentence_encoder import FIELD, VERSION, SentenceNetwork
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError

SORTED_TEXTS = 1024  # sorted by length at a time, so that a batch needs little padding


class EncodedText(TextFeatures):
    """The output of a sentence encoder. Keeps the folder's path and digest, and reads the folder when it is needed."""

    def __init__(self, settings: TextSettings, folder: Path, digest: str, width: int, device: str = "cpu") -> None:
        self.settings, self.folder, self.digest, self._width = settings, folder, digest, width
        self.device = device
        self._network: SentenceNetwork | None = None

    @classmethod
    def open(cls, settings: TextSettings) -> EncodedText:
        """Read the encoder in the folder that the settings name."""
        assert settings.encoder is not None
        folder = _place(settings.encoder)
        check_folder(folder, FIELD)
        network = SentenceNetwork(folder, settings.device)
        text = cls(settings, folder, digest_of(folder, FIELD), network.width, settings.device)
        text._network = network
        return text

    @property
    def feature_count(self) -> int:
        return self._width

    def look_in(self, folder: Path | str) -> None:
        """Look for the encoder in this folder. Its files must be the same."""
        self.folder, self._network = _place(folder), None

    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        """Return texts × features as float32; a blank text gives an empty row. `workers` has no effect.

        Rows of many texts are cached by their content and the encoder's digest. Memory: the rows twice, the network.
        """
        given = listed_texts(texts)

        def batches(places: np.ndarray) -> list[list[int]]:
            parts = [places[at : at + SORTED_TEXTS].tolist() for at in range(0, len(places), SORTED_TEXTS)]
            return [batch for part in parts for batch in self._batches(given, part)]

        def compute(places: Sequence[int]) -> np.ndarray:
            return self.network.rows([given[place] for place in places])

        digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in given]
        key = f"sentence encoder {VERSION} {self.digest} {self.settings.batch}"
        return csr_matrix(cached_rows(key, self._width, digests, batches, compute, TURNING))

    def _batches(self, texts: list[str], places: Sequence[int]) -> list[list[int]]:
        """Return places of texts that are not blank, in batches of texts of similar length."""
        ordered = sorted((place for place in places if texts[place].strip()), key=lambda place: len(texts[place]))
        return [ordered[at : at + self.settings.batch] for at in range(0, len(ordered), self.settings.batch)]

    @property
    def network(self) -> SentenceNetwork:
        """The network, read when it is first needed, and checked to be the one of training."""
        if self._network is None:
            where = "give its folder (--text-encoder FOLDER, or model.text.look_in(folder) in Python)"
            if not self.folder.is_dir():
                raise ConfigError(f"the model's sentence encoder is not in {self.folder}: {where}", FIELD)
            check_folder(self.folder, FIELD)
            if digest_of(self.folder, FIELD) != self.digest:
                raise ConfigError(f"{self.folder}: is not the sentence encoder of training: {where}", FIELD)
            self._network = SentenceNetwork(self.folder, self.device)
        return self._network

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        place = {"folder": str(self.folder), "digest": self.digest, "features": self._width}
        return {}, {"version": VERSION, "settings": self.settings.model_dump(mode="json"), "encoder": place}

    @classmethod
    def from_facts(cls, settings: TextSettings, facts: Mapping[str, Any], device: str) -> EncodedText:
        place = facts["encoder"]
        folder, digest, width = place["folder"], place["digest"], place["features"]
        if not isinstance(folder, str) or not isinstance(digest, str) or type(width) is not int or width < 1:
            raise ValueError("its sentence encoder is not described by a folder, a digest and a number of features")
        return cls(settings, Path(folder), digest, width, device)


def _place(source: str | Path) -> Path:
    """Return the folder: a path, or where an installed package has it."""
    return find_weights(source, FIELD) if str(source).startswith(PACKAGE) else Path(source).expanduser().resolve()
