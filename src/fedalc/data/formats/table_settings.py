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

    text_columns: ColumnNames | None = None
    """Columns that hold the text, joined by a line break if there are several. none: found by name and content."""
    label_columns: ColumnNames | None = None
    """A column with names of labels, or several columns of 0 and 1, each a label; `tag_*` means all that begin so.
    none: found by name and content."""
    feature_columns: ColumnNames | None = None
    """Columns of numbers, or of lists of numbers, to learn from if there is no text. none: all that are not labels."""
    split_column: str | None = AUTO
    """Column that says train, test or validation. auto: a column called split. none: there is none."""
    label_separator: Annotated[str, Field(min_length=1)] | None = AUTO
    """What separates labels in a cell. auto: |, ; or a comma, or the cells are lists. none: a cell is one label."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """What separates the columns of a CSV file. none: found in the first line."""
    header: bool = True
    """Whether the first line of a CSV file names its columns. Otherwise they are called 1, 2, …"""
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    """Encoding of CSV files, such as cp1252."""
    first_feature: Literal["auto", 0, 1] = "auto"
    """svmlight text without a header: the number of the first feature. auto: 1, if no record has a feature 0."""
    unlabelled: Literal["drop", "keep"] = "drop"
    """Records without a label. drop: left out. keep: tested on too, where they count as wrong."""
    test: str | None = None
    """File to test on, if the dataset has no test records."""
    test_share: Share = 0.2
    """Share of the records held out for testing, if there are no test records. 0: train on all, test on none."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Which records are held out."""

    def completed(self, found: TableSettings) -> TableSettings:
        """Return `found`, if these settings leave open what was found; else these settings."""
        mine, theirs = self.model_dump(), found.model_dump()
        open_ = all(theirs[name] == value or value in (None, AUTO) for name, value in mine.items())
        return found if open_ else self
