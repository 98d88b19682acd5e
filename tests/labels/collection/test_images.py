"""Pictures in the collection: same bytes on every machine; two parties' instances join for each identity."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.config.schema import CollectionSettings, EncoderSettings
from fedalc.data.images.images import Images
from fedalc.errors import DataError
from fedalc.labels.collection.hashing import Hasher, canonical_pictures
from fedalc.labels.collection.identity import Identity, SharedEncoder
from fedalc.labels.collection.join import join
from fedalc.labels.collection.messages import make_messages
from fedalc.labels.collection.simulate import collect
from tests.labels.collection.problems import KEY
from tests.problems import random_pictures

ALL = random_pictures(12, 16, 3, seed=1)
ENCODER = SharedEncoder(EncoderSettings(name="resnet-small", dim=8), seed=0)
IDENTITIES = ["record", "content", "embedding"]


def test_the_bytes_written_out() -> None:
    """The side and the digest of the pixels, or only the name, in NFC."""
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    images = Images(pixels, ["one", "two"])
    digests = [hashlib.blake2b(picture.tobytes(), digest_size=16).digest() for picture in pixels]
    assert list(canonical_pictures(images)) == [b"\x04\0\0\0" + digest for digest in digests]
    assert list(canonical_pictures(images, ["a", "e\u0301"])) == [b"a", "é".encode()]


def test_a_name_for_every_picture() -> None:
    with pytest.raises(DataError, match=r"^1 record names for 12 instances$"):
        list(canonical_pictures(ALL.features, ["alone"]))


def test_the_same_picture_has_the_same_bytes_wherever_it_is_held() -> None:
    copy = Images(ALL.features.pixels()[[7, 3]], ["another", "name"])
    ours = list(canonical_pictures(ALL.features))
    assert list(canonical_pictures(copy)) == [ours[7], ours[3]]
    assert list(canonical_pictures(ALL.features[[7, 3]])) == [ours[7], ours[3]]
    assert len(set(ours)) == 12


def test_pictures_of_other_pixels_or_another_size_are_others() -> None:
    black = [Images(np.zeros((1, size, size, 3), dtype=np.uint8), ["a"]) for size in (8, 16)]
    changed = ALL.features.pixels()[:1]
    changed[0, 15, 15, 2] ^= 1
    (first,), (second,) = (canonical_pictures(images) for images in black)
    assert first != second
    assert next(canonical_pictures(Images(changed, ["a"]))) != next(canonical_pictures(ALL.features))


@pytest.mark.parametrize("identity", IDENTITIES)
def test_two_parties_join_the_pictures_that_both_hold(identity: str) -> None:
    """One has pictures 0 to 7 with `cat`, the other 5 to 11 with `dog`, in another order: three have both."""
    if identity == "embedding":
        pytest.importorskip("transformers")
    settings = CollectionSettings(identity=identity, quantum=0.01)  # type: ignore[arg-type]
    how, hasher, pixels = Identity(settings, ENCODER), Hasher("hmac-sha256", KEY), ALL.features.pixels()
    sent = []
    for name, held in (("cat", list(range(8))), ("dog", [11, 6, 9, 5, 10, 8, 7])):
        mine = Images(pixels[held], [f"{name}s {row}" for row in held])
        canonical = how.canonical(mine, [f"record {row}" for row in held])
        labels = csr_matrix(np.ones((len(held), 1), dtype=np.float32))
        sent.append(make_messages(hasher, how.name(mine), name, canonical, labels, [name]))
    sets = join(sent).label_sets
    assert sets.shape == (12, 2) and sorted(sets.getnnz(axis=1).tolist()) == [1] * 9 + [2] * 3


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_simulation_finds_the_label_sets(identity: str) -> None:
    if identity == "embedding":
        pytest.importorskip("transformers")
    settings = CollectionSettings(identity=identity, quantum=0.01)  # type: ignore[arg-type]
    found = collect(settings, ALL.features, ALL.labels, ["a", "b", "c"], ENCODER)
    together = (ALL.labels.T @ ALL.labels).toarray()
    assert np.array_equal((found.label_sets.T @ found.label_sets).toarray(), together)
    held = ALL.labels.getnnz(axis=1) > 0
    assert np.array_equal(found.set_sizes[held], ALL.labels.getnnz(axis=1)[held])


def test_embeddings_of_another_encoder_are_not_joined() -> None:
    settings = CollectionSettings(identity="embedding")
    others = [
        SharedEncoder(EncoderSettings(name="resnet-small", dim=8), seed=1),
        SharedEncoder(EncoderSettings(name="resnet-small", dim=8, norm="batch"), seed=0),
        SharedEncoder(EncoderSettings(name="resnet-small", dim=8, pretrained="a/b"), seed=0),
    ]
    names = {Identity(settings, encoder).name(ALL.features) for encoder in [ENCODER, *others]}
    assert len(names) == 4


def test_pictures_of_another_size_never_join() -> None:
    identity = Identity(CollectionSettings(identity="content"), SharedEncoder(EncoderSettings(), 0))
    assert identity.name(ALL.features) == "content/16px"
    by_record = Identity(CollectionSettings(identity="record"), SharedEncoder(EncoderSettings(), 0))
    assert by_record.name(ALL.features) == "record/picture"
    assert identity.name(csr_matrix((2, 192), dtype=np.float32)) == "content"
