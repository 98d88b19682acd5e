"""Durable writes: a file or folder appears whole, and is on the disk when the function returns.

Every write that matters goes through here: write beside the place, fsync, rename, fsync the folder. A rename without
the fsync before it may survive a power cut that its content does not survive.
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

PART = ".part"  # ends the name of what is not whole yet, or no longer wanted
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WriteFailed(FedalcError, OSError):
    """A file or folder could not be written. What stood in its place before is untouched."""

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
    """A text file to write to, as `whole_binary`."""
    with whole_binary(path) as binary:
        file = io.TextIOWrapper(binary, encoding="utf-8")
        try:
            yield file
            file.flush()
        finally:
            with suppress(OSError):  # it flushes again; the first error is the one to report
                file.detach()


@contextmanager
def whole_binary(path: Path) -> Iterator[BinaryIO]:
    """A file to write to. It takes its name once all of it is on the disk. If the path is a link, its target is
    written.

    The temporary name is unique: when two processes write the same file at once, the last one wins.
    """
    path = path.resolve()
    with failures_named(path):
        if path.exists() and not path.is_file():  # a device or a pipe: nothing to replace
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
    """Add whole lines to a log. A line that a crash cut off is ended first, so that it spoils no other."""
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
    """Rename a file that others have written, once it is on the disk."""
    with failures_named(path):
        sync_file(part)
        make_folder(path.parent)
        _rename(part, path)
        sync_folder(path.parent)


def replace_folder(part: Path, folder: Path, keep_previous: bool = False) -> None:
    """Give the finished folder `part` the name `folder`. What was there becomes `folder`.old and then goes, unless
    `keep_previous`.

    There is no moment without a good copy: the new one is on the disk before the first rename, and whichever of the
    renames a power cut loses, either `folder` or `folder`.old is whole.
    """
    old = previous(folder)
    with failures_named(folder):
        sync_folder(part)
        sync_folder(folder.parent)  # from here on the new one can be found
        discarded = None
        if folder.exists():  # otherwise a crash has left only the older one, and it must stay
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
    """Where `replace_folder` puts the one before."""
    return folder.with_name(f"{folder.name}.old")


def remove_folder(folder: Path) -> None:
    """All of it at once: nobody finds half a folder under its name."""
    with suppress(FileNotFoundError):
        unwanted = _rename(folder, temporary(folder))
        sync_folder(folder.parent)
        shutil.rmtree(unwanted, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Like mkdir -p, and the new folders can still be found after a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Put what was written to a file on the disk, whoever wrote it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder in which one may write but not look around
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
    """Turn an error of the file system into one that says which file could not be written."""
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(path.parent)):
            raise  # of another file, that was read meanwhile
        raise WriteFailed(path, error) from error


def temporary(path: Path) -> Path:
    """A name beside it for what is not whole yet, or no longer wanted. Unique: nobody else's files are touched."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")


def _rename(source: Path, target: Path) -> Path:
    os.replace(source, target)  # noqa: PTH105  as the other calls of os here: one layer for who counts or breaks them
    return target
