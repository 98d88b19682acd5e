"""CSV and TSV: a line names the columns, then one record per line. Fields may be quoted and have line breaks in them.

The text is UTF-8, plain or compressed. Only the records that are kept are in memory.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path

from fedalc.data.formats.table import TableFormat
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.formats.text_stream import LineReader, text_lines
from fedalc.data.limits import longest_line
from fedalc.data.tables.source import BLOCK, Block, Source, checked_columns
from fedalc.errors import DataError

_DELIMITERS = "\t,;|"
_QUOTED = re.compile(r'"[^"]*"')
_TAB = re.compile(r"\.(tsv|tab)(\.gz|\.bz2)?$", re.IGNORECASE)


class Csv(TableFormat):
    help = "CSV and TSV"
    suffixes = (".csv", ".tsv")
    compressed = True

    def source(self, path: Path, table: TableSettings) -> Source:
        return CsvSource(path, table)


class CsvSource(Source):
    def __init__(self, path: Path, table: TableSettings) -> None:
        super().__init__(path)
        self.path, self._table = path, table
        csv.field_size_limit(max(csv.field_size_limit(), longest_line()))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        first = next(self._rows(), None)
        if first is None:
            raise DataError("is empty", self.path)
        line, fields = first
        if not self._table.header:
            return tuple(str(number) for number in range(1, len(fields) + 1))
        return checked_columns(fields, self.path, line)

    @cached_property
    def delimiter(self) -> str:
        """The setting; otherwise a tab in .tsv files, and elsewhere the one that is in the first line most often."""
        if self._table.delimiter is not None:
            return self._table.delimiter
        if _TAB.search(self.path.name):
            return "\t"
        with LineReader(self.path) as reader:
            line = next((line for line in text_lines(reader, self._table.encoding) if line.strip()), "")
        unquoted = _QUOTED.sub("", line)
        return max(_DELIMITERS, key=lambda mark: (unquoted.count(mark), mark == ","))

    @cached_property
    def is_quoted(self) -> bool:
        """Whether quotes enclose fields. In many tab-separated files they are part of the text: those cannot be read as
        if they enclosed fields."""
        if self.delimiter != "\t":
            return True
        try:
            counts = {len(fields) for _, fields in self._quoted_rows()}
        except DataError:
            return False
        return len(counts) == 1

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        header = self.columns
        at = [header.index(name) for name in columns]
        kept: list[list[str]] = [[] for _ in at]
        lines: list[int] = []
        done = 0
        rows = self._rows()
        if self._table.header:
            next(rows)
        for line, fields in rows:
            if len(fields) != len(header):
                raise DataError(self._ragged(len(fields)), self.path, line)
            for cells, field in zip(kept, at, strict=True):
                cells.append(fields[field])
            lines.append(line)
            if len(lines) == BLOCK:
                yield Block(dict(zip(columns, kept, strict=True)), len(lines), done + 1, lines)
                done += len(lines)
                kept, lines = [[] for _ in at], []
        if lines:
            yield Block(dict(zip(columns, kept, strict=True)), len(lines), done + 1, lines)

    def _ragged(self, found: int) -> str:
        mark = {"\t": "tab"}.get(self.delimiter, self.delimiter)
        return (
            f"has {found} fields, but there are {len(self.columns)} columns. A field that contains the delimiter "
            f"({mark}) or a line break needs quotes around it"
        )

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        return self._quoted_rows() if self.is_quoted else self._plain_rows()

    def _plain_rows(self) -> Iterator[tuple[int, list[str]]]:
        with LineReader(self.path) as reader:
            for line in text_lines(reader, self._table.encoding):
                if line.strip():
                    yield reader.line, line.split(self.delimiter)

    def _quoted_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line number and the fields of each record. Skip blank lines."""
        with LineReader(self.path) as reader:
            lines = (f"{line}\n" for line in text_lines(reader, self._table.encoding))
            records = csv.reader(lines, delimiter=self.delimiter, strict=True)
            while True:
                line = records.line_num + 1
                try:
                    fields = next(records, None)
                except csv.Error as error:
                    raise DataError(_in_words(error), self.path, line) from None
                if fields is None:
                    return
                if len(fields) > 1 or "".join(fields).strip():
                    yield line, fields


def _in_words(error: csv.Error) -> str:
    what = str(error).partition(" - ")[0]  # the rest is for programmers
    if "unexpected end of data" in what:
        return "a quote is opened in this record and never closed"
    if "field larger than field limit" in what:
        return "a field is too long: a quote is opened and not closed, or FEDALC_MAX_LINE is too small"
    if "new-line character" in what:
        return "has line ends of another kind (CR alone); save it with LF or CRLF"
    if "expected after" in what:
        return "text follows a closing quote; write a quote within a quoted field twice"
    return f"cannot be read as CSV: {what}"
