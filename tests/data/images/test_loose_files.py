from __future__ import annotations

import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedalc
from fedalc.data import ImageOptions, load_dataset
from fedalc.data.images.images import PICTURES_AT_ONCE as BLOCK
from fedalc.data.images.loose_files import looks_like_pictures, picture_blocks, read_pictures
from fedalc.errors import DataError, FedalcError
from tests.data.layouts import from_pixels, pack, picture, voc, write_files

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
FILES = {"z.bmp": picture(RED, kind="BMP"), "b/a.PNG": picture(GREEN, kind="PNG"), "b.jpeg": picture(BLUE)}
OTHERS = {"notes.txt": b"x", "._z.bmp": b"x", ".hidden/c.png": b"x", "b/Thumbs.db": b"x", "jpg": b"x"}
KINDS = "JPEG, PNG, WebP, GIF, BMP"


def main_colours(images: fedalc.data.Images) -> list[int]:
    return images.pixels().mean(axis=(1, 2)).argmax(axis=1).tolist()


def test_a_folder_is_gone_through_in_order_of_names(tmp_path: Path) -> None:
    images = read_pictures(write_files(tmp_path, {**FILES, **OTHERS}), 4)
    assert images.names == ("b.jpeg", "b/a.PNG", "z.bmp")
    assert images.size == 4 and main_colours(images) == [2, 1, 0]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "no-ending"])
def test_an_archive_is_gone_through_in_its_own_order(tmp_path: Path, name: str) -> None:
    images = read_pictures(pack(tmp_path / name, {**FILES, **OTHERS}), 4)
    assert images.names == ("z.bmp", "b/a.PNG", "b.jpeg") and main_colours(images) == [0, 1, 2]


def test_one_picture_is_told_by_its_content(tmp_path: Path) -> None:
    """With any name: a colon in it is no reason to refuse the file."""
    write_files(tmp_path, {"12:30": picture(GREEN)})
    images = fedalc.read_pictures(str(tmp_path / "12:30"), 5)
    assert images.names == ("12:30",) and main_colours(images) == [1]


def test_pictures_are_what_training_sees(tmp_path: Path) -> None:
    """Large, not square, and rotated pictures equal those of the dataset loader in every pixel."""
    photo = np.random.default_rng(0).integers(0, 255, (90, 130, 3), dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    files = voc() | {"VOCdevkit/VOC2012/JPEGImages/000002.jpg": from_pixels(photo, "JPEG", exif=turned)}
    write_files(tmp_path / "voc2012", files)
    seen = load_dataset("voc2012", tmp_path, images=ImageOptions(size=16)).test.features
    alone = read_pictures(tmp_path / "voc2012" / seen.names[0], 16)
    np.testing.assert_array_equal(alone.pixels(), seen.pixels())
    assert alone.fingerprint == seen.fingerprint and alone.pixels().std() > 5


def test_blocks_are_full_until_the_last(tmp_path: Path) -> None:
    small = np.arange(BLOCK + 3, dtype=np.uint8)[:, None, None, None] + np.zeros((2, 2, 3), dtype=np.uint8)
    files = {f"{at:03d}.png": from_pixels(pixels) for at, pixels in enumerate(small)}
    files["001.png"] = b"no picture"  # does not leave a gap
    told: list[str] = []
    counted: list[tuple[int, int | None]] = []
    blocks = list(
        picture_blocks(
            write_files(tmp_path, files), 2, "skip", progress=lambda *at: counted.append(at), tell=told.append
        )
    )
    assert [len(block) for block in blocks] == [BLOCK, 2]
    assert [block.pixels()[-1, 0, 0, 0] for block in blocks] == [BLOCK, BLOCK + 2]
    assert blocks[0].names[:2] == ("000.png", "002.png")
    assert counted == [(done, BLOCK + 3) for done in range(1, BLOCK + 4)]
    assert told == [
        f"{tmp_path}: 1 of {BLOCK + 3} pictures left out: 001.png cannot be decoded (not a picture of a known format)"
    ]


def test_how_many_an_archive_has_is_not_known(tmp_path: Path) -> None:
    counted: list[tuple[int, int | None]] = []
    list(picture_blocks(pack(tmp_path / "x.tar", FILES), 2, progress=lambda *at: counted.append(at)))
    assert counted == [(1, None), (2, None), (3, None)]


def test_only_a_block_is_in_memory(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, 100_000, dtype=np.uint8).tobytes()
    place = pack(tmp_path / "x.tar", {f"{at:03d}.jpg": picture() + noise for at in range(5 * BLOCK)})
    tracemalloc.start()
    assert sum(len(block) for block in picture_blocks(place, 64)) == 5 * BLOCK
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6e6, "32 MB of files and 3.9 MB of small copies, of which a block has 0.8"


def test_broken_pictures_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, {**FILES, "b/cut.jpg": picture(size=(90, 90))[:300]})
    threads = threading.active_count()
    with pytest.raises(DataError) as error:
        read_pictures(tmp_path, 4)
    assert str(error.value).startswith(f"{tmp_path}: b/cut.jpg cannot be decoded (")
    assert "--broken skip" in str(error.value) and threading.active_count() == threads
    with pytest.warns(UserWarning, match="1 of 4 pictures left out: b/cut.jpg"):
        assert read_pictures(tmp_path, 4, "skip").names == ("b.jpeg", "b/a.PNG", "z.bmp")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "no such picture, folder or archive"),
        ("empty", f"has no pictures ({KINDS})"),
        ("words.tar", f"has no pictures ({KINDS})"),
        ("words", f"has no pictures ({KINDS})"),
        ("words/x.txt", "cannot be decoded (not a picture of a known format). Expected a picture"),
        ("cut.tar.gz", "cannot be read as an archive"),
        ("bad", "none of its 2 pictures can be used; the first, a.jpg cannot be decoded"),
    ],
)
def test_what_holds_no_picture(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    write_files(tmp_path, {"words/x.txt": b"1 2 3\n", "bad/a.jpg": b"", "bad/b.png": b"x"})
    pack(tmp_path / "words.tar", {"x.txt": b""})
    whole = pack(tmp_path / "whole.tar.gz", FILES).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError) as error:
        read_pictures(tmp_path / name, 4, "skip")
    assert str(error.value).startswith(f"{tmp_path / name}: {message}")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(FedalcError, match=r'pip install "fedalc\[images\]"'):
        read_pictures(tmp_path, 4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_pictures_are_known_by_how_they_begin(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path, {"x": picture(kind=kind), "y": b"2 3 2\n0 1:1\n", "z": b"@relation x\n"})
    assert looks_like_pictures(tmp_path / "x")
    assert not any(looks_like_pictures(tmp_path / name) for name in ("y", "z", "nowhere", "."))
