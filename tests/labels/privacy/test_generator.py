"""The secure generator: reproducible with its key only, uniform, and without public state."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare, kstest, norm

from fedalc.labels.privacy import SecureGenerator


def test_words_are_the_key_stream() -> None:
    key = bytes(range(32))
    generator = SecureGenerator(key)
    drawn = np.concatenate([generator.words(3), generator.words(0), generator.words(5)])
    stream = (
        Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(b"".join(n.to_bytes(16, "big") for n in range(4)))
    )
    assert drawn.astype("<u8").tobytes() == stream


def test_keys_come_from_the_system_and_have_256_bits() -> None:
    assert not np.array_equal(SecureGenerator.system().words(4), SecureGenerator.system().words(4))
    assert np.array_equal(SecureGenerator.seeded(3).words(4), SecureGenerator.seeded(3).words(4))
    with pytest.raises(ValueError, match="32 bytes"):
        SecureGenerator(b"short")


@pytest.mark.parametrize("bound", [1, 2, 3, 100, 1000])
def test_whole_numbers_are_uniform(bound: int) -> None:
    drawn = SecureGenerator.seeded(bound).below(bound, 20_000)
    assert drawn.min() >= 0 and drawn.max() < bound
    assert bound == 1 or chisquare(np.bincount(drawn, minlength=bound)).pvalue > 0.01


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_every_set_is_equally_likely(count: int) -> None:
    generator = SecureGenerator.seeded(count)
    sets = [tuple(generator.distinct_below(5, count).tolist()) for _ in range(2000)]
    assert all(len(set(drawn)) == count and list(drawn) == sorted(drawn) for drawn in sets)
    often = np.array([sets.count(kind) for kind in set(sets)])
    assert len(often) == {0: 1, 1: 5, 2: 10, 4: 5, 5: 1}[count]
    assert len(often) == 1 or chisquare(often).pvalue > 0.01


def test_each_is_chosen_on_its_own() -> None:
    generator = SecureGenerator.seeded(0)
    assert generator.chosen(0.3, 50_000).mean() == pytest.approx(0.3, abs=0.01)
    assert generator.chosen(1.0, 10).all() and not generator.chosen(1e-30, 10).any()


def test_normal_numbers_are_normal() -> None:
    drawn = SecureGenerator.seeded(1).normal((101, 99))
    assert drawn.shape == (101, 99)
    assert kstest(drawn.ravel(), norm.cdf).pvalue > 0.01
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.03
    assert SecureGenerator.seeded(1).normal((0, 3)).shape == (0, 3)
