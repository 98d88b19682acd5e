"""What lets the server know a party: a key pair for each.

No private key is ever overwritten: a lost one cannot be made again, and somebody may rely on it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fedalc.core.atomic_files import sync_folder, write_bytes
from fedalc.deployment.flower_programs import require_flower
from fedalc.errors import FedalcError

LARGEST = 64 << 10  # bytes of a file that has a key; one of ours has a thousandth of that
PUBLIC = b"ecdsa-sha2-nistp384 "  # how the public half of a P-384 key begins


def make_node_key(file: Path) -> Path:
    """A party's key pair, in the form Flower reads. The public half is for the server: FILE.pub."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = file.with_name(f"{file.name}.pub")
    if public.exists():
        raise FedalcError(f"{public}: exists already, and is never overwritten; name another file")
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_bytes(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def check_public_key(file: Path) -> None:
    """Before it is registered: the public half of a party's key, and not the secret one."""
    try:
        with file.open("rb") as content:
            begins = content.read(64)
    except OSError as error:
        raise FedalcError(f"{file}: the party's public key cannot be read: {error.strerror}") from None
    if b"PRIVATE KEY" in begins:
        raise FedalcError(f"{file}: a private key, which never leaves its party; ask for its public half, FILE.pub")
    if not begins.startswith(PUBLIC):
        raise FedalcError(f"{file}: not a party's public key; it is FILE.pub of `fedalc deploy node-key FILE`")


def check_node_key(file: Path) -> None:
    """A private key that Flower will take, and that nobody else can read."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        mode = file.stat().st_mode & 0o777
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise FedalcError(
            f"{file}: this party's node key cannot be read: {error.strerror}; make one with `fedalc deploy node-key`"
        ) from None
    if content.startswith(PUBLIC):
        raise FedalcError(f"{file}: the public half, which is for the server's side; give the file without .pub")
    if mode & 0o077:
        raise FedalcError(f"{file}: others than its owner have access to it (mode {mode:03o}); run `chmod 600 {file}`")
    try:
        key = load_ssh_private_key(content, None) if len(content) <= LARGEST else None
    except Exception:  # the library raises whatever comes: all of it means that this is no key for us
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedalcError(f"{file}: not a party's private key; make one with `fedalc deploy node-key FILE`")


def write_private(file: Path, content: bytes) -> None:
    """Readable by its owner alone from the first moment, and on the disk when this returns."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise FedalcError(f"{file}: exists already, and a key is never overwritten; name another file") from None
    except OSError as error:
        raise FedalcError(f"{file}: the key cannot be written: {error.strerror}") from None
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
