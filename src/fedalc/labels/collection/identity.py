"""How a party identifies its instances in the collection: the bytes to hash, and the key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from pydantic import ValidationError
from scipy.sparse import csr_matrix

from fedalc.config.facts import OF_RANDOM_FEATURES
from fedalc.config.schema import Algorithm, CollectionSettings, EncoderSettings, is_keyed
from fedalc.config.schema import Identity as IdentityName
from fedalc.core.seeds import torch_generator
from fedalc.data.images.images import Images
from fedalc.errors import ConfigError
from fedalc.labels.collection.hashing import (
    Hasher,
    canonical_embeddings,
    canonical_features,
    embedding_identity,
    features_identity,
)
from fedalc.labels.collection.keys import Key
from fedalc.models.encoders import PICTURES_AT_ONCE, make_batch, make_encoder, scale_rows

BLOCK_ROWS = 2048  # instances encoded at a time
NEWER_SETTINGS = (
    "constant",
    *OF_RANDOM_FEATURES,
)  # left out of a tag if they have their defaults: older tags stay valid


def collection_settings(
    algorithm: str, digest_bytes: int, identity: str, key: Path | str | None, quantum: float = 1e-3
) -> CollectionSettings:
    """Check a party's settings and return them. A ConfigError names the field as on the command line."""
    for value, known, field in ((algorithm, Algorithm, "algorithm"), (identity, IdentityName, "identity")):
        if value not in get_args(known):
            raise ConfigError(f"unknown {value!r}; choose from {', '.join(get_args(known))}", field)
    keyed = is_keyed(algorithm)
    if keyed and key is None:
        raise ConfigError("give the key file that the clients share (make one: fedalc key new FILE)", "key")
    if not keyed and key is not None:
        raise ConfigError(f"{algorithm} uses no key; did you mean hmac-{algorithm}?", "key")
    try:
        return CollectionSettings.model_validate(
            {
                "algorithm": algorithm,
                "digest_bytes": digest_bytes,
                "identity": identity,
                "quantum": quantum,
                "key": None if key is None else str(key),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(str(first["msg"]), str(first["loc"][0]).replace("_", "-")) from None


def make_hasher(settings: CollectionSettings, run: str = "") -> Hasher:
    """Return a hasher with the key file of the settings, or with a fresh random key if they name none."""
    key = None
    if is_keyed(settings.algorithm):
        key = Key.fresh() if settings.key is None else Key.read(settings.key)
    return Hasher(settings.algorithm, key, settings.digest_bytes, run)


@dataclass(frozen=True)
class SharedEncoder:
    """The encoder that all clients start from. The paper hashes embeddings under it."""

    settings: EncoderSettings
    seed: int

    @torch.no_grad()
    def embeddings(self, features: csr_matrix | Images) -> np.ndarray:
        encoder = make_encoder(features.shape[1], self._spread_out, torch_generator(self.seed, "encoder"))
        scaled = scale_rows(features, self.settings.features)
        blocks = []
        at_once = PICTURES_AT_ONCE if isinstance(scaled, Images) else BLOCK_ROWS
        for start in range(0, scaled.shape[0], at_once):
            part = scaled[start : start + at_once]
            blocks.append(encoder(make_batch(part, np.arange(part.shape[0]), torch.float32, "cpu")).numpy())
        return np.concatenate(blocks)

    @property
    def _spread_out(self) -> EncoderSettings:
        """The settings with a start at which instances differ: from zero all have the same embedding."""
        start = "he" if self.settings.start == "zero" else self.settings.start
        return self.settings.model_copy(update={"start": start, "shortcut": False})

    def tag(self, feature_count: int) -> str:
        """Return a short digest that differs between encoders with different embeddings."""
        settings = self._spread_out
        newer = {
            name for name in NEWER_SETTINGS if getattr(settings, name) == type(settings).model_fields[name].default
        }
        facts = [settings.model_dump(mode="json", exclude=newer), self.seed, feature_count]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Identity:
    """Decides when the instances of two parties are the same."""

    settings: CollectionSettings
    encoder: SharedEncoder

    def canonical(self, features: csr_matrix | Images, records: Sequence[str] | None) -> Iterable[bytes]:
        """Return the bytes to hash for each instance: the same at every party that holds the instance."""
        if self.settings.identity == "embedding":
            return canonical_embeddings(self.encoder.embeddings(features), self.settings.quantum)
        return canonical_features(features, records if self.settings.identity == "record" else None)

    def name(self, features: csr_matrix | Images) -> str:
        """Return the identity's name in messages. It differs for other encoders and roundings, which must not join."""
        if self.settings.identity != "embedding":
            return features_identity(self.settings.identity, features)
        return f"{embedding_identity(self.settings.quantum)}/{self.encoder.tag(features.shape[1])}"
