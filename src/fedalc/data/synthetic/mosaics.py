"""A built-in picture dataset that needs no download and no Pillow: mosaics of scikit-learn's handwritten digits.

A picture of 32×32 pixels has one to four digits in its quarters, each in a different colour, on a darker, noisy
background. The labels are the visible digits. They are correlated: the first is drawn with falling shares (0 is four
times as common as 9); each further one comes from the group of the first (0-1-2, 3-4-5, 6-7-8-9) with probability 0.7,
and is otherwise drawn like the first. No handwriting is both in train and in test.

The training pictures belong to 40 users, who have 11 to 361 each. Each user prefers some digits: a picture more likely
belongs to a user who prefers more of its digits.
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
"""The side of a digit in a picture. Its position in its quarter is random."""
_HOW_MANY = np.array([0.35, 0.30, 0.20, 0.15])  # one to four
_SHARES = np.linspace(4, 1, DIGITS) / np.linspace(4, 1, DIGITS).sum()
_GROUPS = ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
_WITHIN_GROUP = 0.7
_TEST_SHARE = 4
"""Every fourth handwriting of a digit is in the test set."""
_NOISE = 0.2
_USERS = 40
_LIKED = 0.3
"""The probability that a user prefers a digit."""
_TASTE = 10
"""How many times likelier a preferred digit is than another."""


@dataclass(frozen=True)
class MosaicsSize:
    train: int = 3000
    test: int = 1000


def make_mosaics(size: MosaicsSize | None = None, seed: int = 10) -> Dataset:
    """Generate the dataset of this size and seed. It is the same on every machine."""
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
    """Return the handwritings for train and for test: per digit, N×12×12 values between 0 and 1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    enlarge = _interpolation(8, _DIGIT)
    drawn = np.clip(np.einsum("ai,nij,bj->nab", enlarge, digits.images / 16, enlarge), 0, 1)
    of_digit = [drawn[digits.target == digit] for digit in range(DIGITS)]
    for_test = [np.arange(len(each)) % _TEST_SHARE == 0 for each in of_digit]
    return (
        [each[~test] for each, test in zip(of_digit, for_test, strict=True)],
        [each[test] for each, test in zip(of_digit, for_test, strict=True)],
    )


def _interpolation(old: int, new: int) -> np.ndarray:
    """Return the new×old matrix that interpolates each new pixel between its two nearest old pixels."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old)))


def _make_split(name: str, count: int, handwritings: list[np.ndarray], random: np.random.Generator) -> Split:
    how_many = 1 + _draw(_HOW_MANY, random.random(count))
    digits = _draw_digits(count, random)
    # Shuffle the quarters, so that the first digit can be in any of them.
    quarters = random.random((count, 4)).argsort(axis=1)
    pixels = _ground(count, random)
    pairs = []
    for picture in range(count):
        for digit, quarter in zip(digits[picture, : how_many[picture]], quarters[picture], strict=False):
            written = handwritings[digit][int(random.random() * len(handwritings[digit]))]
            top, left = (random.random(2) * (_CELL - _DIGIT + 1)).astype(int) + _CELL * np.array(divmod(quarter, 2))
            colour = 0.45 + 0.55 * random.random(CHANNELS)
            area = pixels[picture, top : top + _DIGIT, left : left + _DIGIT]
            area += written[..., None] * (colour - area)
            pairs.append((picture, int(digit)))
    pixels += _NOISE * (random.random(pixels.shape, dtype=np.float32) - 0.5)
    images = Images((np.clip(pixels, 0, 1) * 255).astype(np.uint8), [f"{name}{number:05d}" for number in range(count)])
    return Split(images, label_matrix(pairs, count, DIGITS))


def _draw_digits(count: int, random: np.random.Generator) -> np.ndarray:
    """Draw count×4 digits. A picture with n digits uses the first n of its row."""
    first = _draw(_SHARES, random.random(count))
    group = np.array([number for digit in range(DIGITS) for number, of in enumerate(_GROUPS) if digit in of])[first]
    sizes = np.array([len(of) for of in _GROUPS])[group]
    starts = np.array([of[0] for of in _GROUPS])[group]
    beside = starts[:, None] + (random.random((count, 3)) * sizes[:, None]).astype(int)
    anywhere = _draw(_SHARES, random.random((count, 3)))
    further = np.where(random.random((count, 3)) < _WITHIN_GROUP, beside, anywhere)
    return np.column_stack((first, further))


def _draw_users(labels: csr_matrix, random: np.random.Generator) -> tuple[str, ...]:
    """Draw the user of each picture. This follows all other draws, so that pictures do not depend on users."""
    size = (1 + np.arange(_USERS)) ** -0.65
    taste = np.where(random.random((_USERS, DIGITS)) < _LIKED, _TASTE, 1)
    up_to = np.cumsum((labels @ taste.T) * size, axis=1)
    drawn = (up_to[:, :-1] <= random.random((len(up_to), 1)) * up_to[:, -1:]).sum(axis=1)
    return tuple(f"user {user:02d}" for user in drawn.tolist())


def _ground(count: int, random: np.random.Generator) -> np.ndarray:
    """Draw backgrounds: a colour gradient, dark enough for visible digits."""
    ends = 0.4 * random.random((count, 2, 1, 1, CHANNELS), dtype=np.float32)
    ramp = np.linspace(0, 1, SIDE, dtype=np.float32)[:, None]
    return np.asarray(ends[:, 0] * (1 - ramp[None, :, :, None]) + ends[:, 1] * ramp[None, :, :, None]) + np.zeros(
        (1, SIDE, SIDE, CHANNELS), dtype=np.float32
    )


def _draw(shares: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(shares)[:-1], uniform, side="right")
