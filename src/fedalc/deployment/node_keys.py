"""The parties' key pairs, with which the server authenticates them.

A private key is never overwritten: it cannot be recreated, and may still be in use.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fedalc.core.atomic_files import sync_folder, write_bytes
from fedalc.deployment.flower_programs import require_flower
from fedalc.errors import FedalcError

LARGEST = 64 << 10  # bytes of a key file; ours have a hundredth of that
PUBLIC = b"ecdsa-sha2-nistp384 "  # start of a P-384 public key


def make_node_key(file: Path) -> Path:
    """Make a party's key pair in Flower's format, and return the path of the public key, FILE.pub."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = file.with_name(f"{file.name}.pub")
    if public.exists():
        raise FedalcError(f"{public}: already exists, and is never overwritten; choose another file")
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_bytes(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def check_public_key(file: Path) -> None:
    """Check, before registration, that this is a party's public key and not its private one."""
    try:
        with file.open("rb") as content:
            begins = content.read(64)
    except OSError as error:
        raise FedalcError(f"{file}: cannot read the party's public key: {error.strerror}") from None
    if b"PRIVATE KEY" in begins:
        raise FedalcError(f"{file}: a private key, which must not leave its party; ask for the public key, FILE.pub")
    if not begins.startswith(PUBLIC):
        raise FedalcError(f"{file}: not a party's public key; `fedalc deploy node-key FILE` writes it to FILE.pub")


def check_node_key(file: Path) -> None:
    """Check that Flower accepts this private key, and that only its owner can read it."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        mode = file.stat().st_mode & 0o777
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise FedalcError(
            f"{file}: cannot read this party's node key: {error.strerror}; make one with `fedalc deploy node-key`"
        ) from None
    if content.startswith(PUBLIC):
        raise FedalcError(f"{file}: this is the public key, which the server needs; give the file without .pub")
    if mode & 0o077:
        raise FedalcError(f"{file}: other users can access it (mode {mode:03o}); run `chmod 600 {file}`")
    try:
        key = load_ssh_private_key(content, None) if len(content) <= LARGEST else None
    except Exception:  # the library raises errors of many kinds; all mean that this is not a usable key
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedalcError(f"{file}: not a party's private key; make one with `fedalc deploy node-key FILE`")


def write_private(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can ever read, and sync it to disk."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise FedalcError(f"{file}: already exists, and keys are never overwritten; choose another file") from None
    except OSError as error:
        raise FedalcError(f"{file}: cannot write the key: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        sync_folder(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            file.unlink()
        raise
