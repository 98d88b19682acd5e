"""The join does not depend on order, splitting or repetition, and names clients that err or cheat."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedalc.data import load_dataset
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.hashing import Hasher, canonical_sparse
from fedalc.labels.collection.join import Joined, _grouped, join, set_sizes
from fedalc.labels.collection.messages import Messages, Protocol, make_messages
from fedalc.labels.collection.results import Collected
from fedalc.labels.correlations import Correlations
from tests.labels.collection.problems import KEY, OTHER_KEY, PLAIN, assert_same, client_per_label, rows_of, sent
from tests.problems import random_split, real_data

HASHER = Hasher("hmac-sha256", KEY)


def sets_of(joined: Joined, labels: str, instances: str) -> dict[str, str]:
    """Return label sets as the letters they were made of. Instances are sorted by digest."""
    name = {rows_of(label).tobytes(): label for label in labels}
    order = sorted(instances, key=lambda instance: rows_of(instance).tobytes())
    assert joined.label_sets.shape[0] == len(order)
    rows = [sorted(name[joined.pseudonyms[u].tobytes()] for u in row.indices) for row in joined.label_sets]
    return dict(sorted(zip(order, ("".join(row) for row in rows), strict=True)))


def test_by_hand() -> None:
    joined = join([sent("a", {"u": "xy"}), sent("b", {"v": "yz", "w": "y"})])
    assert sets_of(joined, "uvw", "xyz") == {"x": "u", "y": "uvw", "z": "v"}
    assert joined.notes == () and joined.protocol == PLAIN
    assert joined.label_sets.dtype == np.float32 and (joined.label_sets.data == 1).all()
    assert [row.tobytes() for row in joined.pseudonyms] == sorted(rows_of(*"uvw")[i].tobytes() for i in range(3))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_order_parts_and_repetitions_do_not_matter(data: st.DataObject) -> None:
    """The result also equals counting Y, for identity `record`."""
    seed = data.draw(st.integers(0, 10_000))
    split = random_split(data.draw(st.integers(1, 25)), 6, data.draw(st.integers(1, 8)), seed, per_instance=5)
    if split.labels.nnz == 0:
        return
    names = [f"l{i}" for i in range(split.labels.shape[1])]
    whole = client_per_label(split.labels, split.features, names, HASHER, "record")
    parts: list[Messages] = []
    for part in whole:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(part)), max_size=2)))
        for start, end in zip([0, *cuts], [*cuts, len(part)], strict=True):
            for _ in range(data.draw(st.integers(1, 2))):
                mixed = np.array(data.draw(st.permutations(range(start, end))), dtype=int)
                mixed = np.r_[mixed, mixed[: data.draw(st.integers(0, 2))]]
                if len(mixed):
                    pieces = (part.digests[mixed], part.labels[mixed])
                    parts.append(Messages(part.protocol, part.client, part.pseudonyms, *pieces))
    joined, other = join(whole), join(data.draw(st.permutations(parts)))
    assert (joined.label_sets != other.label_sets).nnz == 0 and other.notes == ()
    assert np.array_equal(joined.pseudonyms, other.pseudonyms)
    known = Collected.from_joined(other).for_labels(HASHER.labels(names))
    assert_same(known, Correlations.from_label_sets(split.labels))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=11, max_size=11).map(lambda b: bytes(7) + b[:2] + bytes(1) + b[10:]), min_size=1))
def test_rows_with_equal_beginnings_are_told_apart(rows: list[bytes]) -> None:
    """Digests crafted with equal beginnings: no client can merge two instances into one."""
    order, first = _grouped(np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1))
    ordered = [rows[place] for place in order]
    assert ordered == sorted(rows)
    assert first.tolist() == [i == 0 or ordered[i] != ordered[i - 1] for i in range(len(rows))]


def test_any_length_of_digest() -> None:
    split = random_split(30, 10, 5, seed=1)
    expected = Correlations.from_label_sets(split.labels)
    names = list("abcde")
    for algorithm, length in (("hmac-md5", 8), ("hmac-sha256", 13), ("hmac-sha512", 64), ("sha256", 32), ("md5", 16)):
        hasher = Hasher(algorithm, KEY if "hmac" in algorithm else None, length)  # type: ignore[arg-type]
        collected = Collected.from_joined(join(client_per_label(split.labels, split.features, names, hasher, "record")))
        assert_same(collected.for_labels(hasher.labels(names)), expected)


def test_messages_do_not_tell_the_order_of_the_data() -> None:
    split = random_split(30, 10, 5, seed=2)
    names = [f"l{i}" for i in range(5)]
    turn, swap = np.random.default_rng(0).permutation(30), np.array([3, 0, 4, 1, 2])
    records = [str(i) for i in range(30)]
    one = make_messages(HASHER, "record", "a", canonical_sparse(split.features, records), split.labels, names)
    other = make_messages(
        HASHER,
        "record",
        "a",
        canonical_sparse(split.features[turn], [records[i] for i in turn]),
        split.labels[turn][:, swap],
        [names[i] for i in swap],
    )
    for name in ("pseudonyms", "digests", "labels"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert len(one) == split.labels.nnz


def test_messages_of_what_does_not_fit_are_refused() -> None:
    X, Y = csr_matrix(np.eye(2)), csr_matrix(np.ones((2, 1)))
    with pytest.raises(DataError, match="2 label names for 1"):
        make_messages(HASHER, "content", "a", canonical_sparse(X), Y, ["u", "v"])
    with pytest.raises(DataError, match="1 instances, but 2"):
        make_messages(HASHER, "content", "a", canonical_sparse(X[:1]), Y, ["u"])
    with pytest.raises(FedalcError, match="nothing to send"):
        make_messages(HASHER, "content", "a", canonical_sparse(X), Y * 0, ["u"])
    with pytest.raises(DataError, match="same pseudonym"):
        make_messages(HASHER, "content", "a", canonical_sparse(X), csr_matrix(np.ones((2, 2))), ["é", "e\u0301"])
    names = {make_messages(HASHER, "content", None, canonical_sparse(X), Y, ["u"]).client for _ in range(2)}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (Hasher("hmac-sha256", OTHER_KEY).protocol("content"), "client odd used another key than most"),
        (Hasher("hmac-sha512", KEY).protocol("content"), "another algorithm .hmac-sha512, not hmac-sha256"),
        (HASHER.protocol("record"), "another identity .record, not content"),
        (HASHER.protocol("embedding/0.001"), "another identity"),
        (Hasher("hmac-sha256", KEY, 8).protocol("content"), "digests of another length .8 bytes, not 16"),
    ],
)
def test_another_protocol_is_refused(odd: Protocol, says: str) -> None:
    usual = HASHER.protocol("content")
    stranger = Messages(odd, "odd", rows_of("o"), rows_of("x")[:, : odd.digest_bytes], np.zeros(1, dtype=np.uint32))
    parts = [stranger, sent("a", {"u": "xy"}, usual), sent("b", {"v": "y"}, usual)]
    for order in (parts, parts[::-1]):
        joined = join(order)
        assert sets_of(joined, "uv", "xy") == {"x": "u", "y": "uv"}
        assert len(joined.notes) == 1
        assert re.search(says, joined.notes[0])
    with pytest.raises(FedalcError, match=r"different ways.*a.*odd"):
        join(parts[:2])
    # Many messages of one client are still one client.
    with pytest.raises(FedalcError, match="different ways"):
        join([*parts[:2], sent("a", {"w": "z"}, usual)])


def test_a_client_that_claims_the_labels_of_many_is_refused_whole() -> None:
    honest = [sent("a", {"u": "xy"}), sent("b", {"v": "yz"}), sent("c", {"w": "z"})]
    greedy = sent("thief", {"u": "z", "v": "x", "s": "xyz"})
    for order in ([*honest, greedy], [greedy, *honest[::-1]]):
        joined = join(order)
        assert sets_of(joined, "uvw", "xyz") == {"x": "u", "y": "uv", "z": "vw"}
        assert joined.notes == ("client thief claims labels of a and b: all its messages are refused",)


def test_two_thieves_apart_are_both_refused() -> None:
    honest = [sent(name, {name: "xy"}) for name in "abcd"]
    thieves = [sent("t1", {"a": "z", "b": "z"}), sent("t2", {"c": "z", "d": "z"})]
    joined = join([*thieves, *honest])
    assert sets_of(joined, "abcd", "xy") == {"x": "abcd", "y": "abcd"} and len(joined.notes) == 2


def test_a_label_contested_between_equals_is_set_aside() -> None:
    joined = join([sent("a", {"u": "xy", "p": "x"}), sent("b", {"u": "z", "q": "xz"}), sent("c", {"w": "y"})])
    assert sets_of(joined, "pqw", "xyz") == {"x": "pq", "y": "w", "z": "q"}
    prefix = rows_of("u").tobytes().hex()[:8]
    assert joined.notes == (f"1 label ({prefix}) left out: claimed by a and b",)
    three = join([sent(name, {"u": "x", name: "y"}) for name in "abc"])
    assert sets_of(three, "abc", "y") == {"y": "abc"} and "claimed by a, b and c" in three.notes[0]


def test_shared_labels_are_joined_where_they_are_allowed() -> None:
    parts = [sent("a", {"u": "xy"}), sent("b", {"u": "yz", "q": "z"})]
    joined = join(parts, shared_labels=True)
    assert sets_of(joined, "uq", "xyz") == {"x": "u", "y": "u", "z": "qu"} and joined.notes == ()


def test_an_instance_with_too_many_labels_is_left_out() -> None:
    flood = sent("flood", {f"f{i}": "x" for i in range(6)})
    joined = join([sent("a", {"u": "xy"}), flood, flood], max_labels=5)
    assert joined.notes == ("client flood put more than 5 labels on one instance: refused",)
    assert joined.label_sets.shape == (2, 1)  # the honest client's instances are both there
    assert join([sent("a", {"u": "xy"}), flood], max_labels=7).notes == ()


def test_the_flood_is_named_after_labels_were_set_aside() -> None:
    flood = sent("flood", {"u": "y", **{f"f{i}": "x" for i in range(6)}})
    joined = join([sent("a", {"u": "xy", "v": "z"}), flood], max_labels=5)
    assert joined.notes == ("client flood put more than 5 labels on one instance: refused",)
    assert joined.label_sets.shape[1] == 2  # what it contested is its owner's again


def test_a_flood_is_held_against_who_sends_it_not_who_claims_the_same_labels() -> None:
    many = [f"f{i}" for i in range(6)]
    parts = [sent("a", {**dict.fromkeys(many, ""), "f0": "xy"}), sent("flood", dict.fromkeys(many, "x"))]
    joined = join(parts, max_labels=5, shared_labels=True)
    assert joined.notes == ("client flood put more than 5 labels on one instance: refused",)
    assert joined.label_sets.nnz == 2


def test_a_label_that_everybody_claims_costs_no_more_than_itself() -> None:
    many = [sent(f"c{i:04d}", {"all": "x", f"own{i}": "y"}) for i in range(1500)]
    joined = join(many, max_labels=2000)
    assert joined.label_sets.shape == (1, 1500) and "and 1495 more" in joined.notes[0]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(FedalcError, match="no messages"):
        join([])
    with pytest.raises(FedalcError, match="claimed by a and b\nnothing is left"):
        join([sent("a", {"u": "x"}), sent("b", {"u": "y"})])
    with pytest.raises(FedalcError, match="nothing is left"):
        join([sent("a", {"u": "x", "v": "x"})], max_labels=1)


def test_sizes_of_label_sets_by_hand() -> None:
    joined = join([sent("a", {"u": "xy"}), sent("b", {"v": "yz", "w": "y"})])
    assert set_sizes(joined, rows_of(*"zyxy")).tolist() == [1, 3, 1, 3]
    assert set_sizes(joined, rows_of("nobody's", "y")).tolist() == [1, 3]
    assert set_sizes(joined, rows_of()).tolist() == []
    crowded = join([sent("a", {"u": "xy"}), sent("b", {"v": "x"}), sent("c", {"w": "x"})], max_labels=2)
    assert set_sizes(crowded, rows_of(*"xy")).tolist() == [1, 1]  # x was left out of the join


def test_the_digests_of_a_join_are_those_of_its_rows() -> None:
    joined = join([sent("a", {"u": "xy"}), sent("b", {"v": "yz", "w": "y"})])
    assert [row.tobytes() for row in joined.digests] == sorted(rows_of(name).tobytes() for name in "xyz")


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_sizes_of_label_sets_are_those_of_Y(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 10_000))
    count = data.draw(st.integers(1, 25))
    split = random_split(count, 6, data.draw(st.integers(1, 8)), seed, per_instance=5)
    if split.labels.nnz == 0:
        return
    names = [f"l{i}" for i in range(split.labels.shape[1])]
    joined = join(client_per_label(split.labels, split.features, names, HASHER, "record"))
    digests = HASHER.instances(canonical_sparse(split.features, [str(i) for i in range(count)]), "record")
    asked = np.array(data.draw(st.lists(st.integers(0, count - 1))), dtype=int)
    wanted = np.maximum(split.labels.getnnz(axis=1), 1)  # an instance without labels is on nobody's list
    assert np.array_equal(set_sizes(joined, digests[asked]), wanted[asked])


def merged(X: csr_matrix, Y: csr_matrix) -> csr_matrix:
    """Return Y with rows of equal features merged."""
    group: dict[bytes, int] = {}
    X = X.copy()
    X.sort_indices()
    row = [group.setdefault(r.indices.tobytes() + b"|" + r.data.tobytes(), len(group)) for r in X]
    together = csr_matrix((np.ones(len(row)), (row, np.arange(len(row)))), shape=(len(group), len(row))) @ Y
    return csr_matrix((np.ones(together.nnz), together.indices, together.indptr), shape=together.shape)


@pytest.mark.parametrize(("name", "groups", "rows"), [("bibtex", 16, 33), ("eurlex15k", 450, 1712)])
def test_real_data(name: str, groups: int, rows: int) -> None:
    real_data(name)
    dataset = load_dataset(name)
    X, Y = dataset.train.features, dataset.train.labels
    names = [f"{place} {label}" for place, label in enumerate(dataset.label_names)]
    wanted = HASHER.labels(names)
    parts = client_per_label(Y, X, names, HASHER, "record") if name == "bibtex" else [
        make_messages(HASHER, "record", "all", canonical_sparse(X, [str(i) for i in range(X.shape[0])]), Y, names)
    ]  # fmt: skip
    assert_same(Collected.from_joined(join(parts)).for_labels(wanted), Correlations.from_label_sets(Y))

    sent_once = make_messages(HASHER, "content", "all", canonical_sparse(X), Y, names)
    by_content = Collected.from_joined(join([sent_once])).for_labels(wanted)
    expected = merged(X, Y)
    assert_same(by_content, Correlations.from_label_sets(expected))
    sizes = np.unique(
        np.unique(HASHER.instances(canonical_sparse(X)), axis=0, return_inverse=True)[1], return_counts=True
    )[1]
    assert (np.count_nonzero(sizes > 1), sizes[sizes > 1].sum()) == (groups, rows)
