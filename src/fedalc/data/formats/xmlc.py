"""The text format of the Extreme Classification Repository.

    N F L                      a header: the number of instances, features and labels
    l1,l2,l3 f1:v1 f2:v2 …     then one line per instance

Labels and features count from 0. An instance without labels begins with its features; an instance without both is a
blank line and counts as an instance. A label named twice in a line counts once. A feature named twice in a line is
refused, because its value is ambiguous. Zeros are not stored.

numpy reads every block of lines first. If anything in a block is unusual, a slower reader reads it again line by line.
That reader defines the format, and reports errors with the line.

Memory in addition to the result (8 bytes per stored feature and label): under 100 MB for a file of any length. Blocks
have a quarter of a megabyte, or one line if that is longer. The result grows in place, by at most 32 MB at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedalc.data.dataset import Split
from fedalc.data.formats.base import Format, ReadOptions
from fedalc.data.formats.number_tokens import LARGEST, Tokens, decimal_numbers, separator_table, whole_numbers
from fedalc.data.formats.sparse_builder import RowsBuilder, as_indicator, first_twice, twice_in_a_row
from fedalc.data.formats.text_stream import Block, LineReader, first_byte
from fedalc.data.limits import MOST_LABELS
from fedalc.errors import DataError

_SEPARATORS = separator_table(b" \t\r\n,:")
_MAX_COUNT = np.iinfo(np.int32).max


class Xmlc(Format):
    help = "XML-repository text"
    suffixes = (".txt", ".arff")
    compressed = True
    version = 2

    def recognises_file(self, path: Path) -> bool:
        """Recognise by content, not by name: all text that is not ARFF. Errors can then name the faulty line."""
        return first_byte(path) not in (b"@", b"%")

    def read_file(self, path: Path, options: ReadOptions) -> Split:
        return read_xmlc(path)


@dataclass(frozen=True)
class Header:
    instances: int
    features: int
    labels: int


@dataclass(frozen=True)
class _Rows:
    """A block's rows: all columns in one array, and the number of columns per row."""

    features: NDArray[np.integer]
    values: NDArray[np.floating]
    feature_counts: NDArray[np.integer]
    labels: NDArray[np.integer]
    label_counts: NDArray[np.integer]


def read_xmlc(path: Path | str) -> Split:
    """Read a file, plain or compressed with gzip or bzip2. A faulty line raises a DataError with its number."""
    path = Path(path)
    features, labels = RowsBuilder(), RowsBuilder()
    with LineReader(path) as reader:
        header = read_header(reader)
        missing = header.instances
        for block in reader.blocks():
            if missing < block.line_count:
                block = _without_blank_end(block, missing, header, path)
            rows = _read_fast(block.text, header)
            if rows is None:
                rows = _read_lines(block, header, path)
            features.append(rows.features, rows.values, rows.feature_counts)
            labels.append(rows.labels, np.ones(len(rows.labels), dtype=np.float32), rows.label_counts)
            missing -= len(rows.label_counts)
    if missing:
        raise DataError(
            f"the header says {header.instances} instances, but the file has {header.instances - missing}: "
            "the file is truncated, or the header is wrong",
            path,
            reader.line,
        )
    return Split(features.matrix(header.features), as_indicator(labels.matrix(header.labels)))


def read_header(reader: LineReader) -> Header:
    line = reader.next_line()
    if line is None:
        raise DataError("the file is empty: its first line should be `instances features labels`", reader.path)
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise DataError(
            f"the first line should be three whole numbers, `instances features labels`, not {_shown(line)}; "
            "if the file has no such line, add one at the top",
            reader.path,
            1,
        )
    most = {"instances": _MAX_COUNT, "features": _MAX_COUNT, "labels": MOST_LABELS}
    for word, what in zip(words, most, strict=True):
        if len(word) >= 20 or int(word) > most[what]:
            raise DataError(f"{word[:40].decode()} {what} are more than the limit of {most[what]:,}", reader.path, 1)
    return Header(*(int(word) for word in words))


def _without_blank_end(block: Block, keep: int, header: Header, path: Path) -> Block:
    """Return the block's first `keep` lines; only blank lines may follow, as files often end with one."""
    lines = block.text.split(b"\n")
    for number, line in enumerate(lines[keep:], start=block.first_line + keep):
        if line.strip():
            raise DataError(
                f"the header says {header.instances} instances, but this line is one more: "
                "two files were joined, or the header is wrong",
                path,
                number,
            )
    return Block(b"".join(line + b"\n" for line in lines[:keep]), block.first_line)


def _read_fast(text: bytes, header: Header) -> _Rows | None:
    """Return the rows of a block, or None if anything in it is unusual and may be wrong."""
    tokens = Tokens.find(text, _SEPARATORS)
    row_starts = np.concatenate(([0], np.searchsorted(tokens.start, tokens.line_end)))
    count = len(tokens)
    # The byte after a token determines its kind, if no other byte is between it and the next token.
    after = tokens.text[tokens.end]
    after[:-1][tokens.start[1:] - tokens.end[:-1] > 1] = ord(" ")
    colon_after = after == ord(":")
    comma_after = after == ord(",")
    if count and (colon_after[-1] or comma_after[-1]):
        return None
    # A colon or comma anywhere else (`3:`, `:4`, `1,,2`) would make these counts larger.
    if tokens.count(":") != np.count_nonzero(colon_after) or tokens.count(",") != np.count_nonzero(comma_after):
        return None
    is_value = np.zeros(count, dtype=bool)
    is_value[1:] = colon_after[:-1]
    comma_before = np.zeros(count, dtype=bool)
    comma_before[1:] = comma_after[:-1]
    if (is_value & (colon_after | comma_after)).any() or (colon_after & comma_before).any():
        return None
    is_label = ~(colon_after | is_value)
    first_in_row = np.zeros(count + 1, dtype=bool)
    first_in_row[row_starts] = True
    # Labels are at the beginning of a line, joined by commas.
    if (is_label & ~comma_before & ~first_in_row[:-1]).any():
        return None
    feature_at = np.flatnonzero(colon_after)
    features = whole_numbers(tokens, feature_at)
    labels = whole_numbers(tokens, is_label)
    values = decimal_numbers(tokens, feature_at + 1)
    if features is None or labels is None or values is None:
        return None
    if (features >= header.features).any() or (labels >= header.labels).any() or _overflows(values):
        return None
    labels_before = np.concatenate(([0], np.cumsum(is_label)))[row_starts]
    label_counts = np.diff(labels_before)
    feature_counts = (np.diff(row_starts) - label_counts) // 2
    if twice_in_a_row(features, feature_counts):
        return None
    return _Rows(features, values, feature_counts, labels, label_counts)


def _read_lines(block: Block, header: Header, path: Path) -> _Rows:
    """Return the same rows, read line by line. Raises an error at the first faulty line."""
    features: list[int] = []
    values: list[float] = []
    labels: list[int] = []
    feature_counts: list[int] = []
    label_counts: list[int] = []
    for number, line in enumerate(block.text.split(b"\n")[:-1], start=block.first_line):
        try:
            row_labels, row_features = _parse_line(line, header)
        except ValueError as error:
            raise DataError(str(error), path, number) from None
        labels += row_labels
        label_counts.append(len(row_labels))
        features += [feature for feature, _ in row_features]
        values += [value for _, value in row_features]
        feature_counts.append(len(row_features))
    return _Rows(
        np.array(features, dtype=np.int64),
        np.array(values, dtype=np.float64),
        np.array(feature_counts, dtype=np.int64),
        np.array(labels, dtype=np.int64),
        np.array(label_counts, dtype=np.int64),
    )


def _parse_line(line: bytes, header: Header) -> tuple[list[int], list[tuple[int, float]]]:
    words = line.replace(b"\r", b" ").replace(b"\t", b" ").split(b" ")
    words = [word for word in words if word]
    labels: list[int] = []
    if words and b":" not in words[0]:
        labels = [_parse_index(label, "label", header.labels) for label in words.pop(0).split(b",")]
    return labels, parse_features(words, header.features)


def parse_features(words: list[bytes], limit: int) -> list[tuple[int, float]]:
    """Return the features and values of words like `3:0.5`. Raises ValueError for anything else."""
    features = []
    for word in words:
        index, colon, value = word.partition(b":")
        if not colon:
            raise ValueError(
                f"expected feature:value, found {_shown(word)} (labels come first in the line, joined by commas "
                "without spaces)"
            )
        features.append((_parse_index(index, "feature", limit), _parse_value(value, word)))
    if (twice := first_twice([feature for feature, _ in features])) is not None:
        raise ValueError(f"feature {twice} occurs twice: keep one of them, or add them up")
    return features


def _parse_index(text: bytes, what: str, limit: int) -> int:
    if not text:
        raise ValueError(f"a {what} number is missing")
    if not text.isdigit():
        raise ValueError(f"a {what} should be a whole number from 0 on, not {_shown(text)}")
    if len(text) > 19 or int(text) >= limit:  # Python refuses to convert thousands of digits
        shown = text.decode() if len(text) < 20 else _shown(text)
        raise ValueError(
            f"{what} {shown} is out of range: the header says {limit} {what}s, counted from 0 to {limit - 1}"
        )
    return int(text)


def _parse_value(text: bytes, word: bytes) -> float:
    if not text:
        raise ValueError(f"the value is missing in {_shown(word)}")
    try:
        if b"_" in text:  # Python allows it in numbers, this format does not
            raise ValueError
        value = float(text)
    except ValueError:
        raise ValueError(f"a feature's value should be a number, not {_shown(text)}") from None
    if not abs(value) <= LARGEST:  # also refuses NaN
        raise ValueError(f"a feature's value should be finite and fit 32 bits, not {_shown(text)}")
    return value


def _overflows(values: NDArray[np.floating]) -> bool:
    return bool(len(values)) and bool(np.abs(values).max() > LARGEST)


def _shown(text: bytes) -> str:
    """Return text of the file for a message, quoted and shortened."""
    decoded = text.decode("utf-8", errors="replace")
    return repr(decoded if len(decoded) <= 40 else decoded[:37] + "…")
