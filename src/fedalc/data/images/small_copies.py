"""Small copies of pictures in the cache: a file of pixels, and an index beside it.

An entry is a folder. It is made under another name and takes its own in one step, so that whatever stands under an
entry's name is whole. One process makes an entry while others wait for it; what a killed one left is cleared away by
the next, which can tell by the lock that nobody is at work. Where the cache cannot be written, copies go into a
temporary file that has no name and ends with the process.

Copies can be used while the rest of them is being made: the map is of the file they are written to, which stays the
same file under its new name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedalc.data.cache import cache_dir
from fedalc.data.images.arrivals import Arrivals
from fedalc.data.images.images import CHANNELS, DIGEST_BYTES
from fedalc.errors import DataError

_FORMAT = 1
"""Raise it when the layout of an entry changes."""
_PIXELS, _INDEX = "pixels.u8", "index.npz"


@dataclass(frozen=True)
class Copies:
    """Row i is picture i; that of a broken one is black. `broken` says what is wrong with which."""

    pixels: np.ndarray
    digests: np.ndarray
    broken: dict[int, str]
    arrivals: Arrivals | None = None
    """Where copies are still being made: wait there for a row's pixels and digest."""


class Writer:
    """Takes copies in any order. Rows that are never written take no room on most disks."""

    def __init__(self, file: BinaryIO, count: int, size: int) -> None:
        self._file, self._row_bytes = file, size * size * CHANNELS
        self.digests = np.zeros((count, DIGEST_BYTES), dtype=np.uint8)
        self.broken: dict[int, str] = {}
        self.arrivals = Arrivals(count)
        file.truncate(count * self._row_bytes)

    def write(self, row: int, pixels: bytes, digest: bytes) -> None:
        if len(pixels) != self._row_bytes:
            raise ValueError(f"a copy of {len(pixels)} bytes where {self._row_bytes} belong")
        self._file.seek(row * self._row_bytes)
        self._file.write(pixels)
        self._file.flush()  # only now the map shows it
        self.digests[row] = np.frombuffer(digest, dtype=np.uint8)
        self.arrivals.note(row)

    def note_broken(self, row: int, why: str) -> None:
        self.broken[row] = why

    def write_index(self, file: Path) -> None:
        # JSON has only strings for keys, so pairs it is.
        broken = np.frombuffer(json.dumps(list(self.broken.items())).encode(), dtype=np.uint8)
        np.savez(file, digests=self.digests, broken=broken)


def kept_copies(
    key: str,
    stamp: str,
    count: int,
    size: int,
    make: Callable[[Writer], None],
    cache: bool = True,
    tell: Callable[[str], None] | None = None,
    wait: bool = True,
) -> Copies:
    """The copies under this key, made now if they are not there yet. `make` failing leaves nothing behind.

    Those of another stamp, which are of files that have changed since, go when new ones are there. `tell` is told
    where copies cannot be kept. Without `wait`, `make` runs in another thread, and has to write every row.
    """
    try:
        known, state = (
            hashlib.sha256(f"{_FORMAT} {text}".encode(errors="surrogateescape")).hexdigest() for text in (key, stamp)
        )
        entry = cache_dir() / f"pictures-{known[:40]}-{state[:16]}"
    except RuntimeError:  # a user without a home folder
        cache = False
    if not cache:
        return _filled(_unnamed(), count, size, make, wait)
    with contextlib.suppress(Exception):  # not there, or damaged in whatever way
        return _open(entry, count, size)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(entry)
    except OSError as error:
        if tell is not None:
            tell(
                f"{entry.parent}: cannot be written or locked ({error.strerror}), so the small copies of the pictures "
                "are made again each time. $FEDALC_CACHE says where they go"
            )
        return _filled(_unnamed(), count, size, make, wait)
    with contextlib.ExitStack() as held:
        held.enter_context(lock)
        with contextlib.suppress(Exception):  # another process has made it while we waited
            return _open(entry, count, size)
        return _filled(_becoming(entry, held.pop_all()), count, size, make, wait)


def _lock(entry: Path) -> BinaryIO:
    """Held until closed, or until the process ends in whatever way."""
    file = entry.with_name(f"{entry.name}.lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        file.close()
        raise
    return file


def _clear(entry: Path) -> None:
    """What stands in the way: a damaged entry, or what a killed process has begun."""
    for leftover in (entry, *entry.parent.glob(f"{entry.name}.*.part")):
        shutil.rmtree(leftover, ignore_errors=True)


def _clear_older(entry: Path) -> None:
    """What is under way (`.part`) is left alone, and so are locks: somebody may wait for one."""
    for other in entry.parent.glob(f"{entry.name.rpartition('-')[0]}-*"):
        if other != entry and not other.suffix:
            shutil.rmtree(other, ignore_errors=True)


@contextlib.contextmanager
def _becoming(entry: Path, lock: contextlib.AbstractContextManager[object]) -> Iterator[Path]:
    """A folder to be filled, which takes the entry's name in the end, or goes if something fails."""
    with lock:
        _clear(entry)
        part = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f"{entry.name}.", suffix=".part"))
        try:
            yield part
            try:
                part.replace(entry)
            except OSError as error:  # something is in its place that could not be cleared away
                raise DataError(f"cannot be replaced ({error.strerror}): remove it", entry) from None
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        _clear_older(entry)


@contextlib.contextmanager
def _unnamed() -> Iterator[Path]:
    """A map of what is in it holds on to that after the folder is gone."""
    with tempfile.TemporaryDirectory(prefix="fedalc-pictures-") as folder:
        yield Path(folder)


def _filled(
    place: contextlib.AbstractContextManager[Path], count: int, size: int, make: Callable[[Writer], None], wait: bool
) -> Copies:
    with contextlib.ExitStack() as begun:
        folder = begun.enter_context(place)
        with _told_of_disk(folder.parent, count * size * size * CHANNELS):
            file = begun.enter_context((folder / _PIXELS).open("wb"))
            writer = Writer(file, count, size)
        pixels = _map(folder / _PIXELS, count, size)
        rest = begun.pop_all()

    def work() -> None:
        with rest, _told_of_disk(folder.parent, count * size * size * CHANNELS):
            make(writer)
            os.fsync(file.fileno())  # a power cut must not leave an index without its pixels
            writer.write_index(folder / _INDEX)

    if wait:
        work()
        return Copies(pixels, writer.digests, writer.broken)
    writer.arrivals.make_beside(work)
    return Copies(pixels, writer.digests, {}, writer.arrivals)


@contextlib.contextmanager
def _told_of_disk(place: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the small copies of the pictures cannot be written ({error.strerror or error}): they need "
            f"{needed >> 20} MB. $FEDALC_CACHE says where they go",
            place,
        ) from None


def _open(folder: Path, count: int, size: int) -> Copies:
    if (folder / _PIXELS).stat().st_size != count * size * size * CHANNELS:
        raise DataError("has another size than its pictures", folder / _PIXELS)
    with np.load(folder / _INDEX, allow_pickle=False) as index:
        digests, broken = index["digests"], dict(json.loads(index["broken"].tobytes()))
    if digests.shape != (count, DIGEST_BYTES):
        raise DataError("does not fit its pixels", folder / _INDEX)
    return Copies(_map(folder / _PIXELS, count, size), digests, broken)


def _map(file: Path, count: int, size: int) -> np.ndarray:
    return np.memmap(file, dtype=np.uint8, mode="r", shape=(count, size, size, CHANNELS))
