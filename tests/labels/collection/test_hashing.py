"""Canonical bytes against hex by hand, digests against hashlib, and the risks of embeddings as identity."""

from __future__ import annotations

import hashlib
import hmac
import time

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.hashing import Hasher, canonical_embeddings, canonical_sparse, embedding_identity
from fedalc.labels.collection.keys import Key
from tests.labels.collection.problems import KEY
from tests.problems import random_split

# Features 2: 1.0, 258: -0.5 and record "né7": the example of docs/collection-format.md.
COUNT, FIRST, SECOND = "02000000", "020000000000803f", "02010000000000bf"
NO_NAME, NAME = "00000000", "040000006ec3a937"
EXAMPLE = csr_matrix(([-0.5, 1.0], ([0, 0], [258, 2])), shape=(1, 300))
EXAMPLE_KEY = Key(bytes(range(32)))


def hexes(*arguments: object) -> list[str]:
    return [row.hex() for row in canonical_sparse(*arguments)]  # type: ignore[arg-type]


def test_canonical_bytes_by_hand() -> None:
    assert hexes(EXAMPLE) == [COUNT + FIRST + SECOND + NO_NAME]
    assert hexes(EXAMPLE, ["né7"]) == [COUNT + FIRST + SECOND + NAME]
    assert hexes(EXAMPLE, ["ne\u03017"]) == [COUNT + FIRST + SECOND + NAME]  # é as two characters
    assert hexes(csr_matrix((2, 5))) == ["0000000000000000"] * 2
    assert hexes(csr_matrix((0, 5))) == []


def test_digests_by_hand() -> None:
    """The documented example, computed here with hmac and hashlib only."""
    canonical = bytes.fromhex(COUNT + FIRST + SECOND + NO_NAME)
    keyed = hmac.new(bytes(range(32)), b"fedalc/1/instance/content\0" + canonical, "sha256").digest()
    name = hmac.new(bytes(range(32)), b"fedalc/1/label\0" + "né7".encode(), "sha256").digest()
    hasher = Hasher("hmac-sha256", EXAMPLE_KEY)
    assert hasher.instances(canonical_sparse(EXAMPLE)).tobytes() == keyed[:16]
    assert hasher.labels(["né7"]).tobytes() == hasher.labels(["ne\u03017"]).tobytes() == name[:16]
    assert keyed[:16].hex() == "146048659f76d0619191f0362652e691"
    assert name[:16].hex() == "6b434bffa14f146a9c83f3ac6f4b5576"
    plain = hashlib.sha512(b"fedalc/1/instance/record\0" + canonical).digest()
    assert Hasher("sha512", None, 64).instances([canonical], "record").tobytes() == plain


def test_number_type_and_order_do_not_matter() -> None:
    X = random_split(50, 30, 3, seed=0).features
    expected = hexes(X)
    assert hexes(X.astype(np.float64)) == expected
    whole = csr_matrix(np.random.default_rng(0).integers(-3, 4, (20, 9)))
    assert hexes(whole.astype(np.int8)) == hexes(whole.astype(np.int64)) == hexes(whole.astype(np.float64))
    flipped = X.copy()
    for start, end in zip(X.indptr, X.indptr[1:], strict=False):
        flipped.indices[start:end] = X.indices[start:end][::-1]
        flipped.data[start:end] = X.data[start:end][::-1]
    flipped.has_sorted_indices = False
    before = flipped.indices.copy()
    assert hexes(flipped) == expected
    assert np.array_equal(flipped.indices, before)  # the caller's matrix is left as it was
    wider = csr_matrix((X.data, X.indices.astype(np.int64), X.indptr.astype(np.int64)), shape=(50, 4000))
    assert hexes(wider) == expected


def test_duplicates_are_summed_and_zeros_dropped() -> None:
    entries = [(2, 1e8), (258, 0.25), (7, -0.0), (2, 1.0), (9, 0.0), (258, -0.75), (2, -1e8), (11, 3.0), (11, -3.0)]
    for order in (entries, entries[::-1], entries[4:] + entries[:4]):
        columns, values = zip(*order, strict=True)
        X = csr_matrix((np.array(values), np.array(columns), np.array([0, len(order)])), shape=(1, 300))
        assert hexes(X) == [COUNT + FIRST + SECOND + NO_NAME]
    halves = csr_matrix(np.array([[0.1 + 1e-12, 1e-60]]))  # rounded to 32 bits first, and what is then zero is dropped
    assert hexes(halves) == hexes(csr_matrix(np.array([[0.1, 0.0]], dtype=np.float32)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(DataError, match="finite"):
        hexes(csr_matrix(np.array([[0.0, value]])))


def test_other_impossible_features_are_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        hexes(csr_matrix((np.float32([3e38, 3e38]), [1, 1], [0, 2]), shape=(1, 2)))
    with pytest.raises(DataError, match="not real numbers"):
        hexes(csr_matrix(np.array([[1j]])))
    with pytest.raises(DataError, match="2 record names for 1"):
        hexes(EXAMPLE, ["a", "b"])
    with pytest.raises(DataError, match="32 bits"):
        hexes(csr_matrix((1, 2**32 + 1)))


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, records = random_split(50, 30, 3, seed=0).features, [f"r{i}" for i in range(50)]
    expected, named = hexes(X), hexes(X, records)
    monkeypatch.setattr("fedalc.labels.collection.hashing._ROWS_AT_ONCE", 7)
    assert hexes(X) == expected
    assert hexes(X, records) == named


def test_domains_are_apart() -> None:
    hasher = Hasher("hmac-sha256", KEY)
    digests = [hasher.instances([b"x"], identity).tobytes() for identity in ("content", "record", "embedding")]
    assert len({*digests, hasher.labels(["x"]).tobytes()}) == 4


@pytest.mark.parametrize(("algorithm", "size"), [("hmac-sha256", 32), ("hmac-sha512", 64), ("hmac-md5", 16)])
def test_lengths_and_keys(algorithm: str, size: int) -> None:
    plain = algorithm.removeprefix("hmac-")
    for name, key in ((algorithm, KEY), (plain, None)):
        whole = Hasher(name, key, size).instances([b"a", b"b"])  # type: ignore[arg-type]
        assert whole.shape == (2, size) and whole.dtype == np.uint8
        assert np.array_equal(Hasher(name, key, 9 if size > 9 else 8).instances([b"a", b"b"]), whole[:, :9])  # type: ignore[arg-type]
        assert Hasher(name, key, 8).labels(["a"]).shape == (1, 16)  # type: ignore[arg-type]
        for wrong in (7, size + 1):
            with pytest.raises(FedalcError, match="bytes"):
                Hasher(name, key, wrong)  # type: ignore[arg-type]
    with pytest.raises(FedalcError, match="needs a key"):
        Hasher(algorithm, None)  # type: ignore[arg-type]
    with pytest.raises(FedalcError, match="uses no key"):
        Hasher(plain, KEY)  # type: ignore[arg-type]
    assert Hasher(plain, None).protocol("content").key_check == ""  # type: ignore[arg-type]
    assert Hasher(algorithm, KEY).protocol("record").key_check == KEY.check  # type: ignore[arg-type]
    assert Hasher(algorithm, KEY).instances([]).shape == (0, 16)  # type: ignore[arg-type]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(FedalcError, match="unknown hash algorithm"):
        Hasher("crc32", None)  # type: ignore[arg-type]
    with pytest.raises(FedalcError, match="identity"):
        Hasher("sha256", None).protocol("face")


def test_raw_embeddings_break_at_the_last_bit() -> None:
    """With another BLAS every number may differ by one step of float32. Then no instance is found again."""
    E = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    elsewhere = np.nextafter(E, np.float32(np.inf))
    assert not set(canonical_embeddings(E, 0)) & set(canonical_embeddings(elsewhere, 0))
    kept = [a == b for a, b in zip(canonical_embeddings(E, 1e-3), canonical_embeddings(elsewhere, 1e-3), strict=True)]
    assert 0.99 < np.mean(kept) <= 1.0


def test_rounded_embeddings_break_at_a_boundary() -> None:
    """Rounding separates neighbours at half a step, so a larger step only makes this rarer."""
    boundary = np.array([[0.75, 0.0]], dtype=np.float32)
    below = np.nextafter(boundary, np.float32(-1))
    assert list(canonical_embeddings(boundary, 0.5)) == [bytes.fromhex("0200000000000000")]
    assert list(canonical_embeddings(below, 0.5)) == [bytes.fromhex("0100000000000000")]
    assert list(canonical_embeddings(boundary, 0)) == [bytes.fromhex("0000403f00000000")]


def test_embeddings_are_checked() -> None:
    for E, step in (([[np.nan]], 0.1), ([[1.0]], -1.0), ([[1.0]], np.nan), ([[1.0]], 1e-12), ([1.0], 0.1)):
        with pytest.raises(DataError):
            list(canonical_embeddings(np.array(E), step))
    assert embedding_identity(0) == "embedding"
    assert Hasher("sha256", None).protocol(embedding_identity(1e-3)).identity == "embedding/0.001"


def test_it_is_fast() -> None:
    """A loose bound: 1.8 million instances of this size should take seconds, not minutes."""
    X = csr_matrix((np.ones(400_000, dtype=np.float32), np.tile(np.arange(20), 20_000), np.arange(0, 400_001, 20)))
    began = time.perf_counter()
    assert len(Hasher("hmac-sha256", KEY).instances(canonical_sparse(X))) == 20_000
    assert time.perf_counter() - began < 1.0
