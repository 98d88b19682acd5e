from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from fedalc.data import read_pictures
from fedalc.data.images import decode as pictures
from fedalc.data.images import small_copies as copies
from fedalc.data.images.decode import small_copies
from fedalc.data.storage import Place
from fedalc.errors import DataError, FedalcError
from tests.data.layouts import from_pixels, pack, picture, write_files

COLOURS = {"a.jpg": (255, 0, 0), "b.jpg": (0, 255, 0), "c.jpg": (0, 0, 255)}
NAMES = list(COLOURS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "set", {name: picture(colour) for name, colour in COLOURS.items()})


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record which rows have been decoded."""
    rows: list[int] = []
    shrink = pictures._shrink

    def counting(row: int, content: bytes, size: int) -> pictures.Small:
        rows.append(row)
        return shrink(row, content, size)

    monkeypatch.setattr(pictures, "_shrink", counting)
    return rows


def shown(content: bytes, size: int) -> np.ndarray:
    return np.frombuffer(pictures._decode(content, size), dtype=np.uint8).reshape(size, size, 3)


def test_the_centre_square_is_cut_out_and_scaled() -> None:
    pixels = np.zeros((6, 13, 3), dtype=np.uint8)
    pixels[:, 3:9] = np.arange(6 * 6 * 3).reshape(6, 6, 3)  # of 7 columns too many, 3 are cut off at the left
    np.testing.assert_array_equal(shown(from_pixels(pixels), 6), pixels[:, 3:9])
    np.testing.assert_array_equal(
        shown(from_pixels(pixels.transpose(1, 0, 2).copy()), 6), pixels[:, 3:9].transpose(1, 0, 2)
    )
    flat = np.full((7, 40, 3), 90, dtype=np.uint8)
    assert (shown(from_pixels(flat), 3) == 90).all() and (shown(from_pixels(flat), 20) == 90).all()
    half = np.zeros((8, 8, 3), dtype=np.uint8)
    half[:, 4:] = 200
    np.testing.assert_allclose(shown(from_pixels(half), 2)[0, :, 0], [0, 200], atol=30)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright(orientation: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = from_pixels(pixels, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(turned))))
    np.testing.assert_array_equal(shown(turned, 8), expected)
    assert orientation == 1 or not np.array_equal(expected, pixels)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_all_become_rgb(mode: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9), (255, 255, 255)).convert(mode).save(buffer, "JPEG" if mode == "CMYK" else "PNG")
    assert (shown(buffer.getvalue(), 4) > 250).all()


def test_a_picture_can_be_squeezed_as_a_whole() -> None:
    wide = np.zeros((4, 8, 3), dtype=np.uint8)
    wide[:, :2] = 255  # a white quarter at the left, which the centre square does not have
    content = io.BytesIO()
    Image.fromarray(wide).save(content, "PNG")
    crop, squeeze = (
        np.frombuffer(pictures._decode(content.getvalue(), 4, fit), dtype=np.uint8).reshape(4, 4, 3)
        for fit in ("crop", "squeeze")
    )
    assert crop.max() == 0
    assert squeeze[:, 0].min() > 200 and squeeze[:, 2:].max() == 0


def test_a_large_jpeg_looks_the_same_though_it_is_not_decoded_in_full() -> None:
    y, x = np.mgrid[0:600, 0:800] / 800
    pixels = (255 * np.stack([x, y, (x + y) / 2], axis=-1)).astype(np.uint8)
    exact = shown(from_pixels(pixels), 32).astype(int)
    quick = shown(from_pixels(pixels, "JPEG", quality=95), 32).astype(int)
    assert np.abs(exact - quick).max() < 12


@pytest.mark.parametrize("packed", [None, "x.tar", "x.tar.gz"])
def test_copies_are_in_the_order_of_the_names(tmp_path: Path, folder: Path, packed: str | None) -> None:
    if packed:
        files = {f"./{name}": picture(colour) for name, colour in reversed(COLOURS.items())}
        folder = pack(tmp_path / "packed" / packed, files)
    progress: list[tuple[int, int]] = []
    images, usable = small_copies(Place(folder), NAMES, 4, progress=lambda *at: progress.append(at))
    assert usable.all() and images.names == tuple(NAMES) and images.shape == (3, 48)
    np.testing.assert_allclose(images.pixels()[:, 2, 2], list(COLOURS.values()), atol=3)
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert isinstance(images._store, np.memmap) and not images._store.flags.writeable


def test_copies_are_made_once(folder: Path, decoded: list[int], own_cache: Path) -> None:
    first, _ = small_copies(Place(folder), NAMES, 4)
    again, _ = small_copies(Place(folder), NAMES, 4)
    assert sorted(decoded) == [0, 1, 2]
    np.testing.assert_array_equal(first.pixels(), again.pixels())
    assert first.fingerprint == again.fingerprint
    assert sorted(path.suffix for path in own_cache.iterdir()) == ["", ".lock"]


def test_what_tells_copies_apart(folder: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    small_copies(Place(folder), NAMES, 4)
    small_copies(Place(folder), NAMES, 5)
    small_copies(Place(folder), NAMES[:2], 4)
    small_copies(Place(folder), NAMES[::-1], 4)
    assert len(decoded) == 3 + 3 + 2 + 3
    (folder / "a.jpg").write_bytes(picture((9, 9, 9), (30, 30)))
    changed, _ = small_copies(Place(folder), NAMES, 4)
    assert len(decoded) == 14 and (abs(changed.pixels()[0].astype(int) - 9) < 3).all()
    monkeypatch.setattr(pictures, "VERSION", 99)
    small_copies(Place(folder), NAMES, 4)
    assert len(decoded) == 17
    monkeypatch.setattr("PIL.__version__", "99.0")
    small_copies(Place(folder), NAMES, 4)
    assert len(decoded) == 20


@pytest.mark.parametrize("damage", ["pixels cut", "no pixels", "index noise", "no index"])
def test_a_damaged_entry_is_made_again(folder: Path, decoded: list[int], own_cache: Path, damage: str) -> None:
    known = small_copies(Place(folder), NAMES, 4)[0].pixels()
    (entry,) = (path for path in own_cache.iterdir() if path.is_dir())
    what = entry / ("pixels.u8" if "pixels" in damage else "index.npz")
    if damage.startswith("no "):
        what.unlink()
    else:
        what.write_bytes(what.read_bytes()[:20])
    np.testing.assert_array_equal(small_copies(Place(folder), NAMES, 4)[0].pixels(), known)
    small_copies(Place(folder), NAMES, 4)
    assert len(decoded) == 6


def test_without_a_cache(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images, _ = small_copies(Place(folder), NAMES, 4, cache=False)
    assert not own_cache.exists() and images.pixels()[0, 0, 0, 0] > 250
    (tmp_path / "blocked").write_text("in the way")
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "blocked" / "cache"))
    told: list[str] = []
    images, _ = small_copies(Place(folder), NAMES, 4, tell=told.append)
    assert images.pixels()[1, 0, 0, 1] > 250
    assert len(told) == 1 and told[0].startswith(f"{tmp_path}/blocked/cache: cannot be written or locked (Not a dir")


def test_a_disk_without_locks_is_told_of(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(copies.fcntl, "flock", flock)
    told: list[str] = []
    assert small_copies(Place(folder), NAMES, 4, tell=told.append)[1].all()
    assert told == [
        f"{own_cache}: cannot be written or locked (No locks available), so fedalc makes the small copies of "
        "the pictures again each time. Set $FEDALC_CACHE to a folder that can be written"
    ]


def test_copies_of_files_that_have_changed_go(folder: Path, own_cache: Path) -> None:
    def entries() -> set[str]:
        return {path.name for path in own_cache.iterdir() if path.is_dir()}

    old, _ = small_copies(Place(folder), NAMES, 4)
    (first,) = entries()
    small_copies(Place(folder), NAMES, 5)
    small_copies(Place(folder), NAMES[:2], 4)
    others = entries() - {first}
    os.utime(folder / "a.jpg", ns=(1, 1))
    with pytest.raises(DataError):
        (folder / "b.jpg").rename(folder / "gone.jpg")
        small_copies(Place(folder), NAMES, 4)
    assert entries() == {first, *others}, "nothing has taken their place"
    (folder / "gone.jpg").rename(folder / "b.jpg")
    small_copies(Place(folder), NAMES, 4)
    assert first not in entries() and len(entries()) == 3 and others < entries()
    assert old.pixels()[0, 0, 0, 0] > 250, "whoever has them open keeps them"


TRUNCATED = picture(size=(300, 200))[:-900]


def of_size(width: int, height: int) -> bytes:
    """Return a PNG that claims this many pixels but has one."""
    content = from_pixels(np.zeros((1, 1, 3), dtype=np.uint8))
    header = content[12:16] + struct.pack(">II", width, height) + content[24:29]  # IHDR, and what follows the size
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


BROKEN = {
    "truncated": (TRUNCATED, r"cannot be decoded \(.*truncated"),
    "no picture": (b"<html>not found</html>", r"cannot be decoded \(not a picture of a known format"),
    "empty": (b"", r"cannot be decoded \(not a picture of a known format"),
    "missing": (None, "is not there"),
    "bomb": (of_size(8000, 8001), r"cannot be decoded \(8000×8001 pixels are more than 64 million\)"),
    "larger bomb": (of_size(30000, 30000), r"cannot be decoded \(Image size \(900000000 pixels\) exceeds limit"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture of a known format"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("packed", [False, True])
def test_a_broken_picture_is_refused_or_skipped_by_name(
    tmp_path: Path, kind: str, packed: bool, own_cache: Path, decoded: list[int]
) -> None:
    content, why = BROKEN[kind]
    files = {name: picture(colour) for name, colour in COLOURS.items()} | {"b.jpg": content}
    present = {name: content for name, content in files.items() if content is not None}
    place = Place(pack(tmp_path / "x.tar.gz", present) if packed else write_files(tmp_path / "set", present))
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{place.path.name}: b\.jpg .*{why}.*images\.broken = \"skip\""):
            small_copies(place, NAMES, 4)
        assert not [path for path in own_cache.iterdir() if path.suffix != ".lock"]
    for _ in range(2):
        notes: list[str] = []
        decoded.clear()
        images, usable = small_copies(place, NAMES, 4, "skip", tell=notes.append)
        assert usable.tolist() == [True, False, True] and images.names == ("a.jpg", "c.jpg")
        np.testing.assert_allclose(images.pixels()[:, 1, 1], [COLOURS["a.jpg"], COLOURS["c.jpg"]], atol=3)
        assert len(notes) == 1 and "1 of 3 pictures left out: b.jpg " in notes[0]
    assert decoded == [], "the second time they come from the cache"
    with pytest.raises(DataError, match=r"b\.jpg"):
        small_copies(place, NAMES, 4)
    with pytest.raises(DataError, match="none of its pictures can be used"):
        small_copies(place, ["b.jpg"], 4, "skip")


def test_a_lack_of_memory_is_no_fault_of_the_picture(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(content: bytes, size: int, fit: str) -> bytes:
        raise MemoryError

    monkeypatch.setattr(pictures, "_decode", decode)
    with pytest.raises(MemoryError):
        small_copies(Place(folder), NAMES, 4, "skip")
    assert [path.suffix for path in own_cache.iterdir()] == [".lock"]


def test_a_picture_that_is_put_right_is_used(folder: Path) -> None:
    content = (folder / "b.jpg").read_bytes()
    (folder / "b.jpg").unlink()
    assert not small_copies(Place(folder), NAMES, 4, "skip")[1].all()
    (folder / "b.jpg").write_bytes(content)
    assert small_copies(Place(folder), NAMES, 4)[1].all()


def test_a_refused_picture_leaves_no_thread_behind(tmp_path: Path) -> None:
    files = {f"{at:02d}.jpg": picture() if at else b"no picture" for at in range(40)}
    place = Place(pack(tmp_path / "x.tar.gz", files))
    with pytest.raises(DataError) as raised:
        small_copies(place, list(files), 4, threads=2)
    assert raised.traceback and not [each for each in threading.enumerate() if each.name.startswith("decode")]


def test_many_missing_pictures_are_counted(folder: Path) -> None:
    with pytest.raises(DataError, match=r"w\.jpg is not there, nor are 1 others"):
        small_copies(Place(folder), [*NAMES, "w.jpg", "x.jpg"], 4)
    notes: list[str] = []
    small_copies(Place(folder), [*NAMES, *(f"z{at}.jpg" for at in range(30))], 4, "skip", tell=notes.append)
    assert "30 of 33 pictures left out" in notes[0] and notes[0].endswith("and 20 more")


def test_as_many_pixels_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_PIXELS", 240)
    assert len(pictures._decode(picture(size=(20, 12)), 4)) == 48
    with pytest.raises(ValueError, match="21×12 pixels are more than"):
        pictures._decode(picture(size=(21, 12)), 4)


def test_a_file_may_be_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LARGEST_FILE", 3 << 20)
    (folder / "b.jpg").write_bytes(picture() + bytes(3 << 20))
    with pytest.raises(DataError, match=r"b\.jpg is larger than 3 MB\. Get it again"):
        small_copies(Place(folder), NAMES, 4)


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path) -> None:
    noise = os.urandom(200_000)
    files = {f"{at:03d}.jpg": picture() + noise for at in range(150)}
    place = Place(pack(tmp_path / "x.tar", files))
    tracemalloc.start()
    small_copies(place, list(files), 64, threads=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6, "30 MB of files, and 1.8 MB of copies"


def test_no_more_is_read_than_threads_can_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    def slow(row: int, content: bytes, size: int) -> pictures.Small:
        nonlocal under_way
        time.sleep(0.002)
        with lock:
            under_way -= 1
        return pictures.Small(row)

    def encoded() -> object:
        nonlocal under_way, most
        for row in range(60):
            with lock:
                under_way += 1
                most = max(most, under_way)
            yield row, b""

    monkeypatch.setattr(pictures, "_shrink", slow)
    assert [small.row for small in pictures.in_parallel(encoded(), 4, 2)] == list(range(60))  # type: ignore[arg-type]
    assert most <= 4 * 2 + 1


def test_of_large_files_fewer_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue holds 100 bytes: with 40 bytes each, two files and the one just read."""
    read, done, ahead = 0, 0, []

    def encoded() -> Iterator[tuple[int, bytes]]:
        nonlocal read
        for row in range(20):
            read += 1
            ahead.append(read - done)
            yield row, bytes(40)

    monkeypatch.setattr(pictures, "_MOST_BYTES", 100)
    for small in pictures.in_parallel(encoded(), 4, threads=2):
        assert small.row == done
        done += 1
    assert done == 20 and max(ahead) == 3


def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(
    folder: Path, own_cache: Path, decoded: list[int]
) -> None:
    code = (
        "import time; from pathlib import Path\n"
        "from fedalc.data.images import decode as pictures; from fedalc.data.storage import Place\n"
        "def progress(done, total):\n    print(done, flush=True); time.sleep(60)\n"
        f"pictures.small_copies(Place(Path({str(folder)!r})), {NAMES!r}, 4, progress=progress)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [path for path in own_cache.iterdir() if path.suffix == ".part"]
    assert not [path for path in own_cache.iterdir() if path.is_dir() and path.suffix != ".part"]
    images, _ = small_copies(Place(folder), NAMES, 4)
    assert sorted(decoded) == [0, 1, 2] and images.pixels()[2, 0, 0, 2] > 250
    assert not [path for path in own_cache.iterdir() if path.suffix == ".part"], "what it left is cleared away"


def test_two_processes_do_the_work_once(folder: Path, decoded: list[int]) -> None:
    """Threads stand in for processes: the lock is per open file."""
    begun = threading.Barrier(4)

    def work() -> None:
        begun.wait()
        small_copies(Place(folder), NAMES, 4)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(decoded) == [0, 1, 2]


def test_a_full_disk_is_told_and_leaves_nothing(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.Writer, "write", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\).*\$FEDALC_CACHE"):
        small_copies(Place(folder), NAMES, 4)
    assert [path.suffix for path in own_cache.iterdir()] == [".lock"]


def test_without_pillow_one_line_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(FedalcError, match=r'pictures need Pillow: pip install "fedalc\[images\]"'):
        small_copies(Place(folder), NAMES, 4)


def test_pictures_of_sixteen_bits_are_divided_not_clipped(tmp_path: Path) -> None:
    wide = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray((wide // 256).astype(np.uint8)).save(tmp_path / "narrow.png")
    found = read_pictures(tmp_path, 32)
    narrow, wide_pixels = found.pixels().astype(int)
    assert found.names == ("narrow.png", "wide.png")
    assert np.abs(narrow - wide_pixels).max() <= 1 and wide_pixels.std() > 60
