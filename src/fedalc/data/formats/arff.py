"""ARFF as used by Mulan and MEKA: features and labels are both attributes, and another source says which are labels.

    @relation name
    @attribute word numeric
    @attribute label {0,1}
    @data
    {0 1,1 1}        sparse: attribute and value; `{}` is an instance without values
    0.5,1            or dense: one value per attribute

Attributes count from 0. Blank lines and comments (%) are not instances. As with the XML format, numpy reads whole
blocks, and a slower reader reads unusual blocks again line by line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedalc.data.cache import Parsed, content_digest
from fedalc.data.dataset import Split
from fedalc.data.formats.arff_header import ArffHeader, LabelRule, find_labels_file, read_arff_header, which_are_labels
from fedalc.data.formats.base import Format, ReadOptions
from fedalc.data.formats.number_tokens import LARGEST, Tokens, decimal_numbers, separator_table, whole_numbers
from fedalc.data.formats.sparse_builder import RowsBuilder, as_indicator, first_twice, twice_in_a_row
from fedalc.data.formats.text_stream import Block, LineReader, first_byte
from fedalc.errors import DataError

_SEPARATORS = separator_table(b" \t\r\n,{}")


class Arff(Format):
    help = "ARFF of Mulan or MEKA"
    suffixes = (".txt", ".arff")
    compressed = True
    version = 2

    def recognises_file(self, path: Path) -> bool:
        """Recognise by content, not by name: ARFF begins with an @ or a comment."""
        return first_byte(path) in (b"@", b"%")

    def read_file(self, path: Path, options: ReadOptions) -> Parsed:
        return read_arff(path, _rule(options))

    def cache_key(self, path: Path, options: ReadOptions) -> str:
        labels_file = find_labels_file(path)
        return f"{_rule(options)} {'' if labels_file is None else content_digest(labels_file)}"


def _rule(options: ReadOptions) -> LabelRule:
    return LabelRule(prefix=options.label_prefix, otherwise_last=options.label_count)


@dataclass(frozen=True)
class _Rows:
    """A block's rows: all attributes in one array, and the number of attributes per row."""

    attributes: NDArray[np.integer]
    values: NDArray[np.floating]
    counts: NDArray[np.integer]


def read_arff(path: Path | str, rule: LabelRule | None = None, labels_file: Path | None = None) -> Parsed:
    """Read a file, plain or compressed with gzip or bzip2. A faulty line raises a DataError with its number.

    The labels come from `labels_file` (Mulan's XML; default: the one beside the file), the relation's `-C n` (MEKA), or
    the rule. Label names omit the rule's prefix.
    """
    path = Path(path)
    rule = rule or LabelRule()
    features, label_rows = RowsBuilder(), RowsBuilder()
    with LineReader(path) as reader:
        header = read_arff_header(reader)
        is_label = which_are_labels(header, path, labels_file or find_labels_file(path), rule)
        # An attribute's number among the features, or among the labels.
        position = np.where(is_label, np.cumsum(is_label), np.cumsum(~is_label)) - 1
        parser = _RowParser(header, is_label, path)
        for block in reader.blocks():
            rows = parser.read_fast(block.text)
            if rows is None:
                rows = parser.read_lines(block)
            among_labels = is_label[rows.attributes]
            for builder, chosen in ((features, ~among_labels), (label_rows, among_labels)):
                chosen &= rows.values != 0
                chosen_before = np.concatenate(([0], np.cumsum(chosen)))
                row_ends = np.concatenate(([0], np.cumsum(rows.counts)))
                builder.append(position[rows.attributes[chosen]], rows.values[chosen], np.diff(chosen_before[row_ends]))
    names = [attribute.name for attribute in header.attributes]
    label_count = int(is_label.sum())
    return Parsed(
        Split(features.matrix(len(names) - label_count), as_indicator(label_rows.matrix(label_count))),
        tuple(name for name, label in zip(names, is_label, strict=True) if not label),
        tuple(name.removeprefix(rule.prefix or "") for name, label in zip(names, is_label, strict=True) if label),
    )


class _RowParser:
    def __init__(self, header: ArffHeader, is_label: NDArray[np.bool_], path: Path) -> None:
        self.path = path
        self.attributes = header.attributes
        self.only_zero_or_one = is_label | np.array([attribute.is_binary for attribute in header.attributes])
        # A sparse row omits zeros, but for a nominal attribute it omits the first value, which may not be 0.
        self.not_sparse = [
            attribute.name for attribute in header.attributes if attribute.values and attribute.values[0]
        ]

    def read_fast(self, text: bytes) -> _Rows | None:
        """Return the rows of a block, or None if anything in it is unusual and may be wrong."""
        if b"%" in text or b"?" in text:
            return None
        tokens = Tokens.find(text, _SEPARATORS)
        return self._fast_sparse(tokens) if b"{" in text else self._fast_dense(tokens)

    def _fast_sparse(self, tokens: Tokens) -> _Rows | None:
        if self.not_sparse or len(tokens) % 2:
            return None
        text = tokens.text[: tokens.length]
        opened, closed = np.flatnonzero(text == ord("{")), np.flatnonzero(text == ord("}"))
        if len(opened) != len(closed):
            return None
        # One pair of braces per line, with all tokens inside.
        open_line, close_line = np.searchsorted(tokens.line_end, opened), np.searchsorted(tokens.line_end, closed)
        if (open_line != close_line).any() or (np.diff(open_line) < 1).any() or (opened > closed).any():
            return None
        first, beyond = np.searchsorted(tokens.start, opened), np.searchsorted(tokens.start, closed)
        counts = beyond - first
        if counts.sum() != len(tokens) or (counts % 2).any():
            return None
        # Inside, a single space follows an attribute, and a comma follows every value but the last; there are no other
        # commas. Other spacing is valid but rare: the line reader handles it.
        after = tokens.text[tokens.end]
        gap_is_single = tokens.start[1::2] - tokens.end[::2] == 1
        if not gap_is_single.all() or not np.isin(after[::2], (ord(" "), ord("\t"))).all():
            return None
        commas = len(tokens) // 2 - int(np.count_nonzero(counts))
        if tokens.count(",") != commas or np.count_nonzero(after == ord(",")) != commas:
            return None
        attributes = whole_numbers(tokens, slice(0, None, 2))
        values = decimal_numbers(tokens, slice(1, None, 2))
        if attributes is None or values is None or (attributes >= len(self.attributes)).any():
            return None
        return self._checked(_Rows(attributes, values, counts // 2))

    def _fast_dense(self, tokens: Tokens) -> _Rows | None:
        width = len(self.attributes)
        line_starts = np.concatenate(([0], np.searchsorted(tokens.start, tokens.line_end)))
        counts = np.diff(line_starts)
        counts = counts[counts > 0]
        after = tokens.text[tokens.end]
        commas = len(tokens) - len(counts)
        if (counts != width).any() or tokens.count("}") or tokens.count(",") != commas:
            return None
        if np.count_nonzero(after == ord(",")) != commas:
            return None
        values = decimal_numbers(tokens, slice(None))
        if values is None:
            return None
        return self._checked(_Rows(np.tile(np.arange(width), len(counts)), values, counts))

    def _checked(self, rows: _Rows) -> _Rows | None:
        if twice_in_a_row(rows.attributes, rows.counts):
            return None
        too_large = len(rows.values) and np.abs(rows.values).max() > LARGEST
        binary = rows.values[self.only_zero_or_one[rows.attributes]]
        return None if too_large or ((binary != 0) & (binary != 1)).any() else rows

    def read_lines(self, block: Block) -> _Rows:
        """Return the same rows, read line by line. Raises an error at the first faulty line."""
        attributes: list[int] = []
        values: list[float] = []
        counts: list[int] = []
        for number, line in enumerate(block.text.split(b"\n")[:-1], start=block.first_line):
            text = line.decode("utf-8", errors="replace").strip()
            if not text or text.startswith("%"):
                continue
            try:
                row = self._parse_sparse(text) if text.startswith("{") else self._parse_dense(text)
            except ValueError as error:
                raise DataError(str(error), self.path, number) from None
            attributes += [attribute for attribute, _ in row]
            values += [value for _, value in row]
            counts.append(len(row))
        return _Rows(
            np.array(attributes, dtype=np.int64),
            np.array(values, dtype=np.float64),
            np.array(counts, dtype=np.int64),
        )

    def _parse_sparse(self, text: str) -> list[tuple[int, float]]:
        if self.not_sparse:
            raise ValueError(f"a sparse row omits attribute {self.not_sparse[0]!r}, whose first value is not 0")
        if not text.endswith("}"):
            raise ValueError("the row begins with `{` but does not end with `}`: the file is truncated")
        inside = text[1:-1].strip()
        row = []
        for pair in inside.split(",") if inside else []:
            words = pair.split()
            if len(words) != 2:
                raise ValueError(f"expected an attribute's number and its value, found {pair.strip()[:40]!r}")
            if not (words[0].isascii() and words[0].isdigit()):
                raise ValueError(f"an attribute's number should be a whole number from 0 on, not {words[0][:40]!r}")
            # Python refuses to convert thousands of digits.
            if len(words[0]) > 19 or int(words[0]) >= len(self.attributes):
                raise ValueError(
                    f"attribute {words[0][:40]} is out of range: the header has {len(self.attributes)}, "
                    f"counted from 0 to {len(self.attributes) - 1}"
                )
            row.append((int(words[0]), self._parse_value(int(words[0]), words[1])))
        if (twice := first_twice([attribute for attribute, _ in row])) is not None:
            raise ValueError(f"attribute {twice} ({self.attributes[twice].name!r}) occurs twice: keep one of them")
        return row

    def _parse_dense(self, text: str) -> list[tuple[int, float]]:
        words = [word.strip() for word in text.split(",")]
        if len(words) != len(self.attributes):
            raise ValueError(f"{len(words)} values in a row, but the header has {len(self.attributes)} attributes")
        return [(attribute, self._parse_value(attribute, word)) for attribute, word in enumerate(words)]

    def _parse_value(self, attribute: int, word: str) -> float:
        name = self.attributes[attribute].name
        if word == "?":
            raise ValueError(f"the value of {name!r} is missing (`?`): fill it in, or remove the instance")
        bare = word[1:-1] if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"" else word
        try:
            if not bare.isascii() or "_" in bare:  # `float` accepts these, this format does not
                raise ValueError
            value = float(bare)
        except ValueError:
            raise ValueError(f"the value of {name!r} should be a number, not {word[:40]!r}") from None
        if not abs(value) <= LARGEST:  # also refuses NaN
            raise ValueError(f"the value of {name!r} should be finite and fit 32 bits, not {word[:40]!r}")
        if self.only_zero_or_one[attribute] and value not in (0.0, 1.0):
            raise ValueError(f"{name!r} should be 0 or 1, not {word[:40]!r}")
        return value
