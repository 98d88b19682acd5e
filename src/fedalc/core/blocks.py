"""Work in blocks: how many rows at a time keep within a budget of bytes, and how such a budget is written."""

from __future__ import annotations

import re
from collections.abc import Iterator

DEFAULT_BUDGET = 256 * 2**20
"""Bytes for what a step holds of one block at a time, where nothing else is said. It changes no result but rounding."""
SMALLEST_BUDGET = 2**20
_UNITS = {"B": 1, **{f"{prefix}B": 1000**n for n, prefix in enumerate("KMGT", 1)}}
_UNITS |= {f"{prefix}IB": 1024**n for n, prefix in enumerate("KMGT", 1)}


def blocks(rows: int, bytes_each: int, budget: int = DEFAULT_BUDGET, within: slice | None = None) -> Iterator[slice]:
    """Slices of `rows` rows, of which one block's take at most `budget` bytes; at least one row each. `within`: of
    these rows only.

    >>> list(blocks(5, 100, budget=250))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, budget // max(1, bytes_each))
    first, last = (0, rows) if within is None else (within.start, within.stop)
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def read_bytes(text: str | int) -> int:
    """A number of bytes, with or without a unit.

    >>> read_bytes("1.5 GB"), read_bytes("256MiB"), read_bytes(4096)
    (1500000000, 268435456, 4096)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", str(text).upper())
    unit = "" if found is None else found[2] if found[2].endswith("B") else f"{found[2]}B"
    if found is None or unit not in _UNITS:
        raise ValueError(f"{text!r} is no number of bytes; write it like 500MB, 2GB or 1.5GiB")
    return int(float(found[1]) * _UNITS[unit])


def read_budget(text: str | int) -> int:
    size = read_bytes(text)
    if size < SMALLEST_BUDGET:
        raise ValueError(f"{text!r} is too small for any block: at least 1MiB")
    return size
