"""The key: against the RFCs' test vectors, in its file, and never printed."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import traceback
from pathlib import Path

import pytest

from fedalc.errors import FedalcError
from fedalc.labels.collection.keys import Key

SECRET = bytes(range(7, 39))


def unchecked(secret: bytes) -> Key:
    """The RFCs' keys are all short or weak, so skip the check of keys."""
    key = object.__new__(Key)
    key._Key__secret = secret  # type: ignore[attr-defined]
    return key


WHAT, LARGER = b"what do ya want for nothing?", b"Test Using Larger Than Block-Size Key - Hash Key First"
VECTORS = [  # RFC 4231 (SHA-256, SHA-512) and RFC 2202 (MD5): key, data, digest
    (b"\x0b" * 20, b"Hi There", "sha256", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (b"Jefe", WHAT, "sha256", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    (b"\xaa" * 20, b"\xdd" * 50, "sha256", "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (b"\xaa" * 131, LARGER, "sha256", "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"),
    (
        b"Jefe", WHAT, "sha512",
        "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"
        "9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
    ),
    (b"\x0b" * 16, b"Hi There", "md5", "9294727a3638bb1c13f48ef8158bfc9d"),
    (b"Jefe", WHAT, "md5", "750c783e6ab0b503eaa86e310a5db738"),
    (b"\xaa" * 16, b"\xdd" * 50, "md5", "56be34521d144c88dbb8c733f0e8b3f6"),
]  # fmt: skip


@pytest.mark.parametrize(("secret", "data", "name", "digest"), VECTORS)
def test_mac_is_the_rfcs(secret: bytes, data: bytes, name: str, digest: str) -> None:
    assert unchecked(secret).mac(name, data).hex() == digest


def test_mac_is_the_rfcs_by_the_front_door() -> None:
    """Their fourth case: HMAC pads a short key with zeros, so 25 bytes and 7 zeros are the same key."""
    key = Key(bytes(range(1, 26)) + bytes(7))
    data = b"\xcd" * 50
    assert key.mac("sha256", data).hex() == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"
    assert key.mac("md5", data).hex() == "697eaf0aca3a3aea3a75164746ffaa79"


@pytest.mark.parametrize(
    "secret",
    [b"", bytes(range(31)), b"a" * 32, bytes(32), b"password" * 8, "a text of more than 32 characters, not bytes"],
)
def test_short_and_weak_keys_are_refused(secret: bytes) -> None:
    with pytest.raises(FedalcError, match="fedalc key new"):
        Key(secret)


def test_a_key_survives_its_file(tmp_path: Path) -> None:
    key, path = Key.fresh(), tmp_path / "key"
    old = os.umask(0)
    try:
        key.write(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.read(path).mac("sha256", b"x") == key.mac("sha256", b"x")
    assert Key.read(path).check == key.check


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Key(SECRET).write(path)
    before = path.read_bytes()
    with pytest.raises(FedalcError, match="never overwritten"):
        Key.fresh().write(path)
    assert path.read_bytes() == before
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FedalcError, match="never overwritten"):
        Key.fresh().write(tmp_path / "link")
    with pytest.raises(FedalcError, match="cannot be written"):
        Key.fresh().write(tmp_path / "no folder" / "key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o777])
def test_a_key_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    Key(SECRET).write(path)
    path.chmod(mode)
    with pytest.raises(FedalcError, match="chmod 600"):
        Key.read(path)
    path.chmod(0o400)
    Key.read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a key file"),
        (SECRET, "not a key file"),
        (SECRET.hex().encode(), "not a key file"),
        (b"fedalc-key 2\n" + SECRET.hex().encode(), "version"),
        (b"fedalc-key 1\n", "0 bytes"),
        (b"fedalc-key 1", "two lines"),
        (b"fedalc-key 1\n" + SECRET.hex().encode()[:-2], "31 bytes"),
        (b"fedalc-key 1\n" + SECRET.hex().encode()[:-1], "not hexadecimal"),
        (b"fedalc-key 1\n" + b"07z8" + SECRET.hex().encode(), "not hexadecimal"),
        (b"fedalc-key 1\n" + "0708é".encode() + SECRET.hex().encode(), "not hexadecimal"),
        (b"fedalc-key 1\n" + SECRET.hex().encode() + b"\n" + SECRET.hex().encode(), "two lines"),
        (b"fedalc-key 1\n" + SECRET.hex().encode() * 100, "two lines"),
        (b"fedalc-key 1\n" + b"ab" * 32, "easy to guess"),
    ],
)
def test_a_malformed_key_file_is_refused_without_a_word_of_it(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(FedalcError, match=says) as caught:
        Key.read(path)
    whole = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    inside = str(caught.value) + "".join(str(frame.locals) for frame in whole.stack[1:])  # the first is this test
    assert "0708" not in inside and "\\x07\\x08" not in inside and "090a" not in inside
    assert caught.value.__context__ is None
    assert "fedalc key new" in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in ((tmp_path / "none", "no such key file"), (tmp_path, "regular"), (tmp_path / "pipe", "regular")):
        with pytest.raises(FedalcError, match=says):
            Key.read(path)


def test_a_key_shows_nothing_of_itself() -> None:
    key = Key(SECRET)
    shown = [repr(key), str(key), f"{key}", f"{key:>40}", f"{key!r}", "%s" % key, repr([key]), repr({"key": key})]  # noqa: UP031
    assert all("<key>" in text and SECRET.hex() not in text and repr(SECRET)[2:-1] not in text for text in shown)
    assert not hasattr(key, "__dict__")
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            take(key)


def test_a_traceback_that_prints_variables_has_no_secret() -> None:
    weak = b"\x01\x02" * 16
    with pytest.raises(FedalcError) as caught:
        Key(weak)
    inside = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack[-1]
    assert inside.name == "__init__" and "\\x01" not in str(inside.locals)
    with pytest.raises(ValueError) as unknown:
        Key(SECRET).mac("no such hash", b"message")
    assert "\\x07" not in "".join(traceback.format_exception(unknown.value))


def test_check_tells_keys_apart() -> None:
    assert Key(SECRET).check == Key(SECRET).check
    assert Key(SECRET).check != Key.fresh().check
    assert len(Key(SECRET).check) == 16 and int(Key(SECRET).check, 16)
    assert Key(SECRET).check == Key(SECRET).mac("sha256", b"fedalc/1/key-check").hex()[:16]
