"""Small copies of pictures in the cache: a file of pixels, and an index.

An entry is a folder. It is made under a temporary name and renamed in one step, so an entry is always complete. One
process makes an entry while others wait for its lock; the next process to get the lock removes leftovers of a killed
one. If the cache cannot be written, copies go into an unnamed temporary file that disappears with the process.

Copies can be used while others are still being made: the memory map shows the file as it is written, and stays valid
after the rename.
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
    """Row i is picture i; a broken picture is black, and `broken` says what is wrong with it."""

    pixels: np.ndarray
    digests: np.ndarray
    broken: dict[int, str]
    arrivals: Arrivals | None = None
    """Set while copies are being made: wait here for a row's pixels and digest."""


class Writer:
    """Writes copies in any order. Rows that are never written take no space on most file systems."""

    def __init__(self, file: BinaryIO, count: int, size: int) -> None:
        self._file, self._row_bytes = file, size * size * CHANNELS
        self.digests = np.zeros((count, DIGEST_BYTES), dtype=np.uint8)
        self.broken: dict[int, str] = {}
        self.arrivals = Arrivals(count)
        file.truncate(count * self._row_bytes)

    def write(self, row: int, pixels: bytes, digest: bytes) -> None:
        if len(pixels) != self._row_bytes:
            raise ValueError(f"a copy of {len(pixels)} bytes, but {self._row_bytes} are expected")
        self._file.seek(row * self._row_bytes)
        self._file.write(pixels)
        self._file.flush()  # the memory map shows it only after this
        self.digests[row] = np.frombuffer(digest, dtype=np.uint8)
        self.arrivals.note(row)

    def note_broken(self, row: int, why: str) -> None:
        self.broken[row] = why

    def write_index(self, file: Path) -> None:
        # Pairs, because JSON keys are strings.
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
    """Return the copies of this key, and make them first if needed. If `make` fails, removes everything it wrote.

    New copies replace those of another stamp, whose files have changed. `tell` is called with a note if copies cannot
    be kept. Without `wait`, `make` runs in another thread and must write every row.
    """
    try:
        key_digest, stamp_digest = (
            hashlib.sha256(f"{_FORMAT} {text}".encode(errors="surrogateescape")).hexdigest() for text in (key, stamp)
        )
        entry = cache_dir() / f"pictures-{key_digest[:40]}-{stamp_digest[:16]}"
    except RuntimeError:  # a user without a home folder
        cache = False
    if not cache:
        return _filled(_unnamed(), count, size, make, wait)
    with contextlib.suppress(Exception):  # missing or damaged
        return _open(entry, count, size)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(entry)
    except OSError as error:
        if tell is not None:
            tell(
                f"{entry.parent}: cannot be written or locked ({error.strerror}), so fedalc makes the small copies of "
                "the pictures again each time. Set $FEDALC_CACHE to a folder that can be written"
            )
        return _filled(_unnamed(), count, size, make, wait)
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        with contextlib.suppress(Exception):  # another process has made it while we waited
            return _open(entry, count, size)
        return _filled(_becoming(entry, stack.pop_all()), count, size, make, wait)


def _lock(entry: Path) -> BinaryIO:
    """Take the entry's lock, until the file is closed or the process ends."""
    file = entry.with_name(f"{entry.name}.lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        file.close()
        raise
    return file


def _clear(entry: Path) -> None:
    """Remove a damaged entry, and leftovers of a killed process."""
    for leftover in (entry, *entry.parent.glob(f"{entry.name}.*.part")):
        shutil.rmtree(leftover, ignore_errors=True)


def _clear_older(entry: Path) -> None:
    """Remove entries of other stamps. Keep unfinished ones (`.part`) and locks: another process may wait for them."""
    for other in entry.parent.glob(f"{entry.name.rpartition('-')[0]}-*"):
        if other != entry and not other.suffix:
            shutil.rmtree(other, ignore_errors=True)


@contextlib.contextmanager
def _becoming(entry: Path, lock: contextlib.AbstractContextManager[object]) -> Iterator[Path]:
    """Yield a folder to fill. Rename it to the entry at the end, or remove it on failure."""
    with lock:
        _clear(entry)
        part = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f"{entry.name}.", suffix=".part"))
        try:
            yield part
            try:
                part.replace(entry)
            except OSError as error:  # something else has this name and could not be removed
                raise DataError(f"cannot be replaced ({error.strerror}): remove it", entry) from None
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        _clear_older(entry)


@contextlib.contextmanager
def _unnamed() -> Iterator[Path]:
    """Yield a temporary folder. The memory map of a file in it stays valid after the folder is removed."""
    with tempfile.TemporaryDirectory(prefix="fedalc-pictures-") as folder:
        yield Path(folder)


def _filled(
    target: contextlib.AbstractContextManager[Path], count: int, size: int, make: Callable[[Writer], None], wait: bool
) -> Copies:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(target)
        with _explain_disk_errors(folder.parent, count * size * size * CHANNELS):
            file = stack.enter_context((folder / _PIXELS).open("wb"))
            writer = Writer(file, count, size)
        pixels = _map(folder / _PIXELS, count, size)
        rest = stack.pop_all()

    def work() -> None:
        with rest, _explain_disk_errors(folder.parent, count * size * size * CHANNELS):
            make(writer)
            os.fsync(file.fileno())  # a power cut must not leave an index without its pixels
            writer.write_index(folder / _INDEX)

    if wait:
        work()
        return Copies(pixels, writer.digests, writer.broken)
    writer.arrivals.make_beside(work)
    return Copies(pixels, writer.digests, {}, writer.arrivals)


@contextlib.contextmanager
def _explain_disk_errors(folder: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the small copies of the pictures cannot be written ({error.strerror or error}): they need "
            f"{needed >> 20} MB. Set $FEDALC_CACHE to choose another folder",
            folder,
        ) from None


def _open(folder: Path, count: int, size: int) -> Copies:
    if (folder / _PIXELS).stat().st_size != count * size * size * CHANNELS:
        raise DataError("has the wrong size for its pictures", folder / _PIXELS)
    with np.load(folder / _INDEX, allow_pickle=False) as index:
        digests, broken = index["digests"], dict(json.loads(index["broken"].tobytes()))
    if digests.shape != (count, DIGEST_BYTES):
        raise DataError("does not match its pixels", folder / _INDEX)
    return Copies(_map(folder / _PIXELS, count, size), digests, broken)


def _map(file: Path, count: int, size: int) -> np.ndarray:
    return np.memmap(file, dtype=np.uint8, mode="r", shape=(count, size, size, CHANNELS))
