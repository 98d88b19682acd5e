"""A party: what it holds, under which key, and what it keeps out of training to measure on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedalc.config.schema import CollectionSettings, ImageSettings
from fedalc.data.dataset import Split
from fedalc.data.images.images import ImageOptions
from fedalc.errors import ConfigError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.holding import Holding, load_holding
from fedalc.labels.collection.identity import Identity, SharedEncoder, collection_settings, make_hasher
from fedalc.labels.collection.messages import Messages, byte_order, make_messages

SHARES = tuple(twentieths / 20 for twentieths in range(11))
"""Of its instances, what a party may keep out of training. A server that knows digests could otherwise move the limit
between two of them, and so have a single instance to itself. To decide by a digest that is not sent would hide nothing:
the server is sent the digests of what is trained on, and so sees what is missing."""


@dataclass(frozen=True)
class Party:
    """Labels are in the order of their pseudonyms, here and in everything that is sent.

    How instances are hashed is the party's own choice, not the server's: a server that could ask for a plain hash could
    test guesses.
    """

    collection: CollectionSettings
    holding: Holding
    hasher: Hasher
    client: str | None = None
    shares_names: bool = False

    @classmethod
    def from_node_config(cls, said: Mapping[str, Any], images: ImageOptions | None = None, run: str = "") -> Party:
        """From data, key, labels, client, identity, records, algorithm, digest-bytes, share-names, data-dir, size.

        `run`: the id of the run that digests and pseudonyms are for.
        `images`: how pictures are read, if it holds pictures. Their size is the party's own choice: a server that could
        ask for another with each message would have a set of small copies made for each.
        """
        if "data" not in said:
            raise ConfigError('the party\'s configuration does not say where its data is (data="…")', "node-config")
        records = said.get("records")
        collection = collection_settings(
            str(said.get("algorithm", "hmac-sha256")),
            said.get("digest-bytes", 16),
            str(said.get("identity", "content")),
            said.get("key"),
        )
        if (collection.identity == "record") != (records is not None):
            raise ConfigError("identity record and a file of records belong together", "records")
        data_dir = said.get("data-dir")
        holding = load_holding(
            str(said["data"]),
            None if said.get("labels") is None else str(said["labels"]),
            None if records is None else Path(str(records)),
            None if data_dir is None else Path(str(data_dir)),
            replace(images or ImageOptions(), size=picture_size(said)),
        )
        hasher = make_hasher(collection, run)
        order = byte_order(hasher.labels(holding.names))
        ordered = Holding(
            Split(holding.split.features, holding.split.labels[:, order]),
            tuple(holding.names[place] for place in order),
            holding.records,
        )
        client = None if said.get("client") is None else str(said["client"])
        return cls(collection, ordered, hasher, client, bool(said.get("share-names")))

    @cached_property
    def pseudonyms(self) -> np.ndarray:
        return self.hasher.labels(self.holding.names)

    @property
    def name(self) -> str:
        """What the party calls itself; else one that says nothing and is the same whenever it is asked."""
        return self.client or "party-" + hashlib.sha256(self.pseudonyms.tobytes()).hexdigest()[:8]

    def digests(self, encoder: SharedEncoder) -> np.ndarray:
        """Of every instance. `encoder` matters where instances are known by their embedding."""
        identity, features = Identity(self.collection, encoder), self.holding.split.features
        canonical = identity.canonical(features, self.holding.records)
        return self.hasher.instances(canonical, identity.name(features))

    def messages(self, encoder: SharedEncoder, kept: np.ndarray) -> Messages:
        """What is sent for the collection of label sets, of the instances kept for training."""
        identity, split = Identity(self.collection, encoder), self.holding.split.rows(kept)
        records = None if self.holding.records is None else [self.holding.records[row] for row in kept]
        canonical = identity.canonical(split.features, records)
        kind = identity.name(split.features)
        return make_messages(self.hasher, kind, self.name, canonical, split.labels, self.holding.names)


def picture_size(said: Mapping[str, Any]) -> int:
    """The side of a party's pictures in pixels, from its configuration. Range and default are those of images.size."""
    try:
        return ImageSettings.model_validate({"size": said["size"]} if "size" in said else {}).size
    except ValidationError as error:
        raise ConfigError(f"{error.errors()[0]['msg']}, and is {said['size']!r}", "size") from None


def held_out(digests: np.ndarray, share: float) -> np.ndarray:
    """Which instances are kept out of training. Parties that hold the same one agree without a word: its digest says.

    >>> held_out(np.array([[0] * 8, [0x20] + [0] * 7, [0xFF] * 8], dtype=np.uint8), 0.1)
    array([ True, False, False])
    """
    place = np.ascontiguousarray(digests[:, :8]).view(">u8").ravel().astype(np.float64) / 2**64
    return place < share


def instance_keys(hasher: Hasher, digests: np.ndarray, sample: float) -> np.ndarray:
    """By which random draws know an instance: the same wherever it is held, and never sent.

    The server has the digests, and chooses seed, round and `sample`: hashed once more under the parties' key, they do
    not tell it whom it draws. Every `sample` draws anew. Otherwise two of almost the same size would differ by a single
    instance, and so would the answers.
    """
    secret = hasher.instances((digest.tobytes() for digest in digests), f"draw/{sample!r}")
    return np.ascontiguousarray(secret[:, :8]).view("<i8").ravel()
