"""Durable writes: a file or folder appears complete, and is on disk when the function returns.

All important writes use these functions: write to a temporary file, fsync, rename, fsync the folder. Without the first
fsync, a power cut may keep the new name and lose the content.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from fedalc.errors import FedalcError

PART = ".part"  # suffix of files that are incomplete or to be deleted
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WriteFailed(FedalcError, OSError):
    """A file or folder could not be written. Its earlier version is unchanged."""

    def __init__(self, path: Path, error: OSError) -> None:
        OSError.__init__(self, error.errno, error.strerror or str(error), str(path))

    def __str__(self) -> str:
        room = "; free some disk space and try again" if self.errno in FULL else ""
        return f"{self.filename}: cannot be written: {self.strerror}{room}"


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    with whole_binary(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing, as `whole_binary`."""
    with whole_binary(path) as binary:
        file = io.TextIOWrapper(binary, encoding="utf-8")
        try:
            yield file
            file.flush()
        finally:
            with suppress(OSError):  # detach flushes again; report the first error
                file.detach()


@contextmanager
def whole_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name once it is complete on disk. Writes the target of a link.

    The temporary name is unique: if two processes write the same file at once, the last one wins.
    """
    path = path.resolve()
    with failures_named(path):
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
            with path.open("wb") as file:
                yield file
            return
        part = temporary(path)
        make_folder(path.parent)
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _rename(part, path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def append_text(path: Path, text: str, durable: bool = True) -> None:
    """Append complete lines to a log. Ends a line that a crash cut off first, so that it does not damage the next."""
    with failures_named(path), path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            text = text if file.read(1) == b"\n" else f"\n{text}"
        file.write(text.encode("utf-8"))
        file.flush()
        if durable:
            os.fsync(file.fileno())
            if not end:
                sync_folder(path.parent)


def move_into_place(part: Path, path: Path) -> None:
    """Put a finished file on disk, then rename it to `path`."""
    with failures_named(path):
        sync_file(part)
        make_folder(path.parent)
        _rename(part, path)
        sync_folder(path.parent)


def replace_folder(part: Path, folder: Path, keep_previous: bool = False) -> None:
    """Rename the finished folder `part` to `folder`. The earlier version becomes `folder`.old, and is deleted unless
    `keep_previous`.

    A complete copy exists at all times: the new one is on disk before the first rename, and whichever rename a power
    cut loses, either `folder` or `folder`.old is complete.
    """
    old = previous(folder)
    with failures_named(folder):
        sync_folder(part)
        sync_folder(folder.parent)  # from here on the new version can be found
        discarded = None
        if folder.exists():  # otherwise a crash left only the older version: keep it
            if old.exists():
                discarded = _rename(old, temporary(old))
            _rename(folder, old)
        _rename(part, folder)
        sync_folder(folder.parent)
    if discarded is not None:
        shutil.rmtree(discarded, ignore_errors=True)
    if not keep_previous:
        remove_folder(old)


def previous(folder: Path) -> Path:
    """Return where `replace_folder` puts the earlier version."""
    named = folder if folder.name else folder.resolve()  # "." has no name
    return named.with_name(f"{named.name}.old") if named.name else named / ".old"


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step: nobody sees half of it under its name."""
    with suppress(FileNotFoundError):
        unwanted = _rename(folder, temporary(folder))
        sync_folder(folder.parent)
        shutil.rmtree(unwanted, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder like mkdir -p. The new folders survive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Flush a file to disk, whichever process wrote it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that allows writing but not listing
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise
    finally:
        os.close(handle)


@contextmanager
def failures_named(path: Path) -> Iterator[None]:
    """Turn file system errors into `WriteFailed`, which names the file."""
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(path.parent)):
            raise  # another file, read meanwhile
        raise WriteFailed(path, error) from error


def temporary(path: Path) -> Path:
    """Return a unique name beside `path` for an incomplete file or one to be deleted."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")


def _rename(source: Path, target: Path) -> Path:
    os.replace(source, target)  # noqa: PTH105  one layer of os calls, which crash tests intercept
    return target
