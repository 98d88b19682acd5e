"""Tar archives of unknown origin, member by member: what Python's `tarfile` believes is checked before it acts on it.

`tarfile` reads a member's extended headers (long names, attributes, maps of sparse files) into memory as a whole,
whatever size they claim, and goes on to the next member by the size that this one claims.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fedalc.data.limits import LONGEST_MEMBER_HEADER, in_words, largest_content, unpacks_to_too_much
from fedalc.errors import DataError

# RecursionError: every extended header is read by one more call. OverflowError: sizes beyond what a file can have.
# MemoryError: xz may ask for gigabytes to begin with.
UNREADABLE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, OverflowError, IndexError,
              RecursionError, MemoryError)  # fmt: skip
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
             tarfile.GNUTYPE_LONGLINK)  # fmt: skip
_COMPRESSIONS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x5d\0\0": "xz"}


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive, compressed or not. Bounded: members' headers, and what it unpacks to. Raises `UNREADABLE`."""
    with path.open("rb") as file:
        start, packed = file.read(8), os.fstat(file.fileno()).st_size
    compression = next((kind for magic, kind in _COMPRESSIONS.items() if start.startswith(magic)), "")
    limit = largest_content(packed)

    class Member(tarfile.TarInfo):
        """A member whose header is checked before anything is read."""

        def _proc_member(self, archive: tarfile.TarFile) -> Any:
            if self.type == tarfile.GNUTYPE_SPARSE:
                self._refuse_sparse()
            if self.type in _EXTENDED and self.size > LONGEST_MEMBER_HEADER:
                raise DataError(
                    f"refused: a member's extended header claims to have {in_words(self.size)}, more than the "
                    f"{in_words(LONGEST_MEMBER_HEADER)} that are read",
                    path,
                )
            self._check_size(self.offset)
            found = super()._proc_member(archive)  # type: ignore[misc]
            found._check_size(found.offset_data)  # an extended header may have said another size
            return found

        def _check_size(self, start: int) -> None:
            if self.size < 0:
                raise DataError(f"damaged: {self.name[:60]!r} claims to have {self.size} bytes; get it again", path)
            if compression and start + self.size > limit:
                raise unpacks_to_too_much(path, packed, limit, f" (at {self.name[:60]!r})")

        def _refuse_sparse(self, *_: object) -> NoReturn:
            raise DataError(f"refused: {self.name!r} is a link, a device or a sparse file", path)

        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

    mode: Any = f"r:{compression}"
    with tarfile.open(path, mode, tarinfo=Member) as archive:
        yield archive


def is_tar(path: Path) -> bool:
    """Return whether a file is a tar archive, by content. A refused archive counts as one."""
    try:
        with open_tar(path):
            return True
    except DataError:
        return True
    except UNREADABLE as error:
        if getattr(error, "errno", None) is not None:  # the file itself cannot be read
            raise
        return False


def members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield files and folders. Refuse anything else."""
    while (member := archive.next()) is not None:
        if not (member.isdir() or member.isreg()) or member.issparse():
            raise DataError(f"refused: {member.name!r} is a link, a device or a sparse file", path)
        yield member
        # Forget what was handed out: there may be millions.
        archive.members = []  # type: ignore[attr-defined]
        archive.pax_headers = {}
