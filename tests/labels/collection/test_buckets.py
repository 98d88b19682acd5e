"""Tables of bucket counts: their size, how often records collide, what the sums hold."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from fedalc.errors import FedalcError
from fedalc.labels.collection.buckets import Tables, packed, unpacked
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key
from tests.labels.collection.problems import KEY

HASHER = Hasher("hmac-sha256", KEY)


def contents(count: int) -> list[bytes]:
    return [f"record {number}".encode() for number in range(count)]


@pytest.mark.parametrize("records", [15_539, 100_000, 1_778_351])
@pytest.mark.parametrize("rate", [0.3, 0.005, 1e-6])
def test_tables_have_the_fewest_buckets_for_a_rate(records: int, rate: float) -> None:
    tables = Tables.for_records(records, rate)
    assert tables.collision_rate(records) <= rate * (1 + 1e-9)
    if tables.buckets > 2:
        assert Tables(tables.tables, tables.buckets - 1).collision_rate(records) > rate
    for other in range(1, 9):  # no other number of tables does with fewer
        assert Tables(other, (tables.size - 1) // other).collision_rate(records) > rate * (1 - 1e-9)


def test_sizes_by_hand() -> None:
    # ln(1/0.005) / (ln 2)² = 11.03 buckets per record, as in a Bloom filter, in log2(1/0.005) = 7.6 tables
    tables = Tables.for_records(100_000, 0.005)
    assert tables.tables == 8 and tables.size / 100_000 == pytest.approx(11.03, abs=0.02)
    assert Tables(2, 1 << 18).collision_rate(15_500) == pytest.approx((1 - np.exp(-15_499 / 2**18)) ** 2, rel=1e-4)
    assert Tables(1, 2).collision_rate(2) == 0.5 and Tables(3, 2).collision_rate(2) == 0.125
    assert Tables(1, 1).collision_rate(1) == 0
    few = Tables.for_records(300, 0.005)
    assert few == Tables(8, 4096) and few.collision_rate(300) < 1e-9  # so that all 300 have the right set size


@pytest.mark.parametrize("tables", [Tables(1, 900), Tables(2, 400), Tables(8, 150)])
def test_as_many_records_collide_as_the_formula_says(tables: Tables) -> None:
    records, keys, wrong = 200, 60, 0
    for number in range(keys):
        hasher = Hasher("hmac-sha256", Key(hashlib.sha256(f"key {number}".encode()).digest()))
        places = tables.places(hasher, "records", contents(records))
        wrong += int((tables.smallest(tables.vector(places), places) > 1).sum())
    rate = tables.collision_rate(records)
    spread = np.sqrt(2 * rate * (1 - rate) / (records * keys))  # collisions come in pairs
    assert wrong / (records * keys) == pytest.approx(rate, abs=4 * spread)


def test_sums_over_parties_hold_set_sizes_and_are_never_too_small() -> None:
    sizes = np.random.default_rng(1).integers(1, 7, 300)
    tables = Tables(3, 500)
    places = tables.places(HASHER, "records", contents(300))
    # The owner of label u has the records with more than u labels.
    party = [tables.vector(places[sizes > label]) for label in range(6)]
    summed = np.sum(party, axis=0)
    np.testing.assert_array_equal(summed, tables.vector(places, sizes))
    found = tables.smallest(summed, places).astype(np.int64)
    alone = np.array([(places == places[record]).sum(0).min() == 1 for record in range(300)])
    assert (found >= sizes).all() and (found[alone] == sizes[alone]).all() and (found[~alone] > sizes[~alone]).all()
    assert 0 < (~alone).sum() < 60


def test_the_number_of_records_follows_from_empty_buckets() -> None:
    tables = Tables(4, 4096)
    places = tables.places(HASHER, "records", contents(3000))
    estimate = tables.records(tables.vector(places, 5))
    error = np.sqrt(4096 * (np.exp(3000 / 4096) - 3000 / 4096 - 1) / 4)  # of linear counting (Whang et al. 1990)
    assert estimate == pytest.approx(3000, abs=4 * error)
    assert tables.records(np.zeros(tables.size, dtype=np.uint64)) == 0
    assert np.isfinite(Tables(1, 2).records(np.array([5, 5], dtype=np.uint64)))  # no bucket is empty
    assert Tables(1, 1).records(np.array([7], dtype=np.uint64)) == 1


def test_places_depend_on_key_run_and_purpose() -> None:
    tables = Tables(8, 1 << 20)

    def places(hasher: Hasher, purpose: str = "records") -> np.ndarray:
        return tables.places(hasher, purpose, contents(50))

    ours = places(HASHER)
    assert (ours // tables.buckets == np.arange(8)).all()
    np.testing.assert_array_equal(ours, places(Hasher("hmac-sha512", KEY)))
    for other in (
        places(Hasher("hmac-sha256", Key.fresh())),
        places(Hasher("hmac-sha256", KEY, run="march")),
        places(HASHER, "pairs"),
    ):
        assert (ours == other).mean() < 0.05
    with pytest.raises(FedalcError, match="sha256 uses no key, so the server could compute these too"):
        places(Hasher("sha256", None))


def test_buckets_by_hand() -> None:
    """The example of docs/collection-format.md, computed here with hmac only."""
    digest, label = bytes.fromhex("146048659f76d0619191f0362652e691"), bytes.fromhex("6b434bffa14f146a9c83f3ac6f4b5576")
    tables, hasher = Tables(8, 6731), Hasher("hmac-sha256", Key(bytes(range(32))))
    for purpose, content, first in (("records", digest, 5384), ("pairs", digest + label, 879)):
        mac = hmac.digest(bytes(range(32)), f"fedalc/1/buckets/{purpose}\0".encode() + content, "sha512")
        numbers = [int.from_bytes(mac[start : start + 8], "little") for start in range(0, 64, 8)]
        expected = [table * 6731 + number % 6731 for table, number in enumerate(numbers)]
        assert tables.places(hasher, purpose, [content]).tolist() == [expected] and expected[0] == first


def test_packed_counts_add_up() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(0, 1000, (20, 37)).astype(np.uint64)
    words = [packed(each) for each in counts]
    assert all(len(each) == 10 and each.dtype == np.uint64 for each in words)
    np.testing.assert_array_equal(unpacked(np.sum(words, axis=0, dtype=np.uint64), 37), counts.sum(axis=0))
    assert unpacked(packed(np.array([65_535, 1], dtype=np.uint64)), 2).tolist() == [65_535, 1]
    with pytest.raises(FedalcError, match="counts 65536 labels, and at most 65535 fit"):
        packed(np.array([65_536], dtype=np.uint64))
