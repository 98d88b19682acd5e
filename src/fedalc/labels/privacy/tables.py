"""Draw whole numbers exactly, by inverting tables of tail probabilities with 256 bits.

A table holds P(value > x) as multiples of 2⁻²⁵⁶, computed in whole numbers. A draw takes a uniform number of 256 bits
and counts the entries above it. The first 64 bits nearly always decide; the rest is drawn only if they do not. The
total variation distance from the intended distribution is at most entries · 2⁻²⁵⁶.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import cache, cached_property

import numpy as np

from fedalc.errors import ConfigError
from fedalc.labels.privacy.generator import SecureGenerator

BITS = 256
ONE = 1 << BITS
LARGEST_SIGMA = 2.0**15
"""A table for this σ has a million entries. Larger noise would hide every count completely."""
WIDEST_TABLE = 2.0**12
"""`gaussian_noise` uses tables up to this σ: 150,000 entries."""
SMOOTH = 8.0
"""Sums of discrete Gaussians of at least this σ, in units of the lattice, are discrete Gaussians but for 10⁻²⁷⁰."""
_GUARD = 128  # extra bits while a table is computed
_WORDS = BITS // 64


class TailTable:
    """`tails[j]` is 2²⁵⁶ · P(value > lowest + j): not increasing, above 0, and 0 for all further j."""

    def __init__(self, lowest: int, tails: Sequence[int]) -> None:
        self.lowest = lowest
        packed = b"".join(tail.to_bytes(BITS // 8, "big") for tail in tails)
        self._words = np.frombuffer(packed, dtype=">u8").reshape(-1, _WORDS)

    def __len__(self) -> int:
        return len(self._words)

    def tail(self, value: int) -> int:
        """2²⁵⁶ · P(drawn > value)."""
        index = value - self.lowest
        if index < 0:
            return ONE
        return int.from_bytes(self._words[index].tobytes(), "big") if index < len(self) else 0

    @cached_property
    def _first_words(self) -> np.ndarray:
        return self._words[::-1, 0].astype(np.uint64)  # ascending

    def draw(self, generator: SecureGenerator, count: int) -> np.ndarray:
        first = generator.words(count)
        least = len(self) - np.searchsorted(self._first_words, first, side="right")
        most = len(self) - np.searchsorted(self._first_words, first, side="left")
        for undecided in np.flatnonzero(least != most):
            rest = generator.words(_WORDS - 1).astype(">u8").tobytes()
            uniform = int.from_bytes(int(first[undecided]).to_bytes(8, "big") + rest, "big")
            between = range(int(least[undecided]), int(most[undecided]))
            least[undecided] += sum(uniform < self.tail(self.lowest + j) for j in between)
        return self.lowest + least.astype(np.int64)

    def above(self, value: int) -> AboveTable:
        """Return the distribution of draws given that they are larger than `value`."""
        return AboveTable(self, value)


class AboveTable:
    """The conditional distribution of a table's draws that are larger than `value`."""

    def __init__(self, table: TailTable, value: int) -> None:
        self.value = value
        tails = [table.tail(x) for x in range(value, table.lowest + len(table))]
        # Scale so that at least half of all draws are accepted. A shift changes no comparison: the low bits of the
        # uniform number that it adds do not matter.
        shift = BITS - tails[0].bit_length() if tails[0] < ONE else 0
        self._table = TailTable(value, [tail << shift for tail in tails])

    def draw(self, generator: SecureGenerator, count: int) -> np.ndarray:
        accepted = np.empty(0, dtype=np.int64)
        while len(accepted) < count:
            drawn = self._table.draw(generator, count - len(accepted))
            accepted = np.concatenate([accepted, drawn[drawn > self.value]])
        return accepted


@cache
def discrete_gaussian(sigma: float) -> TailTable:
    """Return the table of whole numbers x with probability proportional to exp(-x² / 2σ²).

    See Canonne, Kamath & Steinke 2020.
    """
    if not 0 < sigma <= LARGEST_SIGMA:
        raise ConfigError(f"noise of {sigma:.3g} would hide the counts completely: choose a larger ε", "epsilon")
    weights = _gaussian_weights(sigma)
    total = 2 * sum(weights) - weights[0]
    upper, beyond = [], 0
    for weight in reversed(weights):  # P(value > x), from the far end to x = 0
        upper.append((beyond * ONE + total // 2) // total)
        beyond += weight
    upper = [tail for tail in reversed(upper) if tail > 0]
    # P(value > -x - 1) = 1 - P(value > x)
    return TailTable(-len(upper), [ONE - tail for tail in reversed(upper)] + upper)


def gaussian_noise(sigma: float, generator: SecureGenerator, count: int) -> np.ndarray:
    """Draw from the discrete Gaussian of any σ.

    For a σ too large for a table, a draw is s times one of a smaller σ₁ plus one of σ₀ = 8 s, with σ² = σ₀² + s² σ₁².
    Each probability is within a factor 1 ± 10⁻²⁷⁰ of the intended one (docs/private-model.md, the lemma).
    """
    if sigma <= WIDEST_TABLE:
        return discrete_gaussian(sigma).draw(generator, count)
    step = WIDEST_TABLE / SMOOTH
    smaller = math.sqrt(sigma**2 - WIDEST_TABLE**2) / step
    if smaller < SMOOTH:  # just above the widest table: two equal parts instead
        half = sigma / math.sqrt(2)
        return discrete_gaussian(half).draw(generator, count) + discrete_gaussian(half).draw(generator, count)
    coarse = gaussian_noise(smaller, generator, count) * int(step)
    return coarse + discrete_gaussian(WIDEST_TABLE).draw(generator, count)


def _gaussian_weights(sigma: float) -> list[int]:
    """Return exp(-x² / 2σ²) for x = 0, 1, … as fixed-point numbers, until far below 2⁻²⁵⁶. σ is the exact double."""
    bits = BITS + _GUARD
    with localcontext() as context:
        context.prec = 150
        exponent = -1 / (2 * Decimal(sigma) ** 2)
        ratio = int(exponent.exp() * (1 << bits))  # of the weights at x + 1 and x; shrinks by `factor` with every x
        factor = int((2 * exponent).exp() * (1 << bits))
    weights, weight = [], 1 << bits
    while weight >> (_GUARD // 2):
        weights.append(weight)
        weight = weight * ratio >> bits
        ratio = ratio * factor >> bits
    return weights


@cache
def binomial(trials: int, chance: int) -> TailTable:
    """Return the table of successes in `trials` (a power of two), each with probability chance / 2²⁵⁶.

    Meant for means of a few successes.
    """
    bits = 2 * BITS
    failure = ONE - chance
    probability = failure << BITS
    for _ in range(trials.bit_length() - 1):
        probability = probability * probability >> bits  # that no trial succeeds
    beyond, tails = (1 << bits) - probability, []
    for successes in range(1, trials + 1):
        tails.append(beyond >> BITS)
        probability = probability * (trials - successes + 1) * chance // (successes * failure)
        beyond -= probability
        if beyond >> BITS <= 0:
            break
    return TailTable(0, [tail for tail in tails if tail > 0])


def draw_binomial(trials: int, chance: int, generator: SecureGenerator, mean: int = 8) -> int:
    """Draw how many of any number of trials succeed.

    Draws in blocks of 2ᵇ trials with at most about `mean` successes each, then one block per binary digit of the rest.
    """
    block = max((mean * ONE // max(chance, 1)).bit_length() - 1, 0)
    successes = 0
    blocks_left = trials >> block
    while blocks_left:
        count = min(blocks_left, 1 << 20)
        successes += int(binomial(1 << block, chance).draw(generator, count).sum())
        blocks_left -= count
    for digit in range(block):
        if trials >> digit & 1:
            successes += int(binomial(1 << digit, chance).draw(generator, 1)[0])
    return successes
