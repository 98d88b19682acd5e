"""Embedded pictures that need no download and no Pillow: mosaics of scikit-learn's handwritten digits.

A picture of 32×32 pixels has one to four digits in its quarters, each in a colour of its own, in front of a darker,
noisy ground. The labels are the digits to be seen. Which ones come together is no accident: the first is drawn with
falling shares (0 is four times as common as 9), and each further one is, with probability 0.7, of the first one's
group (0-1-2, 3-4-5, 6-7-8-9) and else drawn like the first. No handwriting is both in train and in test.

The training pictures are those of 40 users, who have 11 to 361 of them. Each user likes some digits: a picture is the
likelier to be a user's, the more of its digits the user likes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.annotations import label_matrix
from fedalc.data.images.images import CHANNELS, Images

SIDE = 32
DIGITS = 10
_CELL = SIDE // 2
_DIGIT = 12
"""The side of a digit in a picture; where in its quarter it stands is random."""
_HOW_MANY = np.array([0.35, 0.30, 0.20, 0.15])  # one to four
_SHARES = np.linspace(4, 1, DIGITS) / np.linspace(4, 1, DIGITS).sum()
_GROUPS = ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
_WITHIN_GROUP = 0.7
_TEST_SHARE = 4
"""Every fourth handwriting of a digit is for testing."""
_NOISE = 0.2
_USERS = 40
_LIKED = 0.3
"""The probability that a user likes a digit."""
_TASTE = 10
"""How many times likelier a liked digit is than another."""


@dataclass(frozen=True)
class MosaicsSize:
    train: int = 3000
    test: int = 1000


def make_mosaics(size: MosaicsSize | None = None, seed: int = 10) -> Dataset:
    """The dataset of this size and seed. As with all of numpy's generators, the same on every machine."""
    size = size or MosaicsSize()
    for_train, for_test = _handwritings()
    train, test = (
        _make_split(f"{part}-", count, handwritings, np.random.default_rng([seed, number]))
        for number, (part, count, handwritings) in enumerate(
            (("train", size.train, for_train), ("test", size.test, for_test))
        )
    )
    train = replace(train, users=_draw_users(train.labels, np.random.default_rng([seed, 2])))
    return Dataset("mosaics", train, test, tuple(f"digit {digit}" for digit in range(DIGITS)))


def _handwritings() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For train and for test: per digit, its handwritings as N×12×12 between 0 and 1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    enlarge = _interpolation(8, _DIGIT)
    drawn = np.clip(np.einsum("ai,nij,bj->nab", enlarge, digits.images / 16, enlarge), 0, 1)
    of_digit = [drawn[digits.target == digit] for digit in range(DIGITS)]
    held = [np.arange(len(each)) % _TEST_SHARE == 0 for each in of_digit]
    return (
        [each[~test] for each, test in zip(of_digit, held, strict=True)],
        [each[test] for each, test in zip(of_digit, held, strict=True)],
    )


def _interpolation(old: int, new: int) -> np.ndarray:
    """new×old: each new pixel's centre between its two nearest old ones."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old)))


def _make_split(name: str, count: int, handwritings: list[np.ndarray], random: np.random.Generator) -> Split:
    how_many = 1 + _draw(_HOW_MANY, random.random(count))
    digits = _draw_digits(count, random)
    # Quarters in a random order: the first digit of a picture is anywhere.
    quarters = random.random((count, 4)).argsort(axis=1)
    pixels = _ground(count, random)
    pairs = []
    for picture in range(count):
        for digit, quarter in zip(digits[picture, : how_many[picture]], quarters[picture], strict=False):
            written = handwritings[digit][int(random.random() * len(handwritings[digit]))]
            top, left = (random.random(2) * (_CELL - _DIGIT + 1)).astype(int) + _CELL * np.array(divmod(quarter, 2))
            colour = 0.45 + 0.55 * random.random(CHANNELS)
            here = pixels[picture, top : top + _DIGIT, left : left + _DIGIT]
            here += written[..., None] * (colour - here)
            pairs.append((picture, int(digit)))
    pixels += _NOISE * (random.random(pixels.shape, dtype=np.float32) - 0.5)
    images = Images((np.clip(pixels, 0, 1) * 255).astype(np.uint8), [f"{name}{number:05d}" for number in range(count)])
    return Split(images, label_matrix(pairs, count, DIGITS))


def _draw_digits(count: int, random: np.random.Generator) -> np.ndarray:
    """count×4: a picture uses as many of its row as it has digits."""
    first = _draw(_SHARES, random.random(count))
    group = np.array([number for digit in range(DIGITS) for number, of in enumerate(_GROUPS) if digit in of])[first]
    sizes = np.array([len(of) for of in _GROUPS])[group]
    starts = np.array([of[0] for of in _GROUPS])[group]
    beside = starts[:, None] + (random.random((count, 3)) * sizes[:, None]).astype(int)
    anywhere = _draw(_SHARES, random.random((count, 3)))
    further = np.where(random.random((count, 3)) < _WITHIN_GROUP, beside, anywhere)
    return np.column_stack((first, further))


def _draw_users(labels: csr_matrix, random: np.random.Generator) -> tuple[str, ...]:
    """Whose each picture is, drawn after the pictures: these are the same with and without users."""
    size = (1 + np.arange(_USERS)) ** -0.65
    taste = np.where(random.random((_USERS, DIGITS)) < _LIKED, _TASTE, 1)
    up_to = np.cumsum((labels @ taste.T) * size, axis=1)
    drawn = (up_to[:, :-1] <= random.random((len(up_to), 1)) * up_to[:, -1:]).sum(axis=1)
    return tuple(f"user {user:02d}" for user in drawn.tolist())


def _ground(count: int, random: np.random.Generator) -> np.ndarray:
    """A colour from one side to another, dark enough for digits to be seen."""
    ends = 0.4 * random.random((count, 2, 1, 1, CHANNELS), dtype=np.float32)
    ramp = np.linspace(0, 1, SIDE, dtype=np.float32)[:, None]
    return np.asarray(ends[:, 0] * (1 - ramp[None, :, :, None]) + ends[:, 1] * ramp[None, :, :, None]) + np.zeros(
        (1, SIDE, SIDE, CHANNELS), dtype=np.float32
    )


def _draw(shares: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(shares)[:-1], uniform, side="right")
