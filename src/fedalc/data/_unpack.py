"""Archives unpacked into one folder, and nowhere else: no file may climb out of it, and no link is followed or made."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from fedalc.errors import DataError


def unpack(archive: Path, name: str, into: Path) -> list[Path]:
    """Unpacks a zip, tar or gzip file and returns the files, as paths below `into`.

    The kind is told by content. `name` is the archive's own name: a gzip file's content is called by it, without
    `.gz`. A single folder around everything is left out, so that `Eurlex/train.txt` becomes `train.txt`.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return _unpack_zip(opened, into)
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as opened_tar:
                return _unpack_tar(opened_tar, into)
        if _begins_with(archive, b"\x1f\x8b"):
            target = _safe_path(name.removesuffix(".gz"), archive)
            with gzip.open(archive) as stream:
                _write(stream, into / target)
            return [Path(target)]
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, NotImplementedError) as error:
        raise DataError(f"cannot be unpacked ({error}): get it again", name) from None
    raise DataError("is neither a zip, nor a tar, nor a gzip file", name)


def _unpack_zip(archive: zipfile.ZipFile, into: Path) -> list[Path]:
    members = [info for info in archive.infolist() if not info.is_dir()]
    for info in members:
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"refused: {info.filename!r} is a link", archive.filename)
    targets = _targets([info.filename for info in members], archive.filename)
    for info, target in zip(members, targets, strict=True):
        with archive.open(info) as stream:
            _write(stream, into / target)
    return [Path(target) for target in targets]


def _unpack_tar(archive: tarfile.TarFile, into: Path) -> list[Path]:
    members = [member for member in archive.getmembers() if not member.isdir()]
    for member in members:
        if not member.isfile():
            raise DataError(f"refused: {member.name!r} is a link or a device", str(archive.name))
    targets = _targets([member.name for member in members], str(archive.name))
    for member, target in zip(members, targets, strict=True):
        stream = archive.extractfile(member)
        assert stream is not None  # it is a file
        with stream:
            _write(stream, into / target)
    return [Path(target) for target in targets]


def _targets(names: list[str], archive: str | None) -> list[PurePosixPath]:
    """Where each file goes. Everything is looked at before anything is written."""
    paths = [_safe_path(name, archive) for name in names]
    if not paths:
        raise DataError("the archive is empty", archive)
    tops = {path.parts[0] for path in paths}
    if len(tops) == 1 and all(len(path.parts) > 1 for path in paths):
        paths = [PurePosixPath(*path.parts[1:]) for path in paths]
    if len(set(paths)) != len(paths):
        raise DataError("refused: two files of the archive have the same name", archive)
    return paths


def _safe_path(name: str, archive: str | Path | None) -> PurePosixPath:
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    # A backslash or a colon would be a separator or a drive on Windows.
    if path.is_absolute() or ".." in parts or not parts or any(character in name for character in "\\:\0"):
        raise DataError(f"refused: {name!r} would be written outside the dataset's folder", archive)
    return PurePosixPath(*parts)


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _write(stream: IO[bytes] | gzip.GzipFile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
