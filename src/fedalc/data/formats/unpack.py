"""Archives unpacked into one folder, and nowhere else: no file may climb out of it, and no link is followed or made.

How many files there are and what they unpack to is bounded (`limits`): by what the archive says before anything is
written, and by what comes out while it is written.
"""

from __future__ import annotations

import gzip
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO

from fedalc.data.formats.safe_tar import UNREADABLE, is_tar, members, open_tar
from fedalc.data.limits import MOST_MEMBERS, largest_content, unpacks_to_too_much
from fedalc.errors import DataError

# RuntimeError: a zip with a password.
_DAMAGED = (*UNREADABLE, zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, KeyError)
_PIECE = 1 << 20


def unpack(archive: Path, name: str, into: Path) -> list[Path]:
    """Unpack a zip, tar or gzip file and return the files, as paths below `into`.

    The content tells the kind. `name` is the archive's own name: a gzip file's content is called by it, without
    `.gz`. A single folder around everything is left out, so that `Eurlex/train.txt` becomes `train.txt`.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return _unpack_zip(opened, archive, name, into)
        if is_tar(archive):
            with open_tar(archive) as opened_tar:
                return _unpack_tar(opened_tar, archive, name, into)
        if _begins_with(archive, b"\x1f\x8b"):
            target = _safe_path(name.removesuffix(".gz"), name)
            with gzip.open(archive) as stream:
                _Writer(archive, name, into).write(stream, target)
            return [Path(target)]
    except _DAMAGED as error:
        raise DataError(f"cannot be unpacked ({error}): get it again", name) from None
    raise DataError("is neither a zip, nor a tar, nor a gzip file", name)


def _unpack_zip(opened: zipfile.ZipFile, archive: Path, name: str, into: Path) -> list[Path]:
    infos = [info for info in opened.infolist() if not info.is_dir()]
    writer = _Writer(archive, name, into)
    writer.check(info.file_size for info in infos)
    for info in infos:
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"refused: {info.filename!r} is a link", name)
    targets = _targets([info.filename for info in infos], name)
    for info, target in zip(infos, targets, strict=True):
        with opened.open(info) as stream:
            writer.write(stream, target)
    return [Path(target) for target in targets]


def _unpack_tar(opened: tarfile.TarFile, archive: Path, name: str, into: Path) -> list[Path]:
    files = []
    for member in members(opened, archive):
        if not member.isdir():
            files.append(member)
        if len(files) > MOST_MEMBERS:
            raise _too_many(name)
    targets = _targets([member.name for member in files], name)
    writer = _Writer(archive, name, into)
    for member, target in zip(files, targets, strict=True):
        stream = opened.extractfile(member)
        assert stream is not None  # it is a file
        with stream:
            writer.write(stream, target)
    return [Path(target) for target in targets]


def _targets(names: list[str], archive: str) -> list[PurePosixPath]:
    """Return where each file goes. Checks everything before anything is written."""
    paths = [_safe_path(name, archive) for name in names]
    if not paths:
        raise DataError("the archive is empty", archive)
    tops = {path.parts[0] for path in paths}
    if len(tops) == 1 and all(len(path.parts) > 1 for path in paths):
        paths = [PurePosixPath(*path.parts[1:]) for path in paths]
    if len(set(paths)) != len(paths):
        raise DataError("refused: two files of the archive have the same name", archive)
    return paths


def _safe_path(name: str, archive: str) -> PurePosixPath:
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    # A backslash or a colon would be a separator or a drive on Windows.
    if path.is_absolute() or ".." in parts or not parts or any(character in name for character in "\\:\0"):
        raise DataError(f"refused: {name!r} would be written outside the dataset's folder", archive)
    return PurePosixPath(*parts)


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


class _Writer:
    """Writes files of an archive below a folder, and no more in all than the archive may unpack to."""

    def __init__(self, archive: Path, name: str, into: Path) -> None:
        self._name, self._into = name, into
        self._packed = archive.stat().st_size
        self._limit = largest_content(self._packed)
        self._written = 0

    def check(self, sizes: Iterable[int]) -> None:
        """What the archive says of itself."""
        total = 0
        for count, size in enumerate(sizes, 1):
            total += size
            if count > MOST_MEMBERS:
                raise _too_many(self._name)
            if total > self._limit:
                raise unpacks_to_too_much(self._name, self._packed, self._limit)

    def write(self, stream: IO[bytes] | gzip.GzipFile, path: PurePosixPath) -> None:
        target = self._into / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            file = target.open("xb")
        except OSError as error:  # a name that is too long, or one file's name is another's folder
            raise DataError(f"{str(path)[:80]!r} cannot be written: {error.strerror}", self._name) from None
        with file:
            while piece := stream.read(_PIECE):
                self._written += len(piece)
                if self._written > self._limit:
                    raise unpacks_to_too_much(self._name, self._packed, self._limit, f" (at {str(path)[:60]!r})")
                try:
                    file.write(piece)
                except OSError as error:
                    raise DataError(f"cannot be written: {error.strerror}", target) from None


def _too_many(name: str) -> DataError:
    return DataError(f"refused: it has more than {MOST_MEMBERS:,} files", name)
