"""Rows on disk: computed once, whatever the order, and again if they are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedalc.data.pretrained import feature_cache
from fedalc.data.pretrained.feature_cache import cached_rows


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path))
    monkeypatch.setattr(feature_cache, "WORTH_KEEPING", 3)
    monkeypatch.setattr(feature_cache, "ROWS_PER_FILE", 4)
    return tmp_path


class Network:
    """Gives [number, 2 · number] for the record of this number, and counts."""

    def __init__(self, stops_after: int = 10**9) -> None:
        self.computed: list[int] = []
        self.stops_after = stops_after

    def rows(self, numbers: Sequence[int], key: str = "net") -> np.ndarray:
        def compute(places: Sequence[int]) -> np.ndarray:
            if len(self.computed) >= self.stops_after:
                raise KeyboardInterrupt
            self.computed += [numbers[place] for place in places]
            return np.array([[numbers[place], 2 * numbers[place]] for place in places], dtype=np.float32)

        def batches(places: np.ndarray) -> list[list[int]]:
            return [places[at : at + 2].tolist() for at in range(0, len(places), 2)]

        digests = [number.to_bytes(16, "big") for number in numbers]
        return cached_rows(key, 2, digests, batches, compute, "rows")


def test_each_record_is_computed_once(place: Path) -> None:
    network = Network()
    found = network.rows([5, 1, 5, 3])
    np.testing.assert_array_equal(found, [[5, 10], [1, 2], [5, 10], [3, 6]])
    assert network.computed == [5, 1, 3], "equal records share a row"
    np.testing.assert_array_equal(network.rows([3, 4, 1]), [[3, 6], [4, 8], [1, 2]])
    assert network.computed == [5, 1, 3, 4]
    network.rows([3], key="another network")
    assert network.computed == [5, 1, 3, 4, 3]


def test_few_new_rows_are_not_kept(place: Path) -> None:
    Network().rows([1, 2])
    assert not list(place.rglob("*.npz"))


def test_interrupted_work_is_kept() -> None:
    stopped, resumed = Network(stops_after=6), Network()
    with pytest.raises(KeyboardInterrupt):
        stopped.rows(list(range(10)))
    np.testing.assert_array_equal(resumed.rows(list(range(10)))[:, 0], range(10))
    assert resumed.computed == list(range(4, 10)), "a file of four rows was written"


def test_damaged_files_are_computed_again(place: Path) -> None:
    Network().rows([1, 2, 3])
    (file,) = place.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:50])
    network = Network()
    np.testing.assert_array_equal(network.rows([1, 2, 3])[:, 1], [2, 4, 6])
    assert network.computed == [1, 2, 3]
    np.savez(file, digests=np.zeros((1, 16), np.uint8), rows=np.full((1, 2), np.nan, np.float32))
    np.testing.assert_array_equal(network.rows([0]), [[0, 0]])


def test_a_cache_that_cannot_be_written_is_no_failure(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").touch()
    monkeypatch.setenv("FEDALC_CACHE", str(place / "file" / "below"))
    assert len(Network().rows([1, 2, 3])) == 3
