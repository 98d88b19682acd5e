"""The server's file: counts by pseudonym, resolved with the key, and checked when read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.container import read_container, write_container
from fedalc.labels.collection.join import join
from fedalc.labels.collection.results import Collected
from fedalc.labels.correlations import Correlations
from tests.labels.collection.problems import PLAIN, assert_same, rows_of, sent

JOINED = join([sent("a", {"u": "xyz"}), sent("b", {"v": "yz", "w": "q"}), sent("c", {"t": "zq"})])
Y = csr_matrix(np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 1]], dtype=np.float32))  # x y z q


def test_labels_in_any_order() -> None:
    collected = Collected.from_joined(JOINED)
    for order in ("uvwt", "twvu", "vtuw"):
        columns = ["uvwt".index(label) for label in order]
        expected = Correlations.from_label_sets(csr_matrix(Y[:, columns]))
        assert_same(collected.for_labels(rows_of(*order)), expected)


def test_unknown_labels_are_empty_and_others_dropped() -> None:
    known = Collected.from_joined(JOINED).for_labels(rows_of("new", "t", "u"))
    assert known.instances == 4 and known.counts.tolist() == [0, 2, 3]
    assert known.together.toarray().tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_no_label_in_common_is_an_error() -> None:
    with pytest.raises(FedalcError, match="check the key"):
        Collected.from_joined(JOINED).for_labels(rows_of("n", "m"))
    with pytest.raises(FedalcError, match="same name"):
        Collected.from_joined(JOINED).for_labels(rows_of("u", "u"))


def test_it_survives_its_file(tmp_path: Path) -> None:
    before = Collected.from_joined(JOINED, {"made": "by hand"})
    before.save(tmp_path / "file")
    after = Collected.load(str(tmp_path / "file"))
    assert_same(after.correlations, before.correlations)
    assert (after.protocol, after.facts) == (PLAIN, {"made": "by hand"})
    assert np.array_equal(after.pseudonyms, before.pseudonyms)
    assert_same(after.for_labels(rows_of(*"uvwt")), Correlations.from_label_sets(Y))


@pytest.mark.long
def test_every_cut_and_every_changed_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Collected.from_joined(join([sent("a", {"u": "x", "v": "x"})])).save(path)
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DataError, match=str(path)):
            Collected.load(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"together_data": [1, 1, 2, 1]}, "rows of the pair counts"),
        ({"together_indices": [1, 0, 9]}, "refers to a label"),
        ({"together_indices": [1, -1]}, "refers to a label"),
        ({"together_indices": [0, 1]}, "with itself"),
        ({"together_indptr": [0, 2, 1]}, "rows of the pair counts"),
        ({"together_indptr": [0, 1]}, "rows of the pair counts"),
        ({"together_indptr": [0, 2, 2], "together_indices": [1, 1]}, "repeated"),
        ({"together_data": [1, 0]}, "symmetric"),
        ({"together_data": [3, 3]}, "more often than one of them alone"),
        ({"together_data": [-1, -1]}, "negative"),
        ({"together_data": [0.5, 0.5]}, "whole numbers"),
        ({"together_data": [np.nan, np.nan]}, "finite"),
        ({"counts": [2, -3]}, "negative"),
        ({"counts": [2, 10]}, "larger than"),
        ({"counts": [2, 3, 4]}, "rows of the pair counts"),
        ({"counts": [[2, 3]]}, "not one-dimensional"),
        ({"pseudonyms": rows_of("u", "u")}, "same pseudonym"),
        ({"pseudonyms": rows_of("u")}, "do not match"),
        ({"instances": "4"}, "number of instances"),
        ({"instances": True}, "number of instances"),
        ({"facts": []}, "not a table"),
        ({"protocol": {}}, "protocol"),
    ],
)
def test_a_file_is_not_believed(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """Two labels, n = 2 and 3, c = 2, four instances; then one impossible change."""
    path = tmp_path / "file"
    types = {"together_indices": np.int32, "together_indptr": np.int64}
    facts = {"instances": 4, "protocol": PLAIN.__dict__, "facts": {}}
    arrays: dict[str, Any] = {
        "pseudonyms": rows_of("u", "v"),
        "counts": [2, 3],
        "together_indptr": [0, 1, 2],
        "together_indices": [1, 0],
        "together_data": [2, 2],
    }
    for changes in ({}, change):
        for name, value in changes.items():
            (facts if name in facts else arrays)[name] = value
        write_container(path, "correlations", facts, {n: np.array(a, dtype=types.get(n)) for n, a in arrays.items()})
        if not changes:
            Collected.load(path)
    with pytest.raises(DataError, match=says):
        Collected.load(path)


def test_noised_counts_need_not_be_whole(tmp_path: Path) -> None:
    noised = Correlations(4, np.array([2.5, 3.25]), csr_matrix(np.array([[0, 1.5], [1.5, 0]])))
    with pytest.raises(DataError, match="whole numbers"):
        Collected(noised, rows_of("u", "v"), PLAIN)
    Collected(noised, rows_of("u", "v"), PLAIN, {"privacy": {"epsilon": 1.0}}).save(tmp_path / "file")
    after = Collected.load(tmp_path / "file")
    assert_same(after.correlations, noised)
    assert after.for_labels(rows_of("v", "u")).counts.tolist() == [3.25, 2.5]
    assert read_container(tmp_path / "file", "correlations")[0]["facts"] == {"privacy": {"epsilon": 1.0}}
