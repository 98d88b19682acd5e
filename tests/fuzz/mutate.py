"""Almost valid inputs: seeds that are cut, joined, flipped and mixed with tokens that parsers often get wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

LONGEST = 1 << 16
"""Bytes of an input. Few are longer than their seed; repetition makes some so."""

TOKENS: tuple[bytes, ...] = (
    b"\0", b"\n", b"\r\n", b"\t", b" ", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"<", b">", b"&", b",", b":", b"=",
    b"%", b"@", b"#", b"|", b";", b"-", b"..", b"/", b"../", b"NaN", b"Infinity", b"-Infinity", b"null", b"true",
    b"false", b"inf", b"1e999", b"-1", b"0", b"1", b"2147483648", b"4294967296", b"9223372036854775808",
    b"18446744073709551616", b"1" * 40, b"9" * 4301, b"0x" + b"f" * 300, b"[" * 2000, b'{"a":' * 1500, b"(" * 100,
    b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xe2\x80\xa8", "\u00b2".encode(), "\u0663".encode(), b"\xb2",
    b"\xef\xbb\xbf", b"\x1f\x8b\x08", b"BZh9", b"PK\x03\x04", b"\x80\0\0\0\0\0\0\1", b"\xff" * 8, b"\x7f" + b"\xff" * 7,
    b"<!DOCTYPE a>", b"<?xml version='1.0' encoding='klingon'?>", b"encoding='utf-16'", b"encoding='cp932'", b"%s%n",
)  # fmt: skip

NUMBERS: tuple[bytes, ...] = (
    b"0", b"-1", b"1", b"2", b"255", b"256", b"65536", b"2147483647", b"2147483648", b"4294967296", b"-2147483649",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1e38", b"1e39", b"1e999", b"-1e999",
    b"0.5", b"1e-400", b"NaN", b"null", b"true", b'"1"', b"1.0", b"00", b"9" * 19, b"9" * 30, b"9" * 5000,
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "a", "\0", "\ud800", "\u2028", "../x", "none", "1", "x" * 5000, [], {}, [[]], {"": {}},
    [None], [1, 2], ["a", "a"], {"a": 1}, [[[[[[[[[[]]]]]]]]]], "content", "float64", "int32", b"",
)  # fmt: skip


def mutated(seed: bytes, others: Sequence[bytes], rng: Random, tokens: Sequence[bytes] = TOKENS) -> bytes:
    """Return the seed after one to eight small mutations."""
    data = bytearray(seed)
    for _ in range(1 << rng.randrange(4)):
        _ACCIDENTS[rng.randrange(len(_ACCIDENTS))](data, others, rng, tokens)
    return bytes(data[:LONGEST])


def _flip(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    if data:
        at = rng.randrange(len(data))
        data[at : at + rng.choice((1, 2, 4, 8))] = rng.randbytes(rng.choice((1, 2, 4, 8)))


def _insert(data: bytearray, _others: Sequence[bytes], rng: Random, tokens: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(tokens)


def _replace(data: bytearray, _others: Sequence[bytes], rng: Random, tokens: Sequence[bytes]) -> None:
    if data:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 9)] = rng.choice(tokens)


def _delete(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    if data:
        at = rng.randrange(len(data))
        del data[at : at + rng.choice((1, 1, 2, 8, 64))]


def _truncate(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    if data and rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]


def _repeat(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    if data:
        at = rng.randrange(len(data))
        piece = bytes(data[at : at + rng.randrange(1, 65)])
        data[at:at] = piece * rng.choice((1, 1, 2, 10, 200))


def _splice(data: bytearray, others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    other = rng.choice(others)
    if other and data:
        start, at = rng.randrange(len(other)), rng.randrange(len(data))
        piece = other[start : start + rng.randrange(1, 257)]
        data[at : at + rng.choice((0, len(piece)))] = piece


def _swap(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    """Swap two lines, or remove one."""
    lines = data.split(b"\n")
    if 1 < len(lines) < 1000:
        one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[one], lines[other] = lines[other], lines[one]
        if rng.random() < 0.3:
            del lines[one]
        data[:] = b"\n".join(lines)


def _number(data: bytearray, _others: Sequence[bytes], rng: Random, _tokens: Sequence[bytes]) -> None:
    """Replace a number by another, so that the text stays well-formed."""
    if data:
        found = _DIGITS.search(data, rng.randrange(len(data))) or _DIGITS.search(data)
        if found:
            data[found.start() : found.end()] = rng.choice(NUMBERS)


_DIGITS = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_ACCIDENTS = (
    _flip,
    _flip,
    _overwrite,
    _insert,
    _replace,
    _delete,
    _truncate,
    _repeat,
    _splice,
    _swap,
    _number,
    _number,
)


def changed(value: Any, rng: Random) -> Any:
    """Return a copy of a tree of lists and dicts with a few values, keys and lengths changed."""
    copy = json.loads(json.dumps(value)) if not _has_bytes(value) else _copied(value)
    for _ in range(rng.randrange(1, 4)):
        spots = list(_spots(copy))
        if not spots:
            return rng.choice(VALUES)
        holder, key = rng.choice(spots)
        act = rng.randrange(6)
        if act == 0:
            del holder[key]
        elif act == 1 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif act == 2 and isinstance(holder, dict):
            holder[str(rng.choice(VALUES))[:50]] = holder.pop(key)
        elif act == 3:
            other, place = rng.choice(spots)
            if key in holder if isinstance(holder, dict) else True:
                holder[key] = _copied(other[place])
        else:
            holder[key] = _near(holder[key], rng)
    return copy


def _near(value: Any, rng: Random) -> Any:
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2**16, 2**32))
    if isinstance(value, str) and rng.random() < 0.4:
        return mutated(value.encode("utf-8", "replace"), [b"a"], rng).decode("utf-8", "replace")
    return _copied(rng.choice(VALUES))


def _spots(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 500:
        item = waiting.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            found.append((item, key))
            waiting.append(item[key])
    return found


def _has_bytes(value: Any) -> bool:
    return isinstance(value, bytes) or any(isinstance(holder[key], bytes) for holder, key in _spots(value))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def changed_json(seed: bytes, rng: Random) -> bytes:
    """Return valid JSON with changed content."""
    return json.dumps(_printable(changed(json.loads(seed), rng))).encode()


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value
