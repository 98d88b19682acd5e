"""Blocks of pictures: scaled like in published networks, read once, prefetched on request; errors on access."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.data.images.images import Images
from fedalc.models.encoders import Chance, PictureRows, make_batch, make_encoder

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)


class Watched(Images):
    """Counts how often, and in which threads, its pixels are read; can also fail to read."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__(PIXELS, [str(row) for row in range(5)])
        self.broken, self.readers = broken, list[str]()

    def pixels(self) -> np.ndarray:
        self.readers.append(threading.current_thread().name)
        if self.broken:
            raise OSError("the disk is gone")
        return super().pixels()


def rows(images: Images, dtype: torch.dtype = torch.float64) -> PictureRows:
    return PictureRows(images, np.arange(5), dtype, "cpu")


def test_one_pixel_by_hand() -> None:
    pixels = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    pixels[0, 2, 5] = (255, 51, 102)
    scaled = PictureRows(Images(pixels, ["a"]), np.array([0]), torch.float64, "cpu").pixels()
    assert scaled.shape == (1, 3, 8, 8)
    by_hand = [(1.0 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (0.4 - 0.406) / 0.225]
    assert scaled[0, :, 2, 5].tolist() == pytest.approx(by_hand, rel=1e-12)
    black = [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    assert scaled[0, :, 5, 2].tolist() == pytest.approx(black, rel=1e-12)


def test_every_pixel_where_it_belongs() -> None:
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = ((PIXELS / 255 - mean) / deviation).transpose(0, 3, 1, 2)
    images = Images(PIXELS, [str(row) for row in range(5)])
    for dtype, close in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        found = rows(images, dtype).pixels()
        assert found.dtype == dtype and np.abs(found.numpy() - wanted).max() < close
        assert found.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(images.pixels(), PIXELS)  # the pictures themselves stay


def test_encoders_side_by_side_read_once() -> None:
    asked: Any = {"encoder": {"name": "resnet-small", "dim": 3}, "images": {"augment": "mirror-shift"}}
    settings = experiment(asked)
    both = make_encoder(192, settings.encoder, torch.Generator().manual_seed(0), copies=2).double()
    images, chance = Watched(), Chance(settings, 3, torch.zeros(1, dtype=torch.float64))
    with torch.no_grad():
        found = both(rows(images), chance)
        assert len(images.readers) == 1
        alone = [part(rows(images), chance) for part in both.encoders]  # type: ignore[union-attr]
    assert torch.equal(found, torch.cat(alone, dim=1))


def test_reading_ahead_happens_once_and_elsewhere() -> None:
    images = Watched()
    batch = rows(images)
    batch.prefetch()
    batch.prefetch()
    first = batch.pixels()
    assert len(images.readers) == 1 and images.readers[0] != threading.current_thread().name
    assert torch.equal(batch.pixels(), first) and len(images.readers) == 2  # not kept


def test_an_error_is_raised_where_the_pictures_are_waited_for() -> None:
    batch = rows(Watched(broken=True))
    batch.prefetch()
    with pytest.raises(OSError, match="the disk is gone"):
        batch.pixels()


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    for _ in range(3):
        batch = rows(Watched())
        batch.prefetch()
        batch.pixels()
    assert threading.active_count() == before


def test_a_round_moves_them_and_an_evaluation_does_not() -> None:
    settings: Any = {"encoder": {"name": "resnet-small"}, "images": {"augment": "mirror-shift"}}
    chance = Chance(experiment(settings), 1, torch.zeros(1))
    images = Images(PIXELS, [str(row) for row in range(5)])
    still, moved = rows(images).pixels(), rows(images).pixels(chance)
    assert not torch.equal(still, moved)
    by_hand = chance.moved(torch.from_numpy(PIXELS), torch.arange(5)).permute(0, 3, 1, 2).double() / 255
    scale = [torch.tensor(each).double().view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    torch.testing.assert_close(moved, (by_hand - scale[0]) / scale[1], rtol=1e-6, atol=1e-6)


def test_make_batch_takes_both_kinds() -> None:
    batch = make_batch(Watched(), np.array([3.0, 1, 4, 1, 5]), torch.float32, "cpu")
    assert isinstance(batch, PictureRows) and len(batch) == 5
    assert batch.keys.tolist() == [3, 1, 4, 1, 5] and batch.keys.dtype == torch.int64
