"""Read pictures that belong to no dataset, from a file, a folder or an archive, as the input of a model.

Several threads scale them to the model's size as in training (`decode`), block by block. Nothing is written to disk,
and at most a block is in memory.
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
from fedalc.data.images.images import CHANNELS, DIGEST_BYTES, PICTURES_AT_ONCE, Fit, Images
from fedalc.data.storage import File, Place, is_archive
from fedalc.errors import ConfigError, DataError

KINDS = "JPEG, PNG, WebP, GIF, BMP"
# Skips hidden files: some systems add one for each picture, with a similar name.
_PICTURE = re.compile(r"(?:[^./][^/]*/)*[^./][^/]*\.(?:jpe?g|png|webp|gif|bmp)", re.IGNORECASE)
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM")

Count = Callable[[int, int | None], None]
"""Called with the number of pictures done, and of all pictures (None while unknown, as for an archive)."""


def read_pictures(
    path: Path | str, size: int, broken: Literal["refuse", "skip"] = "refuse", fit: Fit = "crop"
) -> Images:
    """Read all pictures of `picture_blocks` at once: size × size × 3 bytes of memory per picture."""
    return joined(list(picture_blocks(path, size, broken, fit=fit)))


def joined(blocks: Sequence[Images]) -> Images:
    """Join blocks of pictures, in memory."""
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
    fit: Fit = "crop",
) -> Generator[Images, None, None]:
    """Yield the pictures of a file, a folder (with its subfolders, sorted by name) or a tar archive (in its order),
    scaled to size × size as `fit` says, in blocks of at most 64. A picture's name is its path in the folder or archive.

    The suffix of a file name says whether the file is a picture. A picture that cannot be decoded is an error that
    names it; with `skip` it is left out, and `tell` is called with a note at the end.
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

    # Close at once on an error: neither threads nor an open archive outlive it.
    with contextlib.closing(encoded()) as contents, contextlib.closing(in_parallel(contents, size, fit=fit)) as made:
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


def pictures_in(contents: Sequence[bytes], size: int, fit: Fit = "crop") -> Images:
    """Decode picture files that are in memory. One that cannot be decoded is an error with its number."""
    need_pillow()
    if not contents:
        return Images(np.zeros((0, size, size, CHANNELS), dtype=np.uint8), [])
    with contextlib.closing(in_parallel(iter(enumerate(contents)), size, fit=fit)) as decoded:
        block = list(decoded)
    for small in block:
        if small.broken:
            raise DataError(f"pictures: number {small.row} {small.broken}")
    return _images(block, list(map(str, range(len(block)))), size)


def looks_like_pictures(path: Path) -> bool:
    """Return whether a file is an archive by its name, or a picture by its first bytes. Does not decode it."""
    if is_archive(path):
        return True
    try:
        with path.open("rb") as file:
            start = file.read(12)
    except OSError:
        return False
    return start.startswith(_BEGINNINGS) or (start[:4] == b"RIFF" and start[8:] == b"WEBP")


def _files(path: Path) -> tuple[Iterator[File], int | None]:
    """Return the files in order, and their number (None for an archive, before it is read)."""
    if not path.exists():
        raise DataError("no such picture, folder or archive", path)
    if path.is_dir():
        storage = Place(path)
        loose = len(storage.loose(_PICTURE))
        return storage.matching(_PICTURE), loose or None
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
