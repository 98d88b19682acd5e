"""Seals of bucket sums: parties notice if the server sends other sums than those that they counted.

A party adds to its masked counts v a few numbers ⟨r, v⟩ + s modulo 2^64, its seals; r and s follow from the parties'
key, the run, what is counted and the number P of parties in the sum. The sum of seals is ⟨r, V⟩ + P s, where V is the
sum of counts. The server sends V, P and the sums of seals; every party computes the same from them. The server knows
neither r nor s.

To send V + Δ with seals that fit, it has to guess ⟨r, Δ⟩. If no number of Δ is 2^b or more, that is right with
probability 2^(b-64) for each seal. Multiples of V and the seals would need another P, for which r and s are others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedalc.labels.collection.hashing import Hasher
from fedalc.secure_sums.primitives import add_mask, derived

SEALS: Final = 4
"""With parts of pairs among two dozen parties counts have 49 bits, so that one seal would be guessed too easily."""


@dataclass(frozen=True)
class Sealing:
    """What seals are bound to: the run, what is counted (pairs or records), of which records, the tables' shape, and
    how many parties count."""

    run: str
    what: str
    on_held_out: bool
    shape: tuple[int, int]
    parties: int

    def of_party(self, hasher: Hasher, amounts: np.ndarray) -> np.ndarray:
        """Return the seals of one party's counts."""
        return self._seals(hasher, amounts, 1)

    def of_sum(self, hasher: Hasher, amounts: np.ndarray) -> np.ndarray:
        """Return the seals of the sum over all parties."""
        return self._seals(hasher, amounts, self.parties)

    def _seals(self, hasher: Hasher, amounts: np.ndarray, times: int) -> np.ndarray:
        bound = "/".join(map(str, (self.what, self.on_held_out, *self.shape, self.parties))).encode()
        secret, counts = hasher.secret("seals of bucket sums"), amounts.reshape(-1).astype(np.uint64)
        seals = np.zeros(SEALS, dtype=np.uint64)
        for number in range(SEALS):
            drawn = np.zeros(len(counts) + 1, dtype=np.uint64)
            add_mask(drawn, derived(secret, f"seal {number}", self.run.encode(), bound))
            drawn *= np.append(counts, np.uint64(times))  # modulo 2^64, as sums are
            seals[number] = drawn.sum(dtype=np.uint64)
        return seals
