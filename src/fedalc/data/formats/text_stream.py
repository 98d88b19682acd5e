"""Text files as blocks of whole lines, unpacked while reading. Every error names the file.

Only a block and a line are in memory: `limits` bounds the length of a line and the unpacked size.
"""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from fedalc.data.limits import largest_content, line_too_long, longest_line, unpacks_to_too_much
from fedalc.errors import DataError, either_setting

# Small blocks keep the tokenizer's scratch arrays inside the processor's cache and the memory near the result's size.
BLOCK_BYTES = 1 << 18

_GZIP_MAGIC = b"\x1f\x8b"
_BZIP2_MAGIC = b"BZh"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive",
    b"Rar!": "a rar archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"\xfd7zX": "xz-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
}
_OTHER_FILES = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF document",
    b"\xd0\xcf\x11\xe0": "an old Excel or Word file",
    b"PAR1": "a Parquet file (rename it to .parquet)",
    b"\x93NUMPY": "a numpy array",
}
_PACKED_NAMES = {".gz": "gzip", ".bz2": "bzip2"}
_START = 4096  # bytes in which binary data is looked for
_CONTROLS = [bytes([byte]) for byte in (*range(8), *range(14, 27), *range(28, 32))]  # 27 switches character sets
_MOST_CONTROLS = 0.01


@dataclass(frozen=True)
class Block:
    """Whole lines. The last ends in a newline, even if the file does not."""

    text: bytes
    first_line: int
    """Line number of the block's first line, counted from 1."""

    @cached_property
    def line_count(self) -> int:
        return self.text.count(b"\n")


class LineReader:
    """Reads a file front to back: single lines for the header, then blocks for the bulk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        """Number of the last line returned."""
        self._longest = longest_line()
        self._file, self._packed = _open(path)
        self._largest = None if self._packed is None else largest_content(self._packed)
        self._unpacked = 0

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def next_line(self) -> bytes | None:
        """Return the next line without its newline; None at the end of the file."""
        line = self._guarded(self._file.readline, self._longest + 1)
        if not line:
            return None
        if len(line) > self._longest:
            raise line_too_long(self.path, self.line + 1, self._longest)
        if self.line == 0:
            line = line.removeprefix(_UTF8_MARK)
        self.line += 1
        return line.rstrip(b"\r\n")

    def blocks(self) -> Iterator[Block]:
        """Yield the rest of the file. A block has BLOCK_BYTES plus the rest of its last line."""
        while text := self._guarded(self._file.read, min(BLOCK_BYTES, self._longest)):
            if not text.endswith(b"\n"):
                text = self._completed(text)
            block = Block(text, self.line + 1)
            yield block
            self.line += block.line_count

    def _completed(self, text: bytes) -> bytes:
        """Return the text with the rest of its last line."""
        begun = len(text) - (text.rfind(b"\n") + 1)
        rest = self._guarded(self._file.readline, self._longest - begun + 1)
        if begun + len(rest) > self._longest:
            raise line_too_long(self.path, self.line + 1 + text.count(b"\n"), self._longest)
        return text + rest if rest.endswith(b"\n") else text + rest + b"\n"

    def pieces(self) -> Iterator[bytes]:
        """Yield the rest of the file in pieces, regardless of lines."""
        while piece := self._guarded(self._file.read, BLOCK_BYTES):
            yield piece

    def _guarded(self, read: Callable[[int], bytes], most: int) -> bytes:
        try:
            found = read(most)
        except EOFError:
            raise DataError(
                "the compressed stream ends too early: the file was cut short; get it again", self.path
            ) from None
        except (zlib.error, OSError, ValueError) as error:
            what = "cannot be read" if self._packed is None else "the compressed file is damaged: it cannot be unpacked"
            raise DataError(f"{what} ({error}); get it again", self.path) from None
        self._unpacked += len(found)
        if self._packed is not None and self._largest is not None and self._unpacked > self._largest:
            raise unpacks_to_too_much(self.path, self._packed, self._largest, f" (line {self.line + 1})")
        return found


def text_lines(reader: LineReader, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the rest of the lines as text, without line breaks."""
    while (line := reader.next_line()) is not None:
        if reader.line == 1 and line.startswith(_UTF16_MARKS):
            raise DataError("is UTF-16 text; save it as UTF-8", reader.path)
        if reader.line == 1 and b"\0" in line:
            raise not_text(reader.path, line) or DataError("is not text", reader.path)
        try:
            yield line.decode(encoding)
        except UnicodeDecodeError:
            if (error := not_text(reader.path, line)) is not None:
                raise error from None
            what = "UTF-8" if encoding == "utf-8" else encoding
            raise DataError(
                f"is not {what} text; save it as UTF-8, or name its encoding, such as "
                + either_setting("table.encoding", "cp1252"),
                reader.path,
                reader.line,
            ) from None


def not_text(path: Path, line: bytes) -> DataError | None:
    """Return why a file with this line is no text in any encoding; None if it may be."""
    with LineReader(path) as reader:
        start = next(reader.pieces(), b"")[:_START]
        packed = reader.is_packed
    if not packed and (name := _PACKED_NAMES.get(path.suffix.lower())):
        return DataError(
            f"the compressed file is damaged, or something else: it does not begin as {name} does; get it again", path
        )
    for magic, what in _OTHER_FILES.items():
        if start.startswith(magic):
            return DataError(f"is {what}, not text", path)
    if max(map(_share_of_controls, (start, line[:_START]))) > _MOST_CONTROLS:
        return DataError(
            "is not text but binary data, or UTF-16 text. See that this is the right file, and save a table as UTF-8",
            path,
        )
    return None


def _share_of_controls(text: bytes) -> float:
    """Return the share of bytes that no text has, in any encoding that contains ASCII."""
    return sum(map(text.count, _CONTROLS)) / max(len(text), 1)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return the content of a text file no longer than a line may be."""
    with LineReader(path) as reader:
        lines, size = [], 0
        for line in text_lines(reader, encoding):
            lines.append(line)
            size += len(line) + 1
            if size > longest_line():
                raise line_too_long(path, reader.line, longest_line())
    return "\n".join(lines)


def first_byte(path: Path) -> bytes:
    """Return the first byte of a file that is not white space; empty if there is none."""
    with LineReader(path) as reader:
        while (line := reader.next_line()) is not None:
            if line.strip():
                return line.lstrip()[:1]
    return b""


def _open(path: Path) -> tuple[BinaryIO, int | None]:
    """Open a file by its first bytes, not its name: `train.txt` may be gzipped.

    Returns the size of a compressed file too; None for a plain one.
    """
    if path.is_dir():
        raise DataError("is a folder, and a file was expected", path)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError("no such file", path) from None
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror}", path) from None
    try:
        start, packed = file.read(6), os.fstat(file.fileno()).st_size
        file.seek(0)
    except OSError as error:
        file.close()
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    for magic, what in _ARCHIVES.items():
        if start.startswith(magic):
            file.close()
            excel = "; save an Excel file as CSV" if what == "a zip archive" else ""
            raise DataError(
                f"is {what}: unpack it first (plain text, gzip and bzip2 are read as they are{excel})", path
            )
    if start.startswith(_GZIP_MAGIC):
        return cast(BinaryIO, _Owning(gzip.GzipFile(fileobj=file), file)), packed
    if start.startswith(_BZIP2_MAGIC):
        return cast(BinaryIO, _Owning(bz2.BZ2File(file), file)), packed
    return file, None


class _Owning:
    """A decompressor that closes the file it was given, which gzip and bz2 do not do."""

    def __init__(self, stream: gzip.GzipFile | bz2.BZ2File, file: BinaryIO) -> None:
        self.read = stream.read
        self.readline = stream.readline
        self._stream = stream
        self._file = file

    def close(self) -> None:
        self._stream.close()
        self._file.close()
