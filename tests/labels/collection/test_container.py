"""Container files: they are read as written, and any damage is detected."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.container import MAX_HEADER, read_container, write_container
from fedalc.labels.collection.join import read_messages
from fedalc.labels.collection.messages import Messages
from tests.labels.collection.problems import PLAIN, rows_of, sent

ARRAYS = {
    "bytes": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "numbers": np.array([1.5, -0.0]),
    "none": np.empty((0, 4), dtype=np.int64),
    "places": np.array([7], dtype=np.uint32),
}


def test_the_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_container(path, "messages", {"b": 1, "a": "é"}, {"x": np.array([[1, 258]], dtype=np.uint32)})
    before = (
        b"fedalc-messages 2\n"
        b'{"arrays": [{"dtype": "uint32", "name": "x", "shape": [1, 2]}], "facts": {"a": "\\u00e9", "b": 1}}\n'
        b"\x01\0\0\0\x02\x01\0\0"
    )
    assert path.read_bytes() == before + hashlib.sha256(before).digest()
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    checksum = write_container(tmp_path / "file", "correlations", {"k": [1, None]}, ARRAYS)
    facts, arrays, again = read_container(tmp_path / "file", "correlations")
    assert facts == {"k": [1, None]} and checksum == again and list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()


@pytest.mark.long
def test_every_cut_and_every_changed_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sent("a", {"u": "xy", "v": "y"}).save(path)
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole + b"\0", whole + whole]
    for place in range(len(whole)):
        for flip in (0x01, 0x80):
            damaged.append(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DataError, match=str(path)):
            Messages.load(path)


def header(arrays: Any, facts: Any = None) -> bytes:
    return json.dumps({"arrays": arrays, "facts": facts or {}}).encode()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"not json", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"arrays": [], "facts": {"x": NaN}}', "not JSON"),
        (b"[]", "lacks"),
        (b'{"arrays": []}', "lacks"),
        (b'{"arrays": {}, "facts": {}}', "must have a list"),
        (header([1]), "lacks its name"),
        (header([{"name": 1, "dtype": "uint8", "shape": [1]}]), "repeated or not text"),
        (header([{"name": "x", "dtype": "uint8", "shape": [0]}] * 2), "repeated or not text"),
        (header([{"name": "x", "dtype": "object", "shape": [1]}]), "type"),
        (header([{"name": "x", "dtype": ["uint8"], "shape": [1]}]), "type"),
        (header([{"name": "x", "dtype": "uint8", "shape": [-1]}]), "shape"),
        (header([{"name": "x", "dtype": "uint8", "shape": [True]}]), "shape"),
        (header([{"name": "x", "dtype": "uint8", "shape": [1.0]}]), "shape"),
        (header([{"name": "x", "dtype": "uint8", "shape": []}]), "shape"),
        (header([{"name": "x", "dtype": "uint8", "shape": [1, 1, 1]}]), "shape"),
        (header([{"name": "x", "dtype": "uint8", "shape": [0, 10**30]}]), "shape"),
        (header([{"name": "x", "dtype": "int64", "shape": [2**39, 2**39]}]), "truncated"),
        (header([{"name": "x", "dtype": "int64", "shape": [2**35]}]), "truncated"),
        (b" " * (MAX_HEADER + 1), "header is longer"),
    ],
)
def test_a_header_is_not_believed(tmp_path: Path, line: bytes, says: str) -> None:
    """The checksum is right, so the writer knew the format. Nothing of the announced size is allocated."""
    path = tmp_path / "file"
    content = b"fedalc-messages 1\n" + line + b"\n"
    path.write_bytes(content + hashlib.sha256(content).digest())
    with pytest.raises(DataError, match=says):
        read_container(path, "messages")


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"fedalc-messages 3\n", "version"),
        (b"fedalc-correlations 1\n", "a correlations file"),
        (b"PK\x03\x04", "not a messages file"),
        (b"", "not a messages file"),
    ],
)
def test_another_first_line_is_refused(tmp_path: Path, first: bytes, says: str) -> None:
    (tmp_path / "file").write_bytes(first)
    with pytest.raises(DataError, match=says):
        read_container(tmp_path / "file", "messages")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
        with pytest.raises(DataError):
            read_container(path, "messages")


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_container(path, "messages", {}, {})
    before = path.read_bytes()
    for facts, arrays in (
        ({"x": float("nan")}, {}),
        ({"x": object()}, {}),
        ({"x": "y" * MAX_HEADER}, {}),
        ({}, {"x": np.array(["text"])}),
    ):
        with pytest.raises(DataError):
            write_container(path, "messages", facts, arrays)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_container(path, "correlations", {}, {})
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for place in (path, Path("/dev/full")):
        with pytest.raises(FedalcError) as told:
            write_container(place, "correlations", {}, ARRAYS)
        said = f"{place}: cannot be written: No space left on device; free some disk space and try again"
        assert str(told.value) == said
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_messages_survive_their_file(tmp_path: Path) -> None:
    before = sent("Charité 3", {"u": "xy", "v": "y"})
    before.save(tmp_path / "file")
    after = Messages.load(tmp_path / "file")
    assert (after.client, after.protocol, len(after)) == ("Charité 3", PLAIN, 3)
    for name in ("pseudonyms", "digests", "labels"):
        assert np.array_equal(getattr(after, name), getattr(before, name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"client": ""}, "printable"),
        ({"client": "x" * 65}, "printable"),
        ({"client": "red\x1b[31m"}, "printable"),
        ({"client": " x"}, "space"),
        ({"digests": rows_of("x", "y", "y")[:, :8]}, "digests are"),
        ({"digests": rows_of("x", "y")}, "labels are"),
        ({"digests": rows_of("x", "y", "y").astype(np.int8)}, "digests are"),
        ({"pseudonyms": rows_of("u", "u")}, "same pseudonym"),
        ({"pseudonyms": rows_of("u")}, "label 1 of 1"),
        ({"labels": np.array([0, 1, 2**32 - 1], dtype=np.uint32)}, "label 4294967295 of 2"),
        ({"labels": np.array([0, 1, 1])}, "labels are int64"),
        ({"labels": np.empty(0, np.uint32), "digests": np.empty((0, 16), np.uint8)}, "no messages"),
    ],
)
def test_messages_are_checked(change: dict[str, Any], says: str) -> None:
    good = {
        "protocol": PLAIN,
        "client": "a",
        "pseudonyms": rows_of("u", "v"),
        "digests": rows_of("x", "y", "y"),
        "labels": np.array([0, 0, 1], dtype=np.uint32),
    }
    Messages(**good)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=says):
        Messages(**{**good, **change})


@pytest.mark.parametrize(
    "protocol",
    [
        None,
        {"algorithm": "sha256"},
        {"algorithm": "crc", "identity": "content", "digest_bytes": 16, "key_check": ""},
        {"algorithm": "sha256", "identity": "face", "digest_bytes": 16, "key_check": ""},
        {"algorithm": "md5", "identity": "content", "digest_bytes": 17, "key_check": ""},
        {"algorithm": "md5", "identity": "content", "digest_bytes": "16", "key_check": ""},
        {"algorithm": "sha256", "identity": "content", "digest_bytes": 16, "key_check": "0" * 16},
        {"algorithm": "hmac-md5", "identity": "content", "digest_bytes": 16, "key_check": ""},
        {"algorithm": ["md5"], "identity": "content", "digest_bytes": 16, "key_check": ""},
    ],
)
def test_a_protocol_in_a_file_is_not_believed(tmp_path: Path, protocol: Any) -> None:
    part = sent("a", {"u": "x"})
    arrays = {"pseudonyms": part.pseudonyms, "digests": part.digests, "labels": part.labels}
    write_container(tmp_path / "file", "messages", {"client": "a", "protocol": protocol}, arrays)
    with pytest.raises(DataError):
        Messages.load(tmp_path / "file")


def test_damaged_and_repeated_files_get_a_note(tmp_path: Path) -> None:
    sent("a", {"u": "xy"}).save(tmp_path / "a")
    sent("b", {"v": "y"}).save(tmp_path / "b")
    (tmp_path / "again").write_bytes((tmp_path / "a").read_bytes())
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:-1])
    paths = [tmp_path / name for name in ("a", "cut", "b", "again", "none")]
    seen: list[Path] = []
    messages, notes = read_messages(paths, seen.append)
    assert [part.client for part in messages] == ["a", "b"] and seen == paths
    assert [note.split(": ")[0] for note in notes] == [str(tmp_path / name) for name in ("cut", "again", "none")]
    assert "truncated" in notes[0] and f"same file as {tmp_path / 'a'}" in notes[1] and "no such file" in notes[2]
