"""Seals of bucket sums: parties notice if the server sends other sums than those that they counted.

A party adds to its masked counts v a few numbers ⟨r, v⟩ + s modulo 2^64, its seals; r and s follow from the parties'
key, what is counted and the secure sum, with its list of P parties. The sum of seals is ⟨r, V⟩ + P s, where V is the
sum of counts. The server sends V, which sum it is of and the sums of seals; every party computes the same from them.
The server knows neither r nor s.

To send V + Δ with seals that fit, it has to guess ⟨r, Δ⟩. If no number of Δ is 2^b or more, that is right with
probability 2^(b-64) for each seal, so parties bound the numbers. Each sum has seals of its own, and is unmasked with
all P parties or not at all (`Question.sealed`): from two sums V and V' under the same r and s the server could compute
the seals of aV + (1 - a)V', and those of a multiple of a sum over fewer than P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from fedalc.labels.collection.hashing import Hasher
from fedalc.secure_sums.primitives import add_mask, derived

SEALS: Final = 4
"""With parts of pairs among two dozen parties counts have 49 bits, so that one seal would be guessed too easily."""


@dataclass(frozen=True)
class SumOf:
    """A secure sum: what all its messages are bound to (`Roster.session`, 32 bytes), and how many parties it is of."""

    session: bytes
    parties: int

    @property
    def numbers(self) -> np.ndarray:
        """As whole numbers, to send and to save them beside the seals."""
        return np.append(np.frombuffer(self.session, "<u8").astype(np.uint64), np.uint64(self.parties))

    @classmethod
    def of_numbers(cls, numbers: Sequence[int] | np.ndarray) -> Self:
        return cls(np.asarray(numbers[:-1], dtype="<u8").tobytes(), int(numbers[-1]))


SEALED: Final = SEALS + 5
"""The seals and the numbers of a sum."""


@dataclass(frozen=True)
class Sealing:
    """What seals are bound to: the sum, what is counted (pairs, records, …), of which records, and the tables'
    shape."""

    secure_sum: SumOf
    what: str
    on_held_out: bool
    shape: tuple[int, int]

    def of_party(self, hasher: Hasher, amounts: np.ndarray) -> np.ndarray:
        """Return the seals of one party's counts."""
        return self._seals(hasher, amounts, 1)

    def of_sum(self, hasher: Hasher, amounts: np.ndarray) -> np.ndarray:
        """Return the seals of the sum over all parties."""
        return self._seals(hasher, amounts, self.secure_sum.parties)

    def _seals(self, hasher: Hasher, amounts: np.ndarray, times: int) -> np.ndarray:
        bound = "/".join(map(str, (self.what, self.on_held_out, *self.shape, self.secure_sum.parties))).encode()
        secret, counts = hasher.secret("seals of bucket sums"), amounts.reshape(-1).astype(np.uint64)
        seals = np.zeros(SEALS, dtype=np.uint64)
        for number in range(SEALS):
            drawn = np.zeros(len(counts) + 1, dtype=np.uint64)
            add_mask(drawn, derived(secret, f"seal {number}", self.secure_sum.session, bound))
            drawn *= np.append(counts, np.uint64(times))  # modulo 2^64, as sums are
            seals[number] = drawn.sum(dtype=np.uint64)
        return seals
