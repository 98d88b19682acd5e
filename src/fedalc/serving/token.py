"""The token that clients of the service send, read from a file that only its owner may read."""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

from fedalc.errors import FedalcError

LEAST, MOST = 16, 4096
_MAKE_ONE = "make one with: (umask 077; openssl rand -hex 32 > FILE)"


class Token:
    """A secret text. It is never printed."""

    __slots__ = ("__secret",)

    def __init__(self, secret: str) -> None:
        self.__secret = secret.encode()

    @classmethod
    def read(cls, path: Path) -> Token:
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                content = file.read(MOST + 1)
        except OSError as error:
            raise FedalcError(f"{path}: the token file cannot be read: {error.strerror}; {_MAKE_ONE}") from None
        if facts.st_mode & 0o077 and stat.S_ISREG(facts.st_mode):
            raise FedalcError(f"{path}: other users can read the token; run `chmod 600 {path}` and make a new token")
        try:
            secret = content.decode("ascii").strip()
        except UnicodeDecodeError:
            secret = ""
        if not LEAST <= len(secret) <= MOST or len(secret.split()) != 1:
            raise FedalcError(f"{path}: a token is one line of at least {LEAST} ASCII characters; {_MAKE_ONE}")
        return cls(secret)

    def allows(self, authorization: str) -> bool:
        """Return whether a request's Authorization header is `Bearer` and this token, in constant time."""
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self.__secret)
        return scheme.lower() == "bearer" and same

    def __repr__(self) -> str:
        return "<token>"
