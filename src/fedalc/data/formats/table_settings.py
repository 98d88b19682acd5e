"""The settings of tables of records: which column is what, and what is held out."""

from __future__ import annotations

import codecs
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from fedalc.core.settings import Settings, Share

AUTO = "auto"
"""Found in the data."""


def _listed(value: object) -> object:
    """Let a single column be given without a list."""
    return (value,) if isinstance(value, str) else value


def _encoding(name: str) -> str:
    try:
        if "a,\n".encode(codecs.lookup(name).name) == b"a,\n":
            return name
    except (LookupError, UnicodeError):
        raise ValueError(f"{name!r} is not a text encoding that Python knows") from None
    raise ValueError(f"{name}: convert the file to UTF-8; only encodings that contain ASCII, such as cp1252, are read")


ColumnNames = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_listed)]


class TableSettings(Settings):
    """How tables of records are read: CSV, JSON lines, Parquet, arrays, data frames (docs/data.md).

    Columns that are not set are found by their names and content; config.toml has what was found.
    """

    text_columns: ColumnNames | None = None  # joined by a line break if there are several
    label_columns: ColumnNames | None = None  # one with names of labels, or several of 0 and 1; tag_* matches a prefix
    feature_columns: ColumnNames | None = None  # numbers, or lists of numbers
    split_column: str | None = AUTO  # says train, test or validation; auto: a column called split
    label_separator: Annotated[str, Field(min_length=1)] | None = AUTO  # within a cell; none: a cell is one label
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None  # of CSV; None: found
    header: bool = True  # CSV: the first line names the columns; otherwise they are called 1, 2, …
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"  # of CSV and text files
    unlabelled: Literal["drop", "keep"] = "drop"  # records without a label
    test: str | None = None  # a file of test records
    test_share: Share = 0.2  # without test records: this share of the records is held out
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0  # which ones

    def completed(self, found: TableSettings) -> TableSettings:
        """Return `found`, if these settings leave open what was found; else these settings."""
        mine, theirs = self.model_dump(), found.model_dump()
        open_ = all(theirs[name] == value or value in (None, AUTO) for name, value in mine.items())
        return found if open_ else self
