"""Pictures that belong to no dataset: one file, a folder or an archive of them, as a model takes them.

They are brought to the model's size by the rule that training follows (`pictures`), block by block and in several
threads. Nothing of them is kept on disk, and no more of them in memory than a block.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedalc.core.arguments import as_count, as_path
from fedalc.core.picture_sides import LARGEST_SIDE
from fedalc.data.formats.safe_tar import is_tar
from fedalc.data.images.decode import LARGEST_FILE, Small, in_parallel, left_out, need_pillow
from fedalc.data.images.images import CHANNELS, DIGEST_BYTES, PICTURES_AT_ONCE, Images
from fedalc.data.storage import File, Place, is_archive
from fedalc.errors import ConfigError, DataError

KINDS = "JPEG, PNG, WebP, GIF, BMP"
# Hidden files are not meant: some systems leave one of their own beside each picture, under its name.
_PICTURE = re.compile(r"(?:[^./][^/]*/)*[^./][^/]*\.(?:jpe?g|png|webp|gif|bmp)", re.IGNORECASE)
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")

Count = Callable[[int, int | None], None]
"""Told how many pictures are done, and how many there are; None where only the end will tell."""


def read_pictures(path: Path | str, size: int, broken: Literal["refuse", "skip"] = "refuse") -> Images:
    """All of `picture_blocks` as one: size × size × 3 bytes of memory for each."""
    return joined(list(picture_blocks(path, size, broken)))


def joined(blocks: Sequence[Images]) -> Images:
    """One after another, in memory."""
    return Images(
        np.concatenate([block.pixels() for block in blocks]),
        [name for block in blocks for name in block.names],
        np.concatenate([block.digests for block in blocks]),
    )


def picture_blocks(
    path: Path | str,
    size: int,
    broken: Literal["refuse", "skip"] = "refuse",
    *,
    progress: Count | None = None,
    tell: Callable[[str], object] = warnings.warn,
) -> Generator[Images, None, None]:
    """The pictures of a file, of a folder (and those within, in order of their names) or of a tar archive (in its
    order), brought to size × size, in blocks of at most 64. Each is called by its path in the folder or archive.

    Which files of a folder are pictures is told by how their names end. One that cannot be decoded is an error that
    names it; or, with `skip`, it is left out, and `tell` is told in the end.
    """
    need_pillow()
    if broken not in ("refuse", "skip"):
        raise ConfigError(f"refuse or skip, not {broken!r}", "broken")
    path = as_path(path, "path")
    if as_count(size, "size") > LARGEST_SIDE:
        raise ConfigError(f"a picture's side is at most {LARGEST_SIDE} pixels, not {size}", "size")
    names: list[str] = []
    wrong: list[str] = []
    block: list[Small] = []
    files, total = _files(path)
    alone = total == 1 and not path.is_dir()

    def encoded() -> Generator[tuple[int, bytes], None, None]:
        for row, file in enumerate(files):
            names.append(file.name)
            yield row, file.read_start(LARGEST_FILE + 1)

    # Closed at once when something is refused: neither threads nor an open archive outlive the error.
    with contextlib.closing(encoded()) as contents, contextlib.closing(in_parallel(contents, size)) as made:
        for done, small in enumerate(made, 1):
            if small.broken and alone:
                raise DataError(
                    f"{small.broken}. Expected a picture ({KINDS}), a folder or a tar archive of them", path
                )
            if small.broken and broken == "refuse":
                raise DataError(
                    f"{names[small.row]} {small.broken}. Get it again, or leave broken pictures out (--broken skip, "
                    'in Python broken="skip")',
                    path,
                )
            if small.broken:
                wrong.append(f"{names[small.row]} {small.broken}")
            else:
                block.append(small)
            if progress is not None:
                progress(done, total)
            if len(block) == PICTURES_AT_ONCE:
                yield _images(block, names, size)
                block.clear()
    if block:
        yield _images(block, names, size)
    if not names:
        raise DataError(f"has no pictures ({KINDS})", path)
    if len(wrong) == len(names):
        raise DataError(f"none of its {len(names)} pictures can be used; the first, {wrong[0]}", path)
    if wrong:
        tell(left_out(path, wrong, len(names)))


def looks_like_pictures(path: Path) -> bool:
    """Whether this file is an archive by its name, or begins as a picture does. It is not decoded for that."""
    if is_archive(path):
        return True
    try:
        with path.open("rb") as file:
            start = file.read(12)
    except OSError:
        return False
    return start.startswith(_BEGINNINGS) or (start[:4] == b"RIFF" and start[8:] == b"WEBP")


def _files(path: Path) -> tuple[Iterator[File], int | None]:
    """In order, and how many there are: of an archive that is known only when it has been read."""
    if not path.exists():
        raise DataError("no such picture, folder or archive", path)
    if path.is_dir():
        place = Place(path)
        loose = len(place.loose(_PICTURE))
        return place.matching(_PICTURE), loose or None
    if is_archive(path) or _is_tar(path):
        return Place(path).matching(_PICTURE), None
    return _one(path), 1


def _is_tar(path: Path) -> bool:
    try:
        return is_tar(path)
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror}", path) from None


def _one(path: Path) -> Iterator[File]:
    with path.open("rb") as stream:
        yield File(stream, path.name, path.parent, os.fstat(stream.fileno()).st_size)


def _images(block: Sequence[Small], names: Sequence[str], size: int) -> Images:
    pixels = np.frombuffer(b"".join(small.pixels for small in block), dtype=np.uint8)
    digests = np.frombuffer(b"".join(small.digest for small in block), dtype=np.uint8)
    return Images(
        pixels.reshape(-1, size, size, CHANNELS),
        [names[small.row] for small in block],
        digests.reshape(-1, DIGEST_BYTES),
    )
