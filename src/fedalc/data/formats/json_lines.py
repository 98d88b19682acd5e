"""JSON lines: an object per line, its fields are the columns. A single list of objects is read too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from fedalc.core.safe_parsing import Unreadable, parse_json
from fedalc.data.formats.table import TableFormat
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.formats.text_stream import LineReader, first_byte, text_lines
from fedalc.data.limits import in_words
from fedalc.data.tables.source import BLOCK, SAMPLE, Block, Source
from fedalc.errors import DataError

_LARGEST_LIST = 1 << 30
"""Limit in bytes for a list of objects, which has to be in memory as a whole."""


class JsonLines(TableFormat):
    help = "JSON lines"
    suffixes = (".jsonl", ".ndjson", ".json")
    compressed = True

    def source(self, path: Path, table: TableSettings) -> Source:
        return JsonSource(path)


class JsonSource(Source):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The fields of the first records, in the order in which they first occur."""
        names = dict.fromkeys(name for _, record in islice(self._records(), SAMPLE) for name in record)
        if not names:
            raise DataError("has no records", self.path)
        return tuple(names)

    def blocks(self, columns: Collection[str]) -> Iterator[Block]:
        records, done = self._records(), 0
        while part := list(islice(records, BLOCK)):
            cells = {name: [record.get(name) for _, record in part] for name in columns}
            yield Block(cells, len(part), done + 1, None if self._is_list else [line for line, _ in part])
            done += len(part)

    @cached_property
    def _is_list(self) -> bool:
        return first_byte(self.path) == b"["

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the line, or in a list the number, and the content of each record."""
        if self._is_list:
            yield from enumerate(self._listed(), 1)
            return
        with LineReader(self.path) as reader:
            for text in text_lines(reader):
                if text.strip():
                    yield reader.line, self._object(text, reader.line)

    def _object(self, text: str, line: int) -> dict[str, Any]:
        try:
            record = parse_json(text)
        except Unreadable as error:
            what = str(error).replace("not JSON, line 1, column", "not JSON, column")
            raise DataError(f"{what}. Each line should hold one object", self.path, line) from None
        if not isinstance(record, dict):
            raise DataError(f"expected an object, {{…}}, found {text.strip()[:40]!r}", self.path, line)
        return record

    def _listed(self) -> list[dict[str, Any]]:
        text = bytearray()
        with LineReader(self.path) as reader:
            for piece in reader.pieces():
                text += piece
                if len(text) > _LARGEST_LIST:
                    raise DataError(
                        f"is a list with more than {in_words(_LARGEST_LIST)}; write an object per line", self.path
                    )
        try:
            records = parse_json(bytes(text).removeprefix(b"\xef\xbb\xbf"))
        except Unreadable as error:
            wanted = "A file that begins with [ should be one list of objects; others hold an object on each line"
            raise DataError(f"{error}. {wanted}", self.path) from None
        for number, record in enumerate(records, 1):
            if not isinstance(record, dict):
                raise DataError(f"record {number}: expected an object, {{…}}, found {str(record)[:40]!r}", self.path)
        return list(records)
