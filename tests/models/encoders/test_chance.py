"""Random draws for an instance depend only on seed, round and key; and their effect, pixel by pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedalc.config.resolve import experiment
from fedalc.core.seeds import derived_seed
from fedalc.models.encoders import Chance

LIKE = torch.zeros(1)
KEYS = np.arange(5000)


def chance(round_number: int = 1, seed: int = 0, **keys: Any) -> Chance:
    asked: dict[str, Any] = {
        "encoder": {"name": "resnet-small", **keys.pop("encoder", {})},
        "client": {"sample": 1.0, **keys.pop("client", {})},
        "images": {"augment": "off", **keys.pop("images", {})},
    }
    return Chance(experiment({"seed": seed, **asked, **keys}), round_number, LIKE)


def literal_draw(seed: int, purpose: str, round_number: int, key: int) -> float:
    """The finaliser of splitmix64 in Python integers, one key at a time."""
    below = 1 << 64
    z = (key * 0x9E3779B97F4A7C15 + derived_seed(seed, purpose, round_number)) % below
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % below
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % below
    return (z ^ (z >> 31)) / below


def test_numbers_are_those_of_a_literal_loop_for_keys_of_any_sign() -> None:
    keys = np.array([0, 1, 17, -1, -(1 << 63), (1 << 63) - 1])
    drawn = chance(3, seed=5)._draw("sample", keys)
    assert drawn == pytest.approx([literal_draw(5, "sample", 3, key) for key in keys.tolist()], rel=1e-12)
    assert len(set(drawn)) == len(keys) and ((drawn >= 0) & (drawn < 1)).all()


@pytest.mark.parametrize("share", [0.03, 0.5, 0.97])
def test_a_sample_has_its_share(share: float) -> None:
    one = chance(client={"sample": share})
    deviation = np.sqrt(share * (1 - share) / len(KEYS))
    assert abs(one.chosen(KEYS).mean() - share) < 4 * deviation
    assert abs(one.chosen(KEYS - 2**62).mean() - share) < 4 * deviation


def test_everybody_takes_part_unless_a_sample_is_asked_for() -> None:
    assert chance().chosen(KEYS).all() and chance().chosen(KEYS[:0]).shape == (0,)


def test_a_draw_is_the_same_whatever_the_order_and_the_block() -> None:
    one, order = chance(client={"sample": 0.4}), np.random.default_rng(0).permutation(KEYS)
    whole = one.chosen(KEYS)
    assert np.array_equal(one.chosen(order), whole[order])
    assert np.array_equal(np.concatenate([one.chosen(KEYS[:7]), one.chosen(KEYS[7:])]), whole)
    assert np.array_equal(chance(client={"sample": 0.4}).chosen(KEYS), whole)
    assert one.chosen(KEYS[:0]).shape == (0,)


def test_rounds_seeds_and_purposes_draw_independently() -> None:
    settings: Any = {"client": {"sample": 0.5}}
    draws = [chance(t, seed, **settings)._draw(purpose, KEYS) for t, seed, purpose in
             ((1, 0, "sample"), (2, 0, "sample"), (1, 1, "sample"), (1, 0, "mirror"), (1, 0, "down"))]  # fmt: skip
    correlation = np.corrcoef(draws)
    assert abs(correlation - np.eye(len(draws))).max() < 4 / np.sqrt(len(KEYS))
    assert (np.histogram(draws[0], 10, (0, 1))[0] > 400).all()


def some_pictures(count: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, size, size, 3)).astype(np.uint8))


def literally_moved(pictures: np.ndarray, keys: list[int], shifts: bool) -> np.ndarray:
    size, moved = pictures.shape[1], np.empty_like(pictures)
    most = size // 8 if shifts else 0

    def shift(purpose: str, key: int) -> int:
        return int(literal_draw(0, purpose, 1, key) * (2 * most + 1)) - most

    def inside(place: int) -> int:
        """0 1 2 3 4 is continued as … 2 1 0 1 2 3 4 3 2 …"""
        if place < 0:
            return -place
        return place if place < size else 2 * (size - 1) - place

    for number, key in enumerate(keys):
        mirrored, down, right = literal_draw(0, "mirror", 1, key) >= 0.5, shift("down", key), shift("right", key)
        for y in range(size):
            for x in range(size):
                column = size - 1 - x if mirrored else x
                moved[number, y, x] = pictures[number, inside(y + down), inside(column + right)]
    return moved


@pytest.mark.parametrize("augment", ["mirror", "mirror-shift"])
@pytest.mark.parametrize("size", [7, 16, 17])
def test_pictures_are_moved_as_a_literal_loop_moves_them(augment: str, size: int) -> None:
    pictures, keys = some_pictures(20, size), [*range(10), *range(-10, 0)]
    moved = chance(images={"augment": augment}).moved(pictures, torch.tensor(keys))
    assert moved.dtype == torch.uint8
    assert np.array_equal(moved.numpy(), literally_moved(pictures.numpy(), keys, augment == "mirror-shift"))
    assert not torch.equal(moved, pictures)


def test_half_are_mirrored_and_nothing_else_happens_to_them() -> None:
    pictures = some_pictures(1, 4).expand(2000, 4, 4, 3)
    moved = chance(images={"augment": "mirror"}).moved(pictures, torch.arange(2000))
    as_it_was, mirrored = ((moved == other).flatten(1).all(1) for other in (pictures, pictures.flip(2)))
    assert (as_it_was ^ mirrored).all()
    assert 0.45 < mirrored.double().mean() < 0.55
    assert torch.equal(moved.flatten(1, 2).sort(1).values, pictures.flatten(1, 2).sort(1).values)


def test_shifts_reach_an_eighth_both_ways_and_no_further() -> None:
    """The pixels encode their position; (8, 8) stays inside the picture after a shift of two."""
    place = torch.arange(16, dtype=torch.uint8)
    picture = torch.stack((place.view(16, 1).expand(16, 16), place.expand(16, 16), place.expand(16, 16)), dim=2)
    moved = chance(images={"augment": "mirror-shift"}).moved(picture.expand(500, 16, 16, 3), torch.arange(500))
    assert set(moved[:, 8, 8, 0].tolist()) == {6, 7, 8, 9, 10}
    assert set(moved[:, 8, 8, 1].tolist()) == {6, 7, 8, 9, 10} | {5, 6, 7, 8, 9}  # mirrored: from 15 - 8 = 7


def test_off_is_the_very_same_object_and_none_is_none() -> None:
    pictures = some_pictures(2, 4)
    assert chance(images={"augment": "off"}).moved(pictures, torch.arange(2)) is pictures
    assert chance(images={"augment": "mirror-shift"}).moved(pictures[:0], torch.arange(0)).shape == (0, 4, 4, 3)


def test_nothing_is_dropped_without_a_rate_and_the_same_for_an_instance_anywhere_with_one() -> None:
    h, keys = torch.ones(50, 40), torch.arange(-25, 25)
    assert chance().drop(h, keys, 0) is h
    one = chance(encoder={"dropout": 0.25})
    dropped = one.drop(h, keys, 0)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert 0.2 < (dropped == 0).double().mean() < 0.3
    assert torch.equal(one.drop(h[7:9], keys[7:9], 0), dropped[7:9])
    assert not torch.equal(one.drop(h, keys, 1), dropped)
    assert not torch.equal(chance(2, encoder={"dropout": 0.25}).drop(h, keys, 0), dropped)
