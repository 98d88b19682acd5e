from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedalc.data import Split
from fedalc.data.test_share import choose_test, row_contents, split_off_test, text_contents
from fedalc.errors import DataError


def test_equal_records_are_on_one_side() -> None:
    rng = np.random.default_rng(0)
    texts = [f"text {number}" + " " * (at % 2) for at, number in enumerate(rng.integers(0, 300, 1000))]
    chosen = choose_test(text_contents(texts), 0.2, 0, "x")
    sides = [{text.strip() for text, test in zip(texts, chosen, strict=True) if test == side} for side in (True, False)]
    assert not sides[0] & sides[1]
    assert abs(chosen.mean() - 0.2) < 0.01


def test_it_depends_on_content_and_seed_alone() -> None:
    texts = [f"text {n}" for n in range(200)]
    chosen = choose_test(text_contents(texts), 0.2, 0, "x")
    assert chosen.sum() == 40
    order = np.random.default_rng(0).permutation(200)
    assert (choose_test(text_contents([texts[at] for at in order]), 0.2, 0, "x") == chosen[order]).all()
    assert (choose_test(text_contents(texts), 0.2, 1, "x") != chosen).any()


def test_rows_of_features() -> None:
    rows = np.repeat(np.eye(20), 5, axis=0)
    train, test = split_off_test(Split(rows, np.ones((100, 1))), 0.3, 0, "x")
    assert (len(train), len(test)) == (70, 30)
    assert not set(train.features.indices) & set(test.features.indices)
    unsorted = csr_matrix((np.float32([1, 2]), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))
    assert list(row_contents(unsorted)) == list(row_contents(csr_matrix(np.float32([[2, 1]]))))


def test_too_few_records() -> None:
    with pytest.raises(DataError, match=r"3 records, 1 of them different, are too few to hold out a share of 0\.2"):
        choose_test([b"a"] * 3, 0.2, 0, "x")
