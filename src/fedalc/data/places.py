"""Where records are in their files, for messages: dropping and splitting records changes their row, not their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, eq=False)
class Places:
    """The line on which each record starts, or its number in the file, counted from 1."""

    numbers: np.ndarray
    unit: Literal["line", "record"] = "record"
    files: tuple[str, ...] = ()
    """The files, if there are several; `file_of` is the one of each record."""
    file_of: np.ndarray | None = None

    @classmethod
    def counted(cls, count: int) -> Places:
        """Return the places of records that are all of a file's, in its order."""
        return cls(np.arange(1, count + 1))

    @classmethod
    def of_files(cls, parts: Sequence[Places], files: Sequence[str]) -> Places:
        """Return the places of the records of several files, one after another."""
        units = {part.unit for part in parts}
        return cls(
            np.concatenate([part.numbers for part in parts]),
            units.pop() if len(units) == 1 else "record",
            tuple(files),
            np.repeat(np.arange(len(parts)), [len(part.numbers) for part in parts]),
        )

    def rows(self, index: np.ndarray) -> Places:
        file_of = None if self.file_of is None else self.file_of[index]
        return Places(self.numbers[index], self.unit, self.files, file_of)

    def __getitem__(self, row: int) -> str:
        """Return the place of a record in words."""
        place = f"{self.unit} {self.numbers[row]}"
        return place if self.file_of is None else f"{self.files[self.file_of[row]]} {place}"
