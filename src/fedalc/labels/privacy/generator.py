"""Random numbers for secret noise: the key stream of AES-256 in counter mode."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np

from fedalc.errors import FedalcError

KEY_BYTES = 32
_SUMMANDS = 4


class SecureGenerator:
    """A cryptographic generator. Without its key, its output cannot be told from uniform bits."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key must have {KEY_BYTES} bytes, not {len(key)}")
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise FedalcError('differential privacy needs cryptography: pip install "fedalc[privacy]"') from None
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def system(cls) -> SecureGenerator:
        """Return a generator with a fresh key from the operating system, which is not stored anywhere."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def seeded(cls, seed: int) -> SecureGenerator:
        """Return a repeatable generator for experiments and tests. Anyone who knows the seed knows its output."""
        return cls(hashlib.sha256(f"fedalc seeded noise {seed}".encode()).digest())

    def words(self, count: int) -> np.ndarray:
        """Return uniform 64-bit words."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

    def below(self, bound: int, count: int) -> np.ndarray:
        """Return whole numbers from 0 to bound - 1, uniform without bias (bound < 2⁶³)."""
        shift = np.uint64(64 - max((bound - 1).bit_length(), 1))
        accepted = np.empty(0, dtype=np.uint64)
        while len(accepted) < count:
            drawn = self.words(count - len(accepted)) >> shift
            accepted = np.concatenate([accepted, drawn[drawn < bound]])
        return accepted.astype(np.int64)

    def distinct_below(self, bound: int, count: int) -> np.ndarray:
        """Return `count` distinct numbers from 0 to bound - 1, ascending. Every set of this size is equally likely."""
        if 2 * count > bound:
            return np.setdiff1d(np.arange(bound), self.distinct_below(bound, bound - count), assume_unique=True)
        chosen = np.empty(0, dtype=np.int64)
        while len(chosen) < count:  # draws as many as are missing, so there are never too many
            merged = np.sort(np.concatenate([chosen, self.below(bound, count - len(chosen))]))
            chosen = merged[np.diff(merged, prepend=-1) > 0]  # np.union1d takes a hundred times as long
        return chosen

    def chosen(self, rate: float, count: int) -> np.ndarray:
        """Choose each of `count` items independently with probability `rate` (rounded down to a multiple of 2⁻⁶⁴)."""
        if rate >= 1:
            return np.ones(count, dtype=bool)
        return self.words(count) < np.uint64(int(rate * 2**64))

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return standard normal numbers in double precision, each (a + b + c + d) / 2 of four Box-Muller numbers.

        A single Box-Muller number reveals its uniform bits, and so which values the noise can have. Inverting a sum of
        four takes a search that grows with the cube of that (Holohan & Braghin 2021, "Secure Random Sampling in
        Differential Privacy"). This makes attacks harder; it is no proof.
        """
        size = int(np.prod(shape))
        total = np.zeros(size)
        for _ in range(_SUMMANDS):
            total += self._box_muller(size)
        return (total / np.sqrt(_SUMMANDS)).reshape(shape)

    def _box_muller(self, count: int) -> np.ndarray:
        pairs = -(-count // 2)
        radius = np.sqrt(-2 * np.log(self._above_zero(pairs)))
        angle = 2 * np.pi * self._above_zero(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def _above_zero(self, count: int) -> np.ndarray:
        """Return numbers that are uniform in (0, 1], with 53 bits."""
        return ((self.words(count) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
