from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.sparse import csr_matrix

from fedalc.config.schema import ImageSettings
from fedalc.data import Dataset, ImageOptions, Images, Split
from fedalc.data.federation import hold_out
from fedalc.errors import ConfigError, DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
NAMES = [f"{letter}.jpg" for letter in "abcdef"]


@pytest.fixture
def images() -> Images:
    return Images(PIXELS, NAMES)


def test_it_looks_like_a_matrix_with_a_column_per_pixel_and_colour(images: Images) -> None:
    assert (images.shape, len(images), images.size, images.dtype) == ((6, 48), 6, 4, np.uint8)
    assert images.names == tuple(NAMES)
    np.testing.assert_array_equal(images.pixels(), PIXELS)


@pytest.mark.parametrize(
    "rows",
    [
        slice(1, 4),
        slice(None, None, -2),
        np.array([5, 0, 0, 2]),
        [3, 1],
        -1,
        np.array([True, False, False, True, True, False]),
        np.array([], dtype=np.int64),
        [],
        np.zeros(6, dtype=bool),
    ],
)
def test_rows_are_taken_as_from_a_matrix(images: Images, rows: slice | int | np.ndarray | list[int]) -> None:
    expected = np.atleast_1d(np.arange(6)[np.array(rows, dtype=np.int64) if isinstance(rows, list) else rows])
    part = images[rows]
    np.testing.assert_array_equal(part.pixels(), PIXELS[expected])
    assert part.names == tuple(NAMES[row] for row in expected)
    np.testing.assert_array_equal(part.digests, images.digests[expected])


def test_parts_share_the_pixels_and_copies_do_not(images: Images) -> None:
    part = images[2:][np.array([True, False, True, True])]
    assert np.shares_memory(part._store, PIXELS)
    part.pixels()[:] = 0
    np.testing.assert_array_equal(part.pixels(), PIXELS[[2, 4, 5]])


@pytest.mark.parametrize("rows", [np.array([6]), np.array([True, False]), -7])
def test_rows_that_are_not_there(images: Images, rows: np.ndarray | int) -> None:
    with pytest.raises(IndexError):
        images[rows]


@pytest.mark.parametrize("store", [PIXELS.astype(np.float32), PIXELS[:, :3], PIXELS[..., :1], PIXELS[0]])
def test_what_is_no_pictures(store: np.ndarray) -> None:
    with pytest.raises(ValueError, match="pictures are uint8"):
        Images(store, NAMES)
    with pytest.raises(ValueError, match="5 names for 6 pictures"):
        Images(PIXELS, NAMES[:5])


def _dataset(images: Images, users: tuple[str, ...] | None = None) -> Dataset:
    labels = csr_matrix(np.eye(6, 2, dtype=np.float32))
    everything = Split(images, labels)
    train, test = np.arange(4), np.arange(4, 6)
    return Dataset("set", Split(images[train], labels[train], users), everything.rows(test), ("x", "y"))


def test_a_dataset_of_them(images: Images) -> None:
    dataset = _dataset(images)
    assert (dataset.feature_count, dataset.label_count, len(dataset.train), len(dataset.test)) == (48, 2, 4, 2)
    assert isinstance(dataset.test.features, Images)
    np.testing.assert_array_equal(dataset.test.features.pixels(), PIXELS[4:])
    with pytest.raises(DataError, match="6 rows of features but 5 rows of labels"):
        Split(images, csr_matrix((5, 2)))
    with pytest.raises(DataError, match="train has 48 features, test has 27"):
        small = Images(PIXELS[:2, :3, :3].copy(), NAMES[:2])
        Dataset("set", dataset.train, Split(small, csr_matrix((2, 2))), ("x", "y"))


def test_a_share_can_be_held_out(images: Images) -> None:
    train, held = hold_out(_dataset(images), 0.25, seed=1)
    assert held is not None and (len(train), len(held)) == (3, 1)
    assert sorted(train.features.names + held.features.names) == NAMES[:4]


def test_the_fingerprint_is_of_the_pixels_and_their_order_alone(images: Images) -> None:
    known = _dataset(images).fingerprint
    assert _dataset(Images(PIXELS.copy(), NAMES[::-1])).fingerprint == known
    order = np.array([3, 1, 0, 2, 5, 4])
    elsewhere = Images(PIXELS[order], NAMES)
    assert _dataset(elsewhere[np.argsort(order)]).fingerprint == known
    assert _dataset(elsewhere).fingerprint != known
    other = PIXELS.copy()
    other[5, 3, 3, 2] ^= 1
    assert _dataset(Images(other, NAMES)).fingerprint != known


def test_users_are_of_training_instances(images: Images) -> None:
    assert _dataset(images, ("u", "u", "v", "w")).users == ("u", "u", "v", "w")
    assert _dataset(images, ("u", "u", "v", "w")).fingerprint != _dataset(images).fingerprint
    with pytest.raises(DataError, match="3 users' names for 4 instances"):
        _dataset(images, ("u", "v", "w"))


def test_instances_take_their_users_along(images: Images) -> None:
    dataset = _dataset(images, ("u", "v", "w", "x"))
    assert dataset.train.rows(np.array([3, 0, 3])).users == ("x", "u", "x")
    assert dataset.train.rows(np.array([True, False, True, False])).users == ("u", "w")
    train, held = hold_out(dataset, 0.25, seed=1)
    assert held is not None
    owner = dict(zip(NAMES, "uvwx", strict=False))
    assert train.users == tuple(owner[name] for name in train.features.names)
    assert held.users == tuple(owner[name] for name in held.features.names)


def test_pixels_are_copied_once(tmp_path: Path) -> None:
    store = np.memmap(tmp_path / "pixels", dtype=np.uint8, mode="w+", shape=(20, 64, 64, 3))
    images = Images(store, [str(row) for row in range(20)])[::2]
    tracemalloc.start()
    pixels = images.pixels()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pixels.nbytes == 122_880 and peak < 1.2 * pixels.nbytes
    assert type(pixels) is np.ndarray and pixels.flags.writeable
    pixels[:] = 9
    assert not store.any(), "they are a copy"


def test_options_out_of_range() -> None:
    for size in (0, 7, 1025):
        with pytest.raises(ConfigError, match=f"size: a picture's side is 8 to 1024 pixels, not {size}"):
            ImageOptions(size=size)
        with pytest.raises(ValidationError):
            ImageSettings(size=size)
    for size in (8, 1024):
        assert ImageOptions(size=size).size == ImageSettings(size=size).size == size
    with pytest.raises(ConfigError, match="broken: 'ignore' is neither"):
        ImageOptions(broken="ignore")  # type: ignore[arg-type]
