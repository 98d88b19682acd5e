"""Texts to the rows of a sentence encoder, read from a folder when they are first needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.core.progress_events import watched
from fedalc.data.text.base import TURNING, TextFeatures, listed_texts
from fedalc.data.text.sentence_encoder import FIELD, VERSION, SentenceNetwork, check_folder, digest_of
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError

SORTED_TEXTS = 1024  # sorted by length at a time, so that a batch needs little padding
WORTH_CACHING = 500  # texts


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
        folder = Path(settings.encoder).expanduser().resolve()
        check_folder(folder)
        network = SentenceNetwork(folder, settings.device)
        text = cls(settings, folder, digest_of(folder), network.width, settings.device)
        text._network = network
        return text

    @property
    def feature_count(self) -> int:
        return self._width

    def look_in(self, folder: Path | str) -> None:
        """Look for the encoder in this folder. Its files must be the same."""
        self.folder, self._network = Path(folder).expanduser().resolve(), None

    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        """Return texts × features as float32; a blank text gives an empty row. `workers` has no effect.

        Many texts are cached by their content and the encoder's digest. Memory: the rows twice, and the network.
        """
        given = listed_texts(texts)
        if len(given) < WORTH_CACHING:
            return csr_matrix(self._rows(given))
        from fedalc.data.cache import cache_dir, store_arrays  # below: it imports datasets, which import this

        key = hashlib.sha256(f"sentence encoder {VERSION} {self.digest} {self.settings.batch}".encode())
        for text in given:
            key.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        with suppress(Exception):  # missing or damaged
            with np.load(cache_dir() / f"{key.hexdigest()}.npz", allow_pickle=False) as arrays:
                rows = arrays["rows"]
            if rows.shape == (len(given), self._width) and rows.dtype == np.float32 and np.isfinite(rows).all():
                return csr_matrix(rows)
        rows = self._rows(given)
        with suppress(OSError, RuntimeError):
            store_arrays(cache_dir() / f"{key.hexdigest()}.npz", {"rows": rows})
        return csr_matrix(rows)

    def _rows(self, texts: list[str]) -> np.ndarray:
        rows = np.zeros((len(texts), self._width), dtype=np.float32)
        batches = [batch for start in range(0, len(texts), SORTED_TEXTS) for batch in self._batches(texts, start)]
        for places in watched(TURNING, batches, sum(map(len, batches)), len):
            rows[places] = self.network.rows([texts[place] for place in places])
        return rows

    def _batches(self, texts: list[str], start: int) -> list[list[int]]:
        """Return places of texts that are not blank, from `start` on, in batches of texts of similar length."""
        places = [place for place in range(start, min(start + SORTED_TEXTS, len(texts))) if texts[place].strip()]
        places.sort(key=lambda place: len(texts[place]))
        return [places[at : at + self.settings.batch] for at in range(0, len(places), self.settings.batch)]

    @property
    def network(self) -> SentenceNetwork:
        """The network, read when it is first needed, and checked to be the one of training."""
        if self._network is None:
            where = "give its folder (--text-encoder FOLDER, or model.text.look_in(folder) in Python)"
            if not self.folder.is_dir():
                raise ConfigError(f"the model's sentence encoder is not in {self.folder}: {where}", FIELD)
            check_folder(self.folder)
            if digest_of(self.folder) != self.digest:
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
