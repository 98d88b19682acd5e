"""Seals of bucket sums: parties see whether the server sends what they counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedalc.deployment.flower.table_seals import SEALS, Sealing, SumOf
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.keys import Key

HASHER = Hasher("hmac-sha256", Key(bytes(range(64))))
SUM = SumOf(bytes(range(32)), 4)
SEALING = Sealing(SUM, "records", False, (2, 3))


def test_a_sum_as_numbers() -> None:
    """Exact, also above 2^53: a rounded session would be another sum's."""
    of = SumOf(bytes(range(1, 9)) + b"\xff" * 24, 3)
    assert of.numbers.dtype == np.uint64 and of.numbers.tolist() == [0x0807060504030201, *[(1 << 64) - 1] * 3, 3]
    assert SumOf.of_numbers(of.numbers) == of


def counts(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, (2, 3)).astype(np.uint64)


def test_seals_of_a_sum_are_the_sums_of_seals() -> None:
    """Modulo 2^64, with one s for each party: Σ (⟨r, v⟩ + s) = ⟨r, Σ v⟩ + 4 s."""
    each = [counts(seed) for seed in range(4)]
    together = sum((SEALING.of_party(HASHER, one) for one in each), np.zeros(SEALS, dtype=np.uint64))
    assert together.tolist() == SEALING.of_sum(HASHER, sum(each, np.zeros_like(each[0]))).tolist()


def test_by_hand() -> None:
    """Counts of 0 show s, a single 1 shows s + r of its bucket; the rest follows by adding up."""
    zero, unit = np.zeros((2, 3), dtype=np.uint64), np.eye(6, dtype=np.uint64).reshape(6, 2, 3)
    s = SEALING.of_party(HASHER, zero)
    r = [SEALING.of_party(HASHER, one) - s for one in unit]
    amounts = counts(3)
    by_hand = s + sum((each * amount for each, amount in zip(r, amounts.ravel(), strict=True)), np.zeros_like(s))
    assert SEALING.of_party(HASHER, amounts).tolist() == by_hand.tolist()
    assert len({int(number) for each in [s, *r] for number in each}) == 7 * SEALS


@pytest.mark.parametrize(
    "other",
    [
        replace(SEALING, secure_sum=replace(SUM, session=bytes(32))),
        replace(SEALING, what="pairs"),
        replace(SEALING, on_held_out=True),
        replace(SEALING, shape=(3, 2)),
        replace(SEALING, secure_sum=replace(SUM, parties=5)),
    ],
    ids=str,
)
def test_what_seals_are_bound_to(other: Sealing) -> None:
    amounts = counts(4)
    assert not set(SEALING.of_party(HASHER, amounts)) & set(other.of_party(HASHER, amounts.reshape(other.shape)))


def test_sums_that_a_server_can_make_up_do_not_fit() -> None:
    """It has one sum with its seals. Multiples of both, no counts at all, and one count more do not fit."""
    true = counts(5)
    seals = SEALING.of_sum(HASHER, true)
    for factor in (0, 2, 3):
        for parties in (3, 4, 4 * factor or 5):
            made_up = replace(SEALING, secure_sum=replace(SUM, parties=parties)).of_sum(
                HASHER, true * np.uint64(factor)
            )
            assert not (made_up == seals * np.uint64(factor)).any()
    more = true.copy()
    more[1, 2] += 1
    assert not (SEALING.of_sum(HASHER, more) == seals).any()
