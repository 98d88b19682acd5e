"""A dataset's files: loose in a folder, in tar archives in it, or both.

Archives are never unpacked to disk. They are read front to back, once per request, and wanted files are handed out on
the way. Loose files take precedence over packed ones.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from fedalc.data.formats.safe_tar import UNREADABLE, members, open_tar
from fedalc.errors import DataError

_ARCHIVE = re.compile(r".+\.(?:tar|tar\.gz|tgz|tar\.bz2)", re.IGNORECASE)


class File:
    """One file, to be read when it is handed out. Errors name the file."""

    def __init__(self, stream: IO[bytes], name: str, place: Path, size: int) -> None:
        self._stream, self.name, self.place, self.size = stream, name, place, size

    def read(self, most: int) -> bytes:
        """Read all of it. A file with more than `most` bytes is refused before reading."""
        if self.size > most:
            raise self.error(f"is larger than {most >> 20} MB, which no file of its kind is")
        return self.read_start(most)

    def read_start(self, most: int) -> bytes:
        """Read at most `most` bytes. A longer file is not an error: ask for one byte more than allowed to notice it."""
        try:
            # Python allocates as much memory as it is asked to read.
            return self._stream.read(min(most, self.size))
        except UNREADABLE as error:
            raise _damaged(error, self.place) from None

    def error(self, message: str, line: int | None = None) -> DataError:
        return DataError(message, f"{self.place}: {self.name}", line)


class Place:
    """All files of a dataset. Names use `/`, relative to the folder or as in the archives."""

    def __init__(self, path: Path) -> None:
        """A folder with files, archives or both; or one archive."""
        self.path = path
        try:
            self.folder = path if path.is_dir() else None
            if self.folder is None:
                self.archives = [path]
            else:
                self.archives = sorted(item for item in path.iterdir() if is_archive(item))
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path) from None
        if not path.exists():
            raise DataError("no such folder or archive", path)

    def matching(self, pattern: re.Pattern[str]) -> Iterator[File]:
        """Yield every file whose whole name matches. Looks in archives only if no loose file matches."""
        if loose := self.loose(pattern):
            yield from self._read_loose(loose)
            return
        seen: set[str] = set()
        for archive in self.archives:
            for file in _read_archive(archive, lambda name: pattern.fullmatch(name) is not None):
                if file.name not in seen:  # the same file in two archives, as in those that are parts of a whole
                    seen.add(file.name)
                    yield file

    def files(self, names: Iterable[str]) -> Iterator[File]:
        """Yield these files: loose ones in this order, then packed ones in the order of the archives.

        Takes the next name only after the file before it was handed out. Skips files that do not exist.
        """
        missing: set[str] = set()
        yield from self._read_loose(self._without(missing, names))
        for archive in self.archives:
            if not missing:
                return
            here: set[str] = set()
            for file in _read_archive(archive, missing.__contains__):
                here.add(file.name)
                yield file
            missing -= here

    def loose(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the names of loose files that match, sorted."""
        return sorted(name for name in self._walk() if pattern.fullmatch(name))

    def stamp(self, names: Sequence[str]) -> str:
        """Return a hash that changes with these files, or with an archive they may be in: path, size and time."""
        digest = hashlib.sha256(str(self.path.resolve()).encode())
        packed = not names
        for name in names:
            known = _stamp(self.folder / name) if self.folder is not None else ""
            packed = packed or not known
            digest.update(f"\0{name}\0{known}".encode(errors="surrogateescape"))
        for archive in self.archives if packed else ():
            digest.update(f"\0{archive.name}\0{_stamp(archive)}".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def _without(self, missing: set[str], names: Iterable[str]) -> Iterator[str]:
        """Yield the loose files. The others go into `missing`."""
        for name in names:
            safe = safe_name(name, self.path)
            if self.folder is not None and (self.folder / safe).is_file():
                yield safe
            else:
                missing.add(safe)

    def _read_loose(self, names: Iterable[str]) -> Iterator[File]:
        for name in names:
            assert self.folder is not None
            try:
                stream = (self.folder / name).open("rb")
            except OSError as error:
                raise DataError(f"cannot be opened: {error.strerror}", self.folder / name) from None
            with stream:
                yield File(stream, name, self.folder, os.fstat(stream.fileno()).st_size)

    def _walk(self) -> Iterator[str]:
        """Yield all file names. Follows linked folders, because data is often on another disk, but visits each once."""
        if self.folder is None:
            return
        visited: set[str] = set()
        for root, folders, files in os.walk(self.folder, followlinks=True):
            real = os.path.realpath(root)
            if real in visited:
                folders.clear()
                continue
            visited.add(real)
            folders.sort()
            start = "" if Path(root) == self.folder else Path(root).relative_to(self.folder).as_posix() + "/"
            yield from (start + file for file in files)


def is_archive(path: Path) -> bool:
    """Return whether this is an archive, by its name."""
    return _ARCHIVE.fullmatch(path.name) is not None and path.is_file()


def _read_archive(path: Path, wanted: Callable[[str], bool]) -> Iterator[File]:
    """Yield the wanted files. Refuses an archive with a link, a device or a path out of the folder."""
    found: set[str] = set()
    try:
        with open_tar(path) as archive:
            for member in members(archive, path):
                name = safe_name(member.name, path)
                if member.isdir() or not wanted(name):
                    continue
                if name in found:
                    raise DataError(f"refused: it has two files called {name!r}", path)
                found.add(name)
                stream = archive.extractfile(member)
                assert stream is not None  # it is a file
                yield File(stream, name, path, member.size)
    except UNREADABLE as error:
        raise _damaged(error, path) from None


def safe_name(name: str, place: Path) -> str:
    """Return the name without `./`. Refuses one that leads out of the folder, or differs on another system."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or any(character in name for character in "\\:\0"):
        raise DataError(f"refused: the name {name!r} leads out of the folder", place)
    return str(path)


def _stamp(path: Path) -> str:
    """Return size and time of a file; empty if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _damaged(error: Exception, path: Path) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError("no such archive", path)
    if path.is_dir():
        return DataError(f"cannot be read: {error}", path)
    what = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
    return DataError(f"cannot be read as an archive: it was cut short or is damaged ({what}); get it again", path)
