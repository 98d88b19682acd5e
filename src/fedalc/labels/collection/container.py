"""The binary file format of the collection: a magic line, a JSON header, arrays, a checksum.

    fedalc-messages 2\\n            or fedalc-correlations 2\\n
    {"arrays": [{"dtype": …, "name": …, "shape": …}, …], "facts": {…}}\\n
    the arrays, raw, little-endian, row by row, in the header's order
    SHA-256 of everything before, 32 bytes

Files come from other parties, so the reader trusts nothing: no pickle, a header of bounded length, and sizes that must
match the file's length before memory is allocated. docs/collection-format.md has the full description.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedalc.core.atomic_files import failures_named, whole_binary
from fedalc.errors import DataError

Kind = Literal["messages", "correlations"]
VERSION = 2  # the version that is written; version 1 had no run id and can still be read
_READABLE = (1, VERSION)
MAX_HEADER = 1 << 20
MAX_ARRAYS = 8
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint32", "int32", "int64", "float64")}
_CHECKSUM = 32
_CHUNK = 1 << 24


def write_container(path: Path | str, kind: Kind, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Write the file atomically, and return its checksum in hex."""
    listed = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    for entry in listed:
        if entry["dtype"] not in _DTYPES:
            raise DataError(f"array {entry['name']} has type {entry['dtype']}, which the format does not support", path)
    try:
        header = json.dumps({"arrays": listed, "facts": facts}, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"the facts cannot be written as JSON: {error}", path) from None
    if len(header) > MAX_HEADER:
        raise DataError(f"the header has {len(header)} bytes, more than the {MAX_HEADER} allowed", path)
    path = Path(path).resolve()
    digest = hashlib.sha256()
    with failures_named(path), whole_binary(path) as file:
        pieces: list[bytes | memoryview] = [_magic(kind), header, *map(_raw, arrays.values())]
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())
    return digest.hexdigest()


def read_container(path: Path | str, kind: Kind) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """Return facts, arrays and checksum (hex) of a file. Any damage raises a DataError."""
    path = Path(path)
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise DataError("not a regular file", path)
            return _read(file, facts.st_size, path, kind)
    except FileNotFoundError:
        raise DataError("no such file", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def _read(file: BufferedReader, size: int, path: Path, kind: Kind) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    magic = file.readline(64)
    if magic not in [_magic(kind, version) for version in _READABLE]:
        raise DataError(_wrong_magic(magic, kind), path)
    header = file.readline(MAX_HEADER + 1)
    if len(header) > MAX_HEADER:
        raise DataError(f"the header is longer than the {MAX_HEADER} bytes allowed", path)
    if not header.endswith(b"\n"):
        raise DataError("truncated: the file ends within its header", path)
    facts, layout = _parsed(header, path)
    expected = len(magic) + len(header) + _CHECKSUM
    expected += sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in layout)
    if size != expected:
        problem = "truncated" if size < expected else "too long"
        raise DataError(f"{problem}: {size} bytes, but its header announces {expected}", path)
    digest = hashlib.sha256(magic + header)
    arrays = {}
    for name, dtype, shape in layout:
        array = np.empty(shape, dtype=dtype)
        view = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(view), _CHUNK):
            piece = view[start : start + _CHUNK]
            if file.readinto(piece) != len(piece):
                raise DataError("truncated while it was being read", path)
            digest.update(piece)
        arrays[name] = array.astype(dtype.newbyteorder("="), copy=False)
    if file.read(_CHECKSUM + 1) != digest.digest():
        raise DataError("damaged: the checksum does not match the content; ask the sender for the file again", path)
    return facts, arrays, digest.hexdigest()


def _parsed(header: bytes, path: Path) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    try:
        content = json.loads(header.decode("ascii"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise DataError("damaged: its header is not JSON", path) from None
    if not isinstance(content, dict) or set(content) != {"arrays", "facts"}:
        raise DataError("damaged: its header lacks arrays or facts", path)
    facts, listed = content["facts"], content["arrays"]
    if not isinstance(facts, dict) or not isinstance(listed, list):
        raise DataError("damaged: its header must have a list of arrays and a table of facts", path)
    if len(listed) > MAX_ARRAYS:
        raise DataError(f"its header lists {len(listed)} arrays, more than the {MAX_ARRAYS} allowed", path)
    layout: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for entry in listed:
        if not isinstance(entry, dict) or set(entry) != {"name", "dtype", "shape"}:
            raise DataError("damaged: an array lacks its name, dtype or shape", path)
        name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
        if not isinstance(name, str) or any(name == earlier for earlier, _, _ in layout):
            raise DataError("damaged: the name of an array is repeated or not text", path)
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise DataError(f"array {name[:40]!r} has a type that the format does not support", path)
        if not isinstance(shape, list) or len(shape) not in (1, 2) or not all(_is_size(length) for length in shape):
            raise DataError(f"array {name[:40]!r} has an impossible shape", path)
        layout.append((name, _DTYPES[dtype], tuple(shape)))
    return facts, layout


def _is_size(length: object) -> bool:
    return isinstance(length, int) and not isinstance(length, bool) and 0 <= length < 1 << 40


def _magic(kind: str, version: int = VERSION) -> bytes:
    return f"fedalc-{kind} {version}\n".encode()


def _wrong_magic(magic: bytes, kind: Kind) -> str:
    for other in ("messages", "correlations"):
        if magic in [_magic(other, version) for version in _READABLE]:
            return f"is a {other} file, but a {kind} file is expected"
        if magic.startswith(f"fedalc-{other} ".encode()) and magic.endswith(b"\n"):
            return "has a file version that this fedalc does not know; a newer fedalc may read it"
    return f"is not a {kind} file"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _raw(array: np.ndarray) -> bytes | memoryview:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
