"""Records with named columns, read in blocks. Formats and objects in memory each have a `Source`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fedalc.errors import DataError

BLOCK = 1000
"""Records read at a time."""
SAMPLE = 1000
"""Records looked at to find out which column is what."""


@dataclass(frozen=True)
class Block:
    """Consecutive records: for each column, a sequence of cells."""

    cells: Mapping[str, Sequence[Any]]
    size: int
    first: int = 1
    """Number of the first record, counted from 1."""
    lines: Sequence[int] | None = None
    """The line in the file on which each record starts, if it has lines."""


class Source(ABC):
    """A table. `blocks` starts from the beginning each time. A cell is a string, number, list, array or None."""

    def __init__(self, place: Path | str) -> None:
        self.place = place
        """Where the records are, for messages."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""

    @abstractmethod
    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        """Yield these columns of all records."""

    def sample(self) -> dict[str, list[Any]]:
        """Return the first records, column by column."""
        columns = self.columns
        cells: dict[str, list[Any]] = {column: [] for column in columns}
        for block in islice(self.blocks(columns), -(-SAMPLE // BLOCK)):
            for column in columns:
                cells[column] += list(block.cells[column])
        if not any(cells.values()):
            raise DataError("has no records", self.place)
        return cells

    def error(self, message: str, block: Block, row: int) -> DataError:
        """Return an error that names the line of a record, or else its number."""
        if block.lines is not None:
            return DataError(message, self.place, block.lines[row])
        return DataError(f"record {block.first + row}: {message}", self.place)


def checked_columns(names: Sequence[str], place: Path | str, line: int | None = None) -> tuple[str, ...]:
    """Return the names without white space around them. Refuse names that repeat."""
    stripped = [name.strip() for name in names]
    seen: set[str] = set()
    for name in stripped:
        if name in seen and name:
            raise DataError(f"two columns are called {name!r}: give each its own name", place, line)
        seen.add(name)
    return tuple(name or f"column {number}" for number, name in enumerate(stripped, 1))
