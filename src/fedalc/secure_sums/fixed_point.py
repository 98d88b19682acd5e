"""Numbers of a secure sum: whole multiples of 2^-bits, modulo 2^64. Their sum is exact, whatever the order."""

from __future__ import annotations

import numpy as np

from fedalc.secure_sums.refusals import Overflow, Refused

MOST_BITS = 60


def largest(bits: int, parties: int) -> float:
    """Return the largest number that a party may add, so that the sum of all of them cannot overflow."""
    return float((1 << 62) // parties) / 2.0**bits


def encoded(numbers: np.ndarray, bits: int, parties: int) -> np.ndarray:
    """Return real numbers as uint64, each rounded to the nearest multiple of 2^-bits.

    >>> encoded(np.array([0.5, -0.25]), 2, 3).view(np.int64).tolist()
    [2, -1]
    """
    if bits == 0 and numbers.dtype == np.int64:  # whole ones, such as sums with noise
        _check_fits(max(int(numbers.max(initial=0)), -int(numbers.min(initial=0))), bits, parties)
        return numbers.ravel().view(np.uint64)
    if not 0 <= bits <= MOST_BITS:
        raise Refused(f"fixed point with {bits} bits after the point; valid are 0 to {MOST_BITS}")
    if numbers.dtype == np.uint64:
        return numbers  # whole ones modulo 2^64 already, such as packed counts
    scaled = np.ldexp(np.asarray(numbers, dtype=np.float64).ravel(), bits)
    np.rint(scaled, out=scaled)
    most = max(float(scaled.max(initial=0.0)), -float(scaled.min(initial=0.0)))
    if not np.isfinite(most):
        raise Overflow("its vector has numbers that are not finite")
    _check_fits(most, bits, parties)
    return scaled.astype(np.int64).view(np.uint64)


def _check_fits(most: float, bits: int, parties: int) -> None:
    if most > float((1 << 62) // parties):
        raise Overflow(f"{overflow(bits, parties)}, and its vector has a larger one")


def overflow(bits: int, parties: int) -> str:
    """Return the first half of a message."""
    fit = f"numbers up to {largest(bits, parties):.3g} fit (secure_sums.bits)"
    return f"overflow: with {bits} bits after the point and {parties} parties, {fit}"


def decoded(total: np.ndarray, bits: int) -> np.ndarray:
    """Return the real numbers of a sum, in double precision."""
    return np.ldexp(total.view(np.int64).astype(np.float64), -bits)
