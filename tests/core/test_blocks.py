"""Blocks within a memory budget, and how to write a budget."""

from __future__ import annotations

from typing import Any

import pytest

from fedalc.config.resolve import experiment
from fedalc.core.blocks import blocks, read_bytes
from fedalc.errors import ConfigError


@pytest.mark.parametrize(("rows", "each", "budget", "sizes"), [
    (10, 40, 120, [3, 3, 3, 1]), (4, 1000, 1, [1, 1, 1, 1]), (4, 0, 2, [2, 2]), (0, 8, 100, []), (3, 8, 10**9, [3]),
])  # fmt: skip
def test_blocks_cover_all_rows_within_the_budget(rows: int, each: int, budget: int, sizes: list[int]) -> None:
    found = list(blocks(rows, each, budget))
    assert [part.stop - part.start for part in found] == sizes
    assert [number for part in found for number in range(rows)[part]] == list(range(rows))


@pytest.mark.parametrize(("text", "value"), [
    ("2GB", 2 * 10**9), ("2 gib", 2**31), ("1.5MB", 1_500_000), ("300", 300), ("64kb", 64_000), (77, 77), ("5B", 5),
    ("500M", 500_000_000),
    (1.5e9, 1_500_000_000),
])  # fmt: skip
def test_bytes_are_read(text: Any, value: int) -> None:
    assert read_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GB", "two", "2GG", "-3MB", "1e9", "2 GB left", "3I", None, [3], "9" * 400])
def test_what_is_no_number_of_bytes_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="not a size in bytes; write it like 500MB"):
        read_bytes(text)


def test_a_budget_is_a_setting() -> None:
    assert experiment({"memory_budget": "64MB"}).memory_budget == 64_000_000
    assert "memory_budget = 64000000" in experiment({"memory_budget": "64MB"}).to_toml()
    with pytest.raises(ConfigError, match="memory_budget: '10KB' is too small: a block needs at least 1MiB"):
        experiment({"memory_budget": "10KB"})
    with pytest.raises(ConfigError, match=r"memory_budget.*500MB"):
        experiment({"memory_budget": "much"})
