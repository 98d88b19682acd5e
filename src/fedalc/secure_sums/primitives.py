"""Keys, masks, boxes and shares: calls of `cryptography` and pycryptodome, and what each is bound to.

Every hash and tag is over parts with their lengths, the purpose first, so that no two uses can be confused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np

from fedalc.errors import FedalcError
from fedalc.secure_sums.refusals import Refused

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:  # the error comes with the first use: the rest of fedalc imports this package
    Shamir = None  # type: ignore[assignment,misc]

SEED_BYTES = 16  # what Shamir's scheme of pycryptodome shares
KEY_BYTES = 32
_DOMAIN = b"fedalc/secure-sums/1/"
_BLOCK = 1 << 15  # numbers of a mask that are drawn at a time: they stay in the cache


def check_installed() -> None:
    if Shamir is None:
        raise FedalcError("secure sums need cryptography and pycryptodome: pip install 'fedalc[flower]'")


def joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def digest(purpose: str, *parts: bytes) -> bytes:
    return hashlib.sha256(joined(_DOMAIN + purpose.encode(), *parts)).digest()


def tag(secret: bytes, purpose: str, *parts: bytes) -> bytes:
    """Return an HMAC that only holders of the parties' secret can compute."""
    return hmac.digest(secret, joined(_DOMAIN + purpose.encode(), *parts), "sha256")


def is_tag(claimed: bytes, secret: bytes, purpose: str, *parts: bytes) -> bool:
    return hmac.compare_digest(claimed, tag(secret, purpose, *parts))


def derived(secret: bytes, purpose: str, *parts: bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256."""
    info = joined(_DOMAIN + purpose.encode(), *parts)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def public_key(seed: bytes, purpose: str) -> bytes:
    return _private(seed, purpose).public_key().public_bytes_raw()


def agreed_secret(seed: bytes, purpose: str, peer: bytes) -> bytes:
    """Return the X25519 secret of an own seed and a peer's public key."""
    try:
        return _private(seed, purpose).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:  # a point of small order: its secret would be zero for everyone
        raise Refused("a public key that no honest party makes") from None


def _private(seed: bytes, purpose: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derived(seed, f"key/{purpose}"))


def sealed(key: bytes, content: bytes, bound_to: bytes) -> bytes:
    """Encrypt one message. Each `key` is derived for one message of one sum, so the nonce may be fixed."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, bound_to)


def opened(key: bytes, box: bytes, bound_to: bytes) -> bytes | None:
    """Return the content, or None if the box was not sealed with this key for this purpose."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, bound_to)
    except InvalidTag:
        return None


def add_mask(numbers: np.ndarray, key: bytes, sign: int = 1) -> None:
    """Add the mask of a key (AES-256 in counter mode) to uint64 numbers in place, or with sign -1 subtract it."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, drawn = memoryview(bytes(8 * _BLOCK)), bytearray(8 * _BLOCK + 15)
    for start in range(0, len(numbers), _BLOCK):
        part = numbers[start : start + _BLOCK]
        stream.update_into(zeros[: 8 * len(part)], drawn)
        mask = np.frombuffer(drawn, "<u8", len(part))
        (np.add if sign > 0 else np.subtract)(part, mask, out=part)


def split(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """Return shares of a seed for parties 0, 1, …: any `threshold` of them give it back, fewer nothing."""
    return [share for _, share in Shamir.split(threshold, count, seed, False)]


def combined(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the seed from (party, share)."""
    return Shamir.combine([(party + 1, share) for party, share in shares], False)
