"""Numbers in text, found and converted for a whole block at once with numpy.

A number of up to eight characters is loaded as one 64-bit word and converted with three multiplications (adding
neighbouring digits, then pairs, then fours), for all numbers of the block at once: several times faster than a C parser
that is called number by number, and exact. Up to fifteen digits the digits fit a float64 and so does the power of ten,
and the quotient of two exact numbers is correctly rounded: the same as `float(text)`. Whatever does not fit that mould
(a sign, an exponent, more digits) goes through `float` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD = 8
_MAX_EXACT_DIGITS = 15
LARGEST = float(np.finfo(np.float32).max)
"""Values are kept in 32 bits: beyond this they would be infinite."""
_POWERS = 10.0 ** np.arange(2 * WORD + 1)

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Mask = NDArray[np.bool_]


def _every_byte(value: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([value]) * WORD, "little"))


_ZEROS = _every_byte(ord("0"))
_DOTS = _every_byte(ord("."))
_ONES = _every_byte(0x01)
_TOP_BITS = _every_byte(0x80)
_OVER_NINE = _every_byte(0x80 - 10)
_ALL = np.uint64(2**64 - 1)

_NUMBER_CHARACTERS = np.zeros(256, dtype=bool)
_NUMBER_CHARACTERS[list(b"0123456789+-.eE")] = True


def separator_table(separators: bytes) -> bytes:
    """1 for each byte that stands between tokens, 0 for each that belongs to one. It has to include the newline."""
    return bytes(byte in separators for byte in range(256))


@dataclass(frozen=True)
class Tokens:
    """Where the tokens of a block are. `start` and `end` are positions in `text`, `end` exclusive."""

    text: NDArray[np.uint8]
    """The block's bytes, followed by enough zeros that a word may be loaded anywhere in the block."""
    length: int
    """How many of these bytes are the block's own."""
    start: Integers
    end: Integers
    line_end: Integers
    """Where the newlines are."""

    @classmethod
    def find(cls, block: bytes, table: bytes) -> Tokens:
        text = np.frombuffer(block + bytes(2 * WORD), dtype=np.uint8)
        separator = np.frombuffer((b"\n" + block).translate(table), dtype=np.uint8)
        # A token begins and ends where the class changes. The block ends with a newline, so every token has an end.
        edges = np.flatnonzero(separator[1:] != separator[:-1])
        newlines = np.flatnonzero(text[: len(block)] == ord("\n"))
        return cls(text, len(block), edges[::2], edges[1::2], newlines)

    def count(self, character: str) -> int:
        return int(np.count_nonzero(self.text[: self.length] == ord(character)))

    def __len__(self) -> int:
        return len(self.start)


def whole_numbers(tokens: Tokens, which: Integers | Mask | slice) -> Integers | None:
    """The tokens as non-negative integers, or None if one is anything but one to eight digits."""
    start = tokens.start[which]
    length = tokens.end[which] - start
    if len(length) and int(length.max()) > WORD:
        return None
    digits = _load(tokens.text, start) ^ _ZEROS
    digits <<= ((WORD - length) * 8).astype(np.uint64)
    if _any_non_digit(digits):
        return None
    return _value(digits).astype(np.int64)


def decimal_numbers(tokens: Tokens, which: Integers | Mask | slice) -> NDArray[np.float64] | None:
    """The tokens as finite numbers, or None if one is not a finite number."""
    start, end = tokens.start[which], tokens.end[which]
    length = end - start
    if len(start) == 0:
        return np.zeros(0)
    head, head_digits, head_fraction, odd = _decimal_word(tokens.text, start, np.minimum(length, WORD))
    fraction = head_fraction
    mantissa = head.astype(np.float64)
    digits = head_digits
    long = np.flatnonzero(length > WORD)
    if len(long):
        tail_length = np.minimum(length[long] - WORD, WORD)
        tail, tail_digits, tail_fraction, tail_odd = _decimal_word(tokens.text, start[long] + WORD, tail_length)
        mantissa[long] = mantissa[long] * _POWERS[tail_digits] + tail
        # With the point in the head, all the tail's digits are behind it; a second point in the tail is an error.
        head_has_point = head_digits[long] < WORD
        tail_has_point = tail_digits < tail_length
        fraction[long] = np.where(head_has_point, head_fraction[long] + tail_digits, tail_fraction)
        digits[long] += tail_digits
        odd[long] |= tail_odd | (head_has_point & tail_has_point) | (length[long] > 2 * WORD)
    odd |= (digits == 0) | (digits > _MAX_EXACT_DIGITS)
    values = mantissa / _POWERS[fraction]
    odd_at = np.flatnonzero(odd)
    if len(odd_at):
        exact = _by_float(tokens.text, start[odd_at], end[odd_at])
        if exact is None:
            return None
        values[odd_at] = exact
    return values


def _load(text: NDArray[np.uint8], start: Integers) -> Words:
    """The eight bytes from each position on, the first byte lowest."""
    # Overlapping words, one per byte: a view, so that the gather below is the only copy.
    words = np.ndarray(len(text) - WORD + 1, dtype="<u8", buffer=text.data, strides=(1,))
    return words[start].astype(np.uint64, copy=False)


def _decimal_word(text: NDArray[np.uint8], start: Integers, length: Integers) -> tuple[Words, Integers, Integers, Mask]:
    """Per token: its digits as one integer, how many digits, how many behind the point, and whether it is neither."""
    word = _load(text, start)
    missing = ((WORD - length) * 8).astype(np.uint64)
    # Bytes beyond the token are moved out at the top; what moves in at the bottom reads as the digit 0.
    word = (word ^ _ZEROS) << missing
    differs_from_dot = word ^ (_DOTS ^ _ZEROS)
    dot_bit = (differs_from_dot - _ONES) & ~differs_from_dot & _TOP_BITS
    dot_bit &= ~dot_bit + np.uint64(1)  # keep the lowest: the first dot
    has_dot = dot_bit != 0
    # Everything below the dot's byte moves up by one byte and so closes the gap.
    below_dot = np.where(has_dot, (dot_bit >> np.uint64(7)) - np.uint64(1), _ALL)
    above_dot = ~((below_dot << np.uint64(8)) | np.uint64(0xFF))
    digits = np.where(has_dot, ((word & below_dot) << np.uint64(8)) | (word & above_dot), word)
    dot_from_end = np.bitwise_count(above_dot) >> 3 if hasattr(np, "bitwise_count") else _bytes_set(above_dot)
    fraction = np.where(has_dot, dot_from_end, 0).astype(np.int64)
    return _value(digits), length - has_dot, fraction, _non_digit(digits)


def _bytes_set(mask: Words) -> NDArray[np.uint8]:
    """How many bytes of each word are all ones (numpy before 2.0 has no population count)."""
    return (mask[:, None].view(np.uint8) != 0).sum(axis=1, dtype=np.uint8)


def _non_digit(digits: Words) -> Mask:
    return (((digits + _OVER_NINE) | digits) & _TOP_BITS) != 0


def _any_non_digit(digits: Words) -> bool:
    return bool(np.bitwise_or.reduce((digits + _OVER_NINE) | digits) & _TOP_BITS) if len(digits) else False


def _value(digits: Words) -> Words:
    """Eight digits, one per byte and the first lowest, as one number."""
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8))
    even = pairs & np.uint64(0x000000FF000000FF)
    odd = (pairs >> np.uint64(16)) & np.uint64(0x000000FF000000FF)
    return (even * np.uint64(0x000F424000000064) + odd * np.uint64(0x0000271000000001)) >> np.uint64(32)


def _by_float(text: NDArray[np.uint8], start: Integers, end: Integers) -> NDArray[np.float64] | None:
    raw = text.tobytes()
    pieces = [raw[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    # `float` also takes "nan", "1_000" and more: the characters are checked first.
    if not _NUMBER_CHARACTERS[np.frombuffer(b"".join(pieces), dtype=np.uint8)].all():
        return None
    try:
        values = np.array([float(piece) for piece in pieces])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None
