"""Small copies of pictures can be used while others are still being made."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedalc.data import Images
from fedalc.data.images import decode as pictures
from fedalc.data.images import small_copies as copies
from fedalc.data.images.arrivals import Arrivals
from fedalc.data.images.decode import small_copies
from fedalc.data.storage import Place
from fedalc.errors import DataError
from tests.data.layouts import pack, picture, write_files

COLOURS = {"a.jpg": (255, 0, 0), "b.jpg": (0, 255, 0), "c.jpg": (0, 0, 255)}
NAMES = list(COLOURS)
FILES = {name: picture(colour) for name, colour in COLOURS.items()}
LAST = 2
MANY = [f"{at:03d}.jpg" for at in range(300)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "set", FILES)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Block the decoding of the last picture until this is set."""
    opened, shrink = threading.Event(), pictures._shrink

    def held_back(row: int, content: bytes, size: int) -> pictures.Small:
        assert row != LAST or opened.wait(20)
        return shrink(row, content, size)

    monkeypatch.setattr(pictures, "_shrink", held_back)
    yield opened
    opened.set()


def beside(place: Path, **how: object) -> Images:
    return small_copies(Place(place), NAMES, 4, wait=False, **how)[0]  # type: ignore[arg-type]


def kept(cache: Path) -> list[str]:
    return sorted(path.suffix for path in cache.iterdir() if path.suffix != ".lock")


def ended() -> None:
    """Wait until no copies are being made: the last row exists shortly before the cache entry does."""
    for thread in threading.enumerate():
        if thread.name == "small copies":
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_there_is_handed_out_and_the_rest_waited_for(
    tmp_path: Path, folder: Path, own_cache: Path, gate: threading.Event, packed: bool
) -> None:
    place = pack(tmp_path / "x.tar.gz", FILES) if packed else folder
    images = beside(place)
    np.testing.assert_allclose(images[[1, 0]].pixels()[:, 1, 1], [COLOURS["b.jpg"], COLOURS["a.jpg"]], atol=3)
    assert len(images[:LAST].digests) == 2 and len(images[:LAST].fingerprint) == 32
    assert kept(own_cache) == [".part"] and images.names == tuple(NAMES) and images.shape == (3, 48)
    for ask in (images.pixels, lambda: images.digests, lambda: images[[LAST]].fingerprint):
        waiting = threading.Thread(target=ask)
        waiting.start()
        waiting.join(0.02)
        assert waiting.is_alive()
    gate.set()
    np.testing.assert_allclose(images.pixels()[:, 1, 1], list(COLOURS.values()), atol=3)
    ended()
    assert kept(own_cache) == [""]
    again = small_copies(Place(place), NAMES, 4)[0]
    np.testing.assert_array_equal(images.pixels(), again.pixels())
    assert images.fingerprint == again.fingerprint


@pytest.mark.parametrize("content", [b"no picture", None])
def test_what_is_broken_is_told_to_whoever_waits_and_leaves_nothing(
    folder: Path, own_cache: Path, content: bytes | None
) -> None:
    (folder / "b.jpg").unlink()
    if content is not None:
        (folder / "b.jpg").write_bytes(content)
    with pytest.raises(DataError) as first:
        small_copies(Place(folder), NAMES, 4)
    images = beside(folder)
    for ask in (images[[1]].pixels, lambda: images.digests, images[[0]].pixels):
        with pytest.raises(DataError) as told:
            ask()
        assert str(told.value) == str(first.value) and "b.jpg" in str(told.value)
        assert kept(own_cache) == []
    assert not [each for each in threading.enumerate() if each.name.startswith("decode")]


def test_a_full_disk_is_told_to_whoever_waits(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.Writer, "write", full)
    images = beside(folder)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\).*\$FEDALC_CACHE"):
        images.pixels()
    assert kept(own_cache) == []


def test_where_pictures_may_be_left_out_all_are_decoded_first(folder: Path, own_cache: Path) -> None:
    (folder / "b.jpg").write_bytes(b"no picture")
    done: list[int] = []
    images, usable = small_copies(
        Place(folder), NAMES, 4, "skip", wait=False, progress=lambda at, of: done.append(at), tell=lambda _: None
    )
    assert done == [1, 2, 3] and usable.tolist() == [True, False, True] and kept(own_cache) == [""]
    assert images.pixels().shape == (2, 4, 4, 3)


def test_copies_that_cannot_be_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDALC_CACHE", str(tmp_path / "file" / "cache"))
    told: list[str] = []
    for images in (beside(folder, cache=False), beside(folder, tell=told.append)):
        assert images.pixels()[1, 0, 0, 1] > 250
        ended()
        assert images.pixels()[1, 0, 0, 1] > 250 and not list(temporary.iterdir())
    assert len(told) == 1 and "cannot be written or locked (Not a directory)" in told[0]


def test_another_process_waits_and_finds_them_whole(folder: Path, own_cache: Path, gate: threading.Event) -> None:
    """A thread stands in for the process: the lock is per open file."""
    images, found = beside(folder), []
    other = threading.Thread(target=lambda: found.append(beside(folder)))
    other.start()
    other.join(0.02)
    assert other.is_alive()
    gate.set()
    other.join(20)
    np.testing.assert_array_equal(found[0].pixels(), images.pixels())
    assert kept(own_cache) == [""]


def test_what_is_waited_for_comes_before_its_turn() -> None:
    arrivals = Arrivals(6)
    order = arrivals.in_order([3, 0, 1, 2, 3, 4, 5])
    assert next(order) == 3
    waiting = threading.Thread(target=arrivals.wait, args=(np.array([5, 3, 4]),))
    waiting.start()
    while not arrivals._urgent:
        time.sleep(0.001)
    rest = list(order)
    assert rest == [5, 4, 0, 1, 2]  # 3 was begun when it was asked for
    for row in (3, *rest):
        arrivals.note(row)
    waiting.join(20)
    assert not waiting.is_alive()


def test_the_wanted_rows_are_decoded_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    shrink = pictures._shrink
    monkeypatch.setattr(pictures, "_shrink", lambda row, *rest: rows.append(row) or shrink(row, *rest))
    small_copies(Place(folder), NAMES, 4, threads=1, first=[2, 1])
    assert rows == [2, 1, 0]


@pytest.mark.long
@pytest.mark.parametrize("asked", ["images.pixels()", "time.sleep(60)", "pass"])
def test_the_process_ends_when_it_is_to_and_clears_up(tmp_path: Path, own_cache: Path, asked: str) -> None:
    folder = write_files(tmp_path / "set", dict.fromkeys(MANY, FILES["a.jpg"]))
    code = (
        "import signal, time; from pathlib import Path\n"
        # A job that a shell has put into the background ignores Ctrl-C, and so do its children.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fedalc.data.images import decode as pictures; from fedalc.data.storage import Place\n"
        "shrink = pictures._shrink\n"
        "def slow(*picture):\n    time.sleep(0.2)\n    return shrink(*picture)\n"
        "pictures._shrink = slow\n"
        f"images, _ = pictures.small_copies(Place(Path({str(folder)!r})), {MANY!r}, 4, wait=False, threads=2)\n"
        "images[:1].pixels(); print('begun', flush=True)\n" + asked
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    if asked != "pass":
        assert kept(own_cache) == [".part"]
        time.sleep(0.05)  # so that it waits
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)  # 30 seconds of decoding are left
    assert said.count("Traceback") == (asked != "pass") and ("KeyboardInterrupt" in said) == (asked != "pass")
    assert kept(own_cache) == []
