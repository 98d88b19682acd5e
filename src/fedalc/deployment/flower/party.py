"""A party: its data, its key, and the instances that it holds out for evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedalc.config.schema import CollectionSettings, ImageSettings
from fedalc.data.dataset import Features
from fedalc.data.images.images import ImageOptions, Images
from fedalc.data.pretrained.apply import features_of
from fedalc.data.pretrained.pictures import PictureFeatures
from fedalc.data.pretrained.usual import usual_size
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower.party_memory import fingerprint
from fedalc.errors import ConfigError
from fedalc.labels.collection.hashing import Hasher, canonical_features, features_identity
from fedalc.labels.collection.holding import Holding, load_holding
from fedalc.labels.collection.identity import Identity, SharedEncoder, collection_settings, make_hasher
from fedalc.labels.collection.messages import Messages, byte_order, make_messages

SHARES = tuple(twentieths / 20 for twentieths in range(11))
"""The shares of its instances that a party may hold out. With any other share, a server that knows the digests could
move the limit between two of them and so single out one instance. Deciding by a secret digest would hide nothing: the
server receives the digests of the training instances, and so sees which are missing."""

TextOf = Callable[[Hasher], TextSettings | TextFeatures]
"""From a party's hasher, how its texts become features. Keyed terms need it."""


def hashed(hasher: Hasher) -> TextSettings:
    """Return features of texts on which nobody has to agree."""
    return TextSettings(kind="hashing", idf=False)


@dataclass(frozen=True)
class Party:
    """Labels are in the order of their pseudonyms, here and in all messages.

    The party, not the server, chooses how instances are hashed: with a plain hash, a server could test guesses.
    """

    collection: CollectionSettings
    holding: Holding
    hasher: Hasher
    client: str | None = None
    shares_names: bool = False
    same_name: bool = False  # in every run: secure sums compare lists of names over runs. Otherwise runs are not linked

    @classmethod
    def from_node_config(
        cls,
        config: Mapping[str, Any],
        images: ImageOptions | None = None,
        run: str = "",
        text: TextOf = hashed,
        network: PictureFeatures | None = None,
    ) -> Party:
        """Read data, key, labels, least-records, client, identity, records, algorithm, digest-bytes, share-names,
        data-dir, size.

        `run`: the id of the run that digests and pseudonyms are for. `images`: how to read pictures. The party chooses
        their size: if the server could, it could make the party write new small copies with every message. `text`: how
        texts become features, which the server's settings say, and perhaps what parties agreed on. `network`: what
        turns pictures into features, if anything does.
        """
        if "data" not in config:
            raise ConfigError('the party\'s configuration does not say where its data is (data="…")', "node-config")
        records, collection = config.get("records"), party_collection(config)
        if (collection.identity == "record") != (records is not None):
            raise ConfigError("give identity record and a file of records together, or neither", "records")
        data_dir = config.get("data-dir")
        hasher = make_hasher(collection, run)
        holding = load_holding(
            str(config["data"]),
            None if config.get("labels") is None else str(config["labels"]),
            None if records is None else Path(str(records)),
            None if data_dir is None else Path(str(data_dir)),
            replace(images or ImageOptions(), size=picture_size(config)),
            text(hasher),
            int(config.get("least-records", 0)),
        )
        order = byte_order(hasher.labels(holding.names))
        split = replace(holding.split, labels=holding.split.labels[:, order])
        if network is not None and isinstance(split.features, Images):
            split = features_of(split, network)
        ordered = Holding(
            split,
            tuple(holding.names[label] for label in order),
            holding.records,
        )
        client = None if config.get("client") is None else str(config["client"])
        return cls(collection, ordered, hasher, client, bool(config.get("share-names")))

    @cached_property
    def pseudonyms(self) -> np.ndarray:
        return self.hasher.labels(self.holding.names)

    @property
    def name(self) -> str:
        """The name that the party chose; otherwise one that follows from its labels and the key."""
        hasher = self.same_hasher if self.same_name else self.hasher
        return self.client or "party-" + hashlib.sha256(hasher.labels(self.holding.names).tobytes()).hexdigest()[:8]

    @cached_property
    def same_hasher(self) -> Hasher:
        """Digests that are the same in every run. The party sends none of them."""
        return make_hasher(self.collection) if self.collection.key else self.hasher

    def digests(self, encoder: SharedEncoder, lasting: bool = False) -> np.ndarray:
        """Return the digest of every instance. `encoder` matters only for identity `embedding`. `lasting`: the same in
        every run; the party sends none of these."""
        identity, content = Identity(self.collection, encoder), self.content
        canonical = identity.canonical(content, self.holding.records)
        return (self.same_hasher if lasting else self.hasher).instances(canonical, identity.name(content))

    @cached_property
    def lasting_digests(self) -> np.ndarray:
        """Digests by what the instances are, in every run the same, whatever the server asks: of raw texts, and not of
        the features that its settings make of them. The party sends none of these."""
        split, records = self.holding.split, self.holding.records
        if split.contents is not None and records is None:
            return self.same_hasher.instances(map(bytes, split.contents), "text")
        content = split.features if split.pictures is None else split.pictures
        what = features_identity("content" if records is None else "record", content)
        return self.same_hasher.instances(canonical_features(content, records), what)

    def held_out(self, share: float) -> np.ndarray:
        """Return which instances are held out: in every run the same. Otherwise a server could look for two runs of
        which one holds out a record more, and subtract what the party answers; or learn from the numbers of many runs
        which labels occur together."""
        if share == 0:
            return np.zeros(len(self.holding.split), dtype=bool)
        return held_out(self.lasting_digests, share)

    @cached_property
    def fingerprint(self) -> str:
        """What tells the records and their labels from those of other runs, in any order."""
        labels, names = self.holding.split.labels.tocsr(), np.array(self.holding.names)
        records = zip(np.split(labels.indices, labels.indptr[1:-1]), self.lasting_digests, strict=True)
        return fingerprint(*sorted(repr((sorted(names[own].tolist()), bytes(one))).encode() for own, one in records))

    @property
    def content(self) -> Features:
        """What its instances are recognised by: the pictures, if features were made of them, or the features."""
        split = self.holding.split
        by_features = split.pictures is None or self.collection.identity == "embedding"
        return split.features if by_features else split.pictures

    def messages(self, encoder: SharedEncoder, rows: np.ndarray) -> Messages:
        """Return the message for the collection of label sets, about the training instances `rows`."""
        identity, split = Identity(self.collection, encoder), self.holding.split.rows(rows)
        records = None if self.holding.records is None else [self.holding.records[row] for row in rows]
        content = self.content[rows]
        canonical, kind = identity.canonical(content, records), identity.name(content)
        return make_messages(self.hasher, kind, self.name, canonical, split.labels, self.holding.names)


def party_collection(config: Mapping[str, Any]) -> CollectionSettings:
    """Return how the party hashes its instances and labels, and its key file."""
    return collection_settings(
        str(config.get("algorithm", "hmac-sha256")),
        config.get("digest-bytes", 16),
        str(config.get("identity", "content")),
        config.get("key"),
    )


def picture_size(config: Mapping[str, Any]) -> int:
    """Return the side of the party's pictures in pixels. Range and default are those of images.size."""
    if "size" not in config and config.get("pretrained"):
        return usual_size([str(config["pretrained"]).partition("\n")[0]])
    try:
        return ImageSettings.model_validate({"size": config["size"]} if "size" in config else {}).size
    except ValidationError as error:
        raise ConfigError(f"{error.errors()[0]['msg']}, and is {config['size']!r}", "size") from None


def held_out(digests: np.ndarray, share: float) -> np.ndarray:
    """Return which instances are held out. The digest decides, so parties with the same instance agree.

    >>> held_out(np.array([[0] * 8, [0x20] + [0] * 7, [0xFF] * 8], dtype=np.uint8), 0.1)
    array([ True, False, False])
    """
    position = np.ascontiguousarray(digests[:, :8]).view(">u8").ravel().astype(np.float64) / 2**64
    return position < share


def instance_keys(hasher: Hasher, digests: np.ndarray, sample: float) -> np.ndarray:
    """Return the keys of instances for random draws: the same at every party, and never sent.

    The server has the digests and chooses seed, round and `sample`. Hashed once more with the parties' key, they do not
    tell it which instances are drawn. Every `sample` draws independently: otherwise two samples of almost the same size
    could differ by a single instance, and so would the answers.
    """
    secret = hasher.instances((digest.tobytes() for digest in digests), f"draw/{sample!r}")
    return np.ascontiguousarray(secret[:, :8]).view("<i8").ravel()
