"""The secret key that the clients share and the server never sees.

Anyone with the key can test guesses: was this instance collected, which label has this pseudonym? So a key is never
printed, pickled or copied, only its owner can read its file, and a key that is easy to guess is refused.
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
_MIN_DISTINCT = 16  # 32 random bytes have fewer than 16 distinct values with a probability below 10^-13
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
        """Read a key from a file that only its owner may read. No error message reveals the file's content."""
        content = _private_bytes(Path(path))
        secret, problem = _parsed(content)
        problem = problem or _weakness(secret)
        if problem:
            del content, secret
            raise FedalcError(f"{path}: {problem}; {_MAKE_ONE}")
        return cls(secret)

    def write(self, path: Path | str) -> None:
        """Write the key to a new file that only its owner can read. Never overwrites: the old key may be in use."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise FedalcError(f"{path}: already exists, and keys are never overwritten; name another file") from None
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
        """Return the HMAC of a message under the key."""
        return hmac.digest(self.__secret, message, hash_name)

    def for_run(self, run: str) -> Key:
        """Return the key of one run. Its digests have nothing in common with those of other runs."""
        check_run_id(run)
        return Key(self.mac("sha512", _RUN + run.encode("ascii")))

    @property
    def check(self) -> str:
        """A value that shows whether two clients used the same key, and reveals nothing else."""
        return self.mac("sha256", _CHECK)[:8].hex()

    def __repr__(self) -> str:
        return "<key>"

    def __format__(self, spec: str) -> str:
        return "<key>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key cannot be pickled or copied")


def check_run_id(run: str) -> None:
    if not isinstance(run, str) or not _RUN_ID.fullmatch(run):
        raise FedalcError(
            f"a run id has 1 to 64 letters, digits, dots, hyphens and underscores, and begins with a letter or digit, "
            f"unlike {str(run)[:70]!r}"
        )


def _weakness(secret: bytes) -> str:
    """Return what is wrong with the secret, or "" if nothing."""
    if not isinstance(secret, (bytes, bytearray)):
        return "a key must be bytes"
    if len(secret) < MIN_BYTES:
        return f"the key has {len(secret)} bytes but needs at least {MIN_BYTES}"
    if len(set(secret)) < _MIN_DISTINCT:
        return f"the key is too easy to guess (only {len(set(secret))} different bytes)"
    return ""


def _private_bytes(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for a pipe
    except FileNotFoundError:
        raise FedalcError(f"{path}: there is no such key file; {_MAKE_ONE}") from None
    except OSError as error:
        raise FedalcError(f"{path}: the key file cannot be opened: {error.strerror}") from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise FedalcError(f"{path}: the key file is not a regular file; {_MAKE_ONE}")
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            raise FedalcError(
                f"{path}: other users can access the key file (mode {mode:03o}); run `chmod 600 {path}`, and make a "
                "new key if someone may have read it"
            )
        return os.read(handle, _MAX_FILE + 1)
    except OSError as error:
        raise FedalcError(f"{path}: the key file cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


def _parsed(content: bytes) -> tuple[bytes, str]:
    """Return the secret, and what is wrong with the file. Not raised, so that no exception holds part of the secret."""
    lines = content.split(b"\n")
    if lines[0] != _MAGIC.encode():
        known = lines[0].startswith(b"fedalc-key ")
        return b"", "a key file of a version that this fedalc does not know" if known else "not a key file"
    if len(content) > _MAX_FILE or len(lines) not in (2, 3) or lines[2:] not in ([], [b""]):
        return b"", "a damaged key file: it must have two lines"
    try:
        return bytes.fromhex(lines[1].decode("ascii")), ""
    except ValueError:
        return b"", "a damaged key file: its second line is not hexadecimal"
