from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalc.data.formats.number_tokens import Tokens, decimal_numbers, separator_table, whole_numbers

SPACES = separator_table(b" \n")


def find(words: list[str]) -> Tokens:
    return Tokens.find((" ".join(words) + "\n").encode(), SPACES)


def test_positions_of_tokens_and_lines() -> None:
    tokens = Tokens.find(b"  ab c\n\nd\n", SPACES)
    assert tokens.start.tolist() == [2, 5, 8]
    assert tokens.end.tolist() == [4, 6, 9]
    assert tokens.line_end.tolist() == [6, 7, 9]


def test_no_tokens() -> None:
    tokens = Tokens.find(b"\n", SPACES)
    assert len(tokens) == 0
    assert len(whole_numbers(tokens, slice(None))) == 0  # type: ignore[arg-type]
    assert len(decimal_numbers(tokens, slice(None))) == 0  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 99_999_999), min_size=1))
def test_whole_numbers(numbers: list[int]) -> None:
    found = whole_numbers(find([str(number) for number in numbers]), slice(None))
    assert found is not None and found.tolist() == numbers


@pytest.mark.parametrize("word", ["-1", "+1", "1.0", "1e3", "x", "/", ":", "123456789", "１"])
def test_what_is_no_whole_number(word: str) -> None:
    assert whole_numbers(find(["1", word, "2"]), slice(None)) is None


NUMBER_TEXTS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.from_regex(r"[0-9]{0,9}\.[0-9]{1,9}", fullmatch=True),
    st.from_regex(r"[0-9]{1,18}\.?", fullmatch=True),
    st.from_regex(r"[+-]?[0-9]{1,3}\.[0-9]{0,20}([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(NUMBER_TEXTS, min_size=1, max_size=20))
def test_decimal_numbers_are_exactly_what_python_reads(words: list[str]) -> None:
    words = [word for word in words if word.isascii()] or ["0"]
    found = decimal_numbers(find(words), slice(None))
    assert found is not None
    np.testing.assert_array_equal(found, [float(word) for word in words])


@pytest.mark.parametrize(
    "word",
    [
        ".",
        "..",
        "1.2.3",
        "1.23456.78",
        "12345678.9.1",
        "1e",
        "e5",
        "nan",
        "inf",
        "1_0",
        "1e999",
        "0x10",
        "a",
        "1-2",
        "--1",
    ],
)
def test_what_is_no_number(word: str) -> None:
    assert decimal_numbers(find(["0.5", word, "2"]), slice(None)) is None
