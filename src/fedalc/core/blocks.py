"""Work in blocks of rows that fit into a memory budget, and parse such budgets."""

from __future__ import annotations

import re
from collections.abc import Iterator

DEFAULT_BUDGET = 256 * 2**20
"""Memory limit per block in bytes. It changes results only by rounding."""
SMALLEST_BUDGET = 2**20
_UNITS = {"B": 1, **{f"{prefix}B": 1000**n for n, prefix in enumerate("KMGT", 1)}}
_UNITS |= {f"{prefix}IB": 1024**n for n, prefix in enumerate("KMGT", 1)}


def blocks(rows: int, bytes_each: int, budget: int = DEFAULT_BUDGET, within: slice | None = None) -> Iterator[slice]:
    """Yield slices of `rows` rows that take at most `budget` bytes each, but have at least one row. `within`: only
    these rows.

    >>> list(blocks(5, 100, budget=250))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, budget // max(1, bytes_each))
    first, last = (0, rows) if within is None else (within.start, within.stop)
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def read_bytes(text: str | int) -> int:
    """Parse a number of bytes, with or without a unit.

    Stricter than pydantic's ByteSize, which reads "2 GB left" as 2 GB and a number of 400 digits as it stands.

    >>> read_bytes("1.5 GB"), read_bytes("256MiB"), read_bytes(4096)
    (1500000000, 268435456, 4096)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", str(text).upper())
    unit = "" if found is None else found[2] if found[2].endswith("B") else f"{found[2]}B"
    if found is None or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size in bytes; write it like 500MB, 2GB or 1.5GiB")
    return int(float(found[1]) * _UNITS[unit])


def read_budget(text: str | int) -> int:
    size = read_bytes(text)
    if size < SMALLEST_BUDGET:
        raise ValueError(f"{text!r} is too small: a block needs at least 1MiB")
    return size
