"""The secret that the clients share and the server never sees.

Whoever has the key can test guesses: is this instance among those collected, which label is this pseudonym? So it is
never printed, pickled or copied, its file is the owner's alone, and a key that could be guessed is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import NoReturn

from fedalc.core.atomic_files import sync_folder
from fedalc.errors import FedalcError

MIN_BYTES = 32
_MIN_DISTINCT = 16  # of 32 random bytes, fewer than 16 different ones is rarer than 1 in 10^13
_MAX_FILE = 4096
_MAGIC = "fedalc-key 1"
_CHECK = b"fedalc/1/key-check"
_RUN = b"fedalc/2/run\0"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAKE_ONE = "make one with `fedalc key new FILE`"


class Key:
    """At least 32 secret bytes.

    >>> Key.fresh()
    <key>
    """

    __slots__ = ("__secret",)

    def __init__(self, secret: bytes) -> None:
        problem = _weakness(secret)
        if problem:
            del secret  # a traceback that prints variables must not find it here
            raise FedalcError(f"{problem}; {_MAKE_ONE}")
        self.__secret = bytes(secret)

    @classmethod
    def fresh(cls) -> Key:
        return cls(secrets.token_bytes(MIN_BYTES))

    @classmethod
    def read(cls, path: Path | str) -> Key:
        """The key in a file that only its owner may read. No message says anything of what is in the file."""
        content = _private_bytes(Path(path))
        secret, problem = _parsed(content)
        problem = problem or _weakness(secret)
        if problem:
            del content, secret
            raise FedalcError(f"{path}: {problem}; {_MAKE_ONE}")
        return cls(secret)

    def write(self, path: Path | str) -> None:
        """A new file, nobody else's from its first moment. An existing one is never overwritten: it may be in use."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise FedalcError(f"{path}: exists already, and a key is never overwritten; name another file") from None
        except OSError as error:
            raise FedalcError(f"{path}: the key cannot be written: {error.strerror}") from None
        reason = None
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(f"{_MAGIC}\n{self.__secret.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(Path(path).parent)
        except OSError as error:
            reason = error.strerror
        if reason is not None:
            with contextlib.suppress(OSError):
                Path(path).unlink()
            raise FedalcError(f"{path}: the key cannot be written: {reason}")

    def mac(self, hash_name: str, message: bytes) -> bytes:
        """HMAC of a message under the key."""
        return hmac.digest(self.__secret, message, hash_name)

    def for_run(self, run: str) -> Key:
        """The key of one run. What is made with it has nothing in common with what another run's key makes."""
        check_run_id(run)
        return Key(self.mac("sha512", _RUN + run.encode("ascii")))

    @property
    def check(self) -> str:
        """Lets the server see that two clients used different keys, and tells it nothing else."""
        return self.mac("sha256", _CHECK)[:8].hex()

    def __repr__(self) -> str:
        return "<key>"

    def __format__(self, spec: str) -> str:
        return "<key>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key is neither pickled nor copied")


def check_run_id(run: str) -> None:
    if not isinstance(run, str) or not _RUN_ID.fullmatch(run):
        raise FedalcError(
            f"a run id has 1 to 64 letters, digits, dots, hyphens and underscores, and begins with a letter or digit; "
            f"this one is {str(run)[:70]!r}"
        )


def _weakness(secret: bytes) -> str:
    """What is wrong with it, or nothing."""
    if not isinstance(secret, (bytes, bytearray)):
        return "a key is made of bytes"
    if len(secret) < MIN_BYTES:
        return f"the key has {len(secret)} bytes, and needs at least {MIN_BYTES}"
    if len(set(secret)) < _MIN_DISTINCT:
        return f"the key is too easy to guess (only {len(set(secret))} different bytes)"
    return ""


def _private_bytes(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
    except FileNotFoundError:
        raise FedalcError(f"{path}: there is no such key file; {_MAKE_ONE}") from None
    except OSError as error:
        raise FedalcError(f"{path}: the key file cannot be opened: {error.strerror}") from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise FedalcError(f"{path}: a key file is a regular file, and this is not one; {_MAKE_ONE}")
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            raise FedalcError(
                f"{path}: others than its owner have access to the key file (mode {mode:03o}); run `chmod 600 {path}`, "
                "and make a new key if someone may have read it"
            )
        return os.read(handle, _MAX_FILE + 1)
    except OSError as error:
        raise FedalcError(f"{path}: the key file cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


def _parsed(content: bytes) -> tuple[bytes, str]:
    """The secret, or what is wrong with the file. Returned and not raised: no exception may hold a part of it."""
    lines = content.split(b"\n")
    if lines[0] != _MAGIC.encode():
        known = lines[0].startswith(b"fedalc-key ")
        return b"", "a key file of a version this fedalc does not know" if known else "not a key file"
    if len(content) > _MAX_FILE or len(lines) not in (2, 3) or lines[2:] not in ([], [b""]):
        return b"", "a damaged key file: it has more than its two lines"
    try:
        return bytes.fromhex(lines[1].decode("ascii")), ""
    except ValueError:
        return b"", "a damaged key file: its second line is not hexadecimal"
