"""Numbers of a secure sum: whole multiples of 2^-bits, modulo 2^64. Their sum is exact, whatever the order.

A party never says whether its own numbers fit: that would be a bit about its records. Numbers of any size wrap around,
and beside the vector each party adds `residue`, another linear function of the same whole numbers, modulo a prime, with
coefficients that follow from the sum's own keys. Of an unmasked sum that wrapped around, the residue does not fit, but
for a chance of 2^-31: the server sees that, and learns no more than the sum.
"""

from __future__ import annotations

import secrets

import numpy as np

from fedalc.secure_sums.refusals import NotFinite, Refused

MOST_BITS = 60
_PRIME_BITS = 31
PRIME = (1 << _PRIME_BITS) - 1
_BLOCK = 1 << 16
_HALF, _ALL = 2.0**63, 2.0**64


def largest(bits: int) -> float:
    """Return the largest number that a sum may have."""
    return float((1 << 63) - 1) / 2.0**bits


def whole(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return real numbers in units of 2^-bits, each rounded to a whole one: as doubles of any size, or as they are."""
    if numbers.dtype == np.uint64 or (bits == 0 and numbers.dtype == np.int64):
        return numbers.ravel()  # packed counts, sums with noise
    if not 0 <= bits <= MOST_BITS:
        raise Refused(f"fixed point with {bits} bits after the point; valid are 0 to {MOST_BITS}")
    scaled = np.asarray(numbers, dtype=np.float64).ravel()
    if not np.isfinite(scaled).all():
        raise NotFinite
    with np.errstate(over="ignore"):
        scaled = np.ldexp(scaled, bits)
    np.rint(scaled, out=scaled)
    return np.nan_to_num(scaled, copy=False)  # larger than a double: any number will do


def encoded(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return real numbers as uint64: rounded to the nearest multiple of 2^-bits, modulo 2^64.

    >>> encoded(np.array([0.5, -0.25, 2.0**64 + 2.0**20]), 2).view(np.int64).tolist()
    [2, -1, 4194304]
    """
    return wrapped(whole(numbers, bits))


def wrapped(units: np.ndarray) -> np.ndarray:
    """Return whole numbers modulo 2^64. Every step is exact."""
    if units.dtype != np.float64:
        return units.view(np.uint64)
    if max(float(units.max(initial=0.0)), -float(units.min(initial=0.0))) >= _HALF:
        units = np.fmod(units, _ALL)
        units = units - _ALL * ((units >= _HALF).astype(np.float64) - (units < -_HALF))
    return units.astype(np.int64).view(np.uint64)


def residue(units: np.ndarray, session: bytes) -> int:
    """Return Σ k_i · x_i modulo PRIME. `session`: of the sum; the coefficients k_i follow from it.

    >>> first, second = coefficients(0, 2, b"session").tolist()
    >>> residue(np.array([5, 2.0**70]), b"session") == (5 * first + 2**70 * second) % PRIME
    True
    """
    total = 0
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        if block.dtype == np.float64:
            fits = max(float(block.max()), -float(block.min())) < _HALF
            block = (block if fits else np.fmod(block, PRIME)).astype(np.int64)
        k = coefficients(start, start + len(block), session)
        total += int(_folded(_folded(_folded(block)) * k).sum())
    return total % PRIME


def coefficients(start: int, stop: int, session: bytes) -> np.ndarray:
    """Return k_i of the places from `start` to `stop`: whole numbers below 2^31, the same on every machine. They need
    not be secret, only unlike any pattern in the numbers (the mixing steps are those of splitmix64)."""
    seed = int.from_bytes(session[:8].ljust(8, b"\0"), "little")
    k = np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        k = (k ^ (k >> np.uint64(shift))) * np.uint64(factor)
    return (k >> np.uint64(64 - _PRIME_BITS)).astype(np.int64)


def _folded(numbers: np.ndarray) -> np.ndarray:
    """Return smaller int64 numbers that are the same modulo PRIME: 2^31 is 1."""
    return (numbers >> _PRIME_BITS) + (numbers & PRIME)


def hidden_residue(value: int, parties: int) -> int:
    """Return a number that is the residue modulo PRIME and random otherwise, so that the sum over the parties shows the
    sum of the residues modulo PRIME only. It does not wrap around."""
    return value + PRIME * secrets.randbelow((1 << 62) // PRIME // parties)


def decoded(total: np.ndarray, bits: int) -> np.ndarray:
    """Return the real numbers of a sum, in double precision."""
    return np.ldexp(total.view(np.int64).astype(np.float64), -bits)
