"""How long a line may be, and how much a compressed file may unpack to. A few megabytes of gzip can hold gigabytes.

Both limits can be raised with environment variables, for every command and for the Python API alike:

    FEDALC_MAX_LINE=64MiB           the longest line of a text file (default: 16MiB)
    FEDALC_MAX_EXPANSION=1000       how many times its size a compressed file may unpack to (default: 200)

A file that unpacks to at most 64 MiB is always read: small files may be very repetitive.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedalc.core.blocks import read_bytes
from fedalc.errors import ConfigError, DataError

LINE, EXPANSION = "FEDALC_MAX_LINE", "FEDALC_MAX_EXPANSION"
DEFAULT_LINE = 16 << 20
DEFAULT_EXPANSION = 200
ALWAYS_READ = 64 << 20
"""Bytes that any file may unpack to."""
MOST_MEMBERS = 1_000_000
"""Limit for files in an archive that is unpacked."""
MOST_LABELS = 10_000_000
"""Limit for labels in a text file's first line: each takes memory for its name and counts, even if it never occurs."""
LONGEST_MEMBER_HEADER = 64 << 10
"""Limit in bytes for a tar member's extended header (long names, attributes). Reading one takes quadratic time."""


def longest_line() -> int:
    """Return the limit in bytes."""
    said = os.environ.get(LINE)
    if not said:
        return DEFAULT_LINE
    try:
        size = read_bytes(said)
    except ValueError as error:
        raise ConfigError(str(error), LINE) from None
    if size < 1:
        raise ConfigError(f"{said!r} allows no line at all; write it like 64MiB", LINE)
    return size


def largest_content(packed: int) -> int:
    """Return how many bytes a compressed file of `packed` bytes may unpack to."""
    said = os.environ.get(EXPANSION)
    if not said:
        return max(ALWAYS_READ, DEFAULT_EXPANSION * packed)
    if not (said.isascii() and said.isdecimal() and 0 < len(said) <= 9 and int(said) > 0):
        raise ConfigError(f"{said!r} is not a whole number from 1 on, like 1000", EXPANSION)
    return max(ALWAYS_READ, int(said) * packed)


def line_too_long(path: Path, line: int, limit: int) -> DataError:
    return DataError(
        f"the line is longer than {in_words(limit)}, the limit. If the file is right, allow longer "
        f"lines: {LINE}=64MiB (an environment variable)",
        path,
        line,
    )


def unpacks_to_too_much(path: Path | str, packed: int, limit: int, where: str = "") -> DataError:
    return DataError(
        f"has {in_words(packed)} and unpacks to more than {in_words(limit)}{where}, which looks like a decompression "
        f"bomb. If the file is right, unpack it first, or allow more: {EXPANSION}=1000 (an environment variable; "
        f"default {DEFAULT_EXPANSION} times its size)",
        path,
    )


def in_words(size: int) -> str:
    """
    >>> in_words(16 << 20), in_words(700), in_words(5 << 30)
    ('16 MiB', '700 bytes', '5 GiB')
    """
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return f"{size} bytes"
