"""Decode picture files to the small copies used in training. They are made once and kept in the cache.

For each picture: turn it upright by its EXIF orientation, cut out the centre square (its side is the shorter side; an
odd extra pixel stays at the right or at the bottom) unless all of it is to be squeezed into a square, scale it up or
down to size × size with an antialiased bilinear filter, and convert it to RGB without transparency. A large JPEG is
decoded at a half, a quarter or an eighth of its size if that leaves at least twice the pixels needed.

Several threads decode (Pillow releases Python's lock) while one reads files and writes copies. That thread may be
separate from the caller's, so pictures are used while others are still being decoded. Only a few pictures are in memory
at any time, and fewer if they are large.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedalc.data.images.images import Fit, Images, Progress, picture_digest
from fedalc.data.images.small_copies import Copies, Writer, kept_copies
from fedalc.data.storage import Place, safe_name
from fedalc.errors import DataError, FedalcError

VERSION = 1
"""Raise it when the procedure changes: copies of another version are not used."""
LARGEST_FILE = 64 << 20
MOST_PIXELS = 64_000_000
"""Limit for a picture. (Pillow warns at 89 million, refuses twice as many.) A thread needs 4 to 8 bytes per pixel."""
_MOST_BYTES = 512 << 20
"""Limit for files that are read and not decoded yet."""
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Pillow reads more formats, some with external programs: untrusted files must not reach those."""
_NAMED_IN_A_NOTE = 10


class Small(NamedTuple):
    """The copy of a picture, or the reason why there is none (`broken`)."""

    row: int
    pixels: bytes = b""
    digest: bytes = b""
    broken: str = ""


def small_copies(
    storage: Place,
    names: Sequence[str],
    size: int,
    broken: Literal["refuse", "skip"] = "refuse",
    *,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
    cache: bool = True,
    threads: int | None = None,
    wait: bool = True,
    first: Sequence[int] = (),
    fit: Fit = "crop",
) -> tuple[Images, np.ndarray]:
    """Return the pictures of these names, and a mask over the names that marks the pictures returned.

    A picture that is missing or cannot be decoded is an error that names it; with `skip` it is left out, and `tell` is
    called with a note. The cache key is the path, size and time of the files, the names and the size.

    Without `wait` (and without `skip`), another thread makes the copies, and a request for pixels or digests raises
    its errors. Loose files are decoded in this order: those that a request waits for, the rows `first`, all others. An
    archive is read front to back.
    """
    need_pillow()
    wanted = [safe_name(name, storage.path) for name in names]
    if len(set(wanted)) != len(wanted):
        raise DataError("a picture is listed twice", storage.path)

    def make(writer: Writer) -> None:
        _make(storage, wanted, size, broken, writer, progress, threads, first, fit)

    # Another version of Pillow may decode differently, or decode more files.
    key = "\0".join(
        (f"pictures {VERSION}, Pillow {_pillow()}", _shape(size, fit), str(storage.path.resolve()), *wanted)
    )
    wait = wait or broken == "skip"
    copies = kept_copies(key, storage.stamp(wanted), len(wanted), size, make, cache, tell, wait)
    _report(copies, wanted, storage.path, broken, tell)
    usable = np.ones(len(wanted), dtype=bool)
    usable[list(copies.broken)] = False
    if not usable.any():
        raise DataError("none of its pictures can be used", storage.path)
    return Images(copies.pixels, wanted, copies.digests, arrivals=copies.arrivals)[usable], usable


def _shape(size: int, fit: Fit) -> str:
    return str(size) if fit == "crop" else f"{size} {fit}"


def of_size(images: Images, size: int) -> Images:
    """Return pictures scaled to another size. All of them are in memory."""
    if images.size == size:
        return images
    need_pillow()
    from PIL import Image

    scaled = [
        np.asarray(Image.fromarray(one).resize((size, size), Image.Resampling.BILINEAR)) for one in images.pixels()
    ]
    return Images(np.stack(scaled), images.names)


def _processors() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pillow() -> str:
    import PIL

    return PIL.__version__


def need_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise FedalcError('pictures need Pillow: pip install "fedalc[images]"') from None


def _make(
    storage: Place,
    names: Sequence[str],
    size: int,
    broken: str,
    writer: Writer,
    progress: Progress | None,
    threads: int | None,
    first: Sequence[int],
    fit: Fit,
) -> None:
    rows = {name: row for row, name in enumerate(names)}
    missing = set(rows)

    def encoded() -> Generator[tuple[int, bytes], None, None]:
        order = writer.arrivals.in_order(chain(first, range(len(names))))
        for file in storage.files(names[row] for row in order):
            missing.discard(file.name)
            yield rows[file.name], file.read_start(LARGEST_FILE + 1)

    # Close at once on an error: neither threads nor an open archive outlive it.
    with (
        contextlib.closing(encoded()) as contents,
        contextlib.closing(in_parallel(contents, size, threads, fit)) as made,
    ):
        for done, small in enumerate(made, 1):
            if small.broken and broken == "refuse":
                raise _refused(names[small.row], small.broken, storage.path)
            if small.broken:
                writer.note_broken(small.row, small.broken)
            else:
                writer.write(small.row, small.pixels, small.digest)
            if progress is not None:
                progress(done, len(names))
    for name in sorted(missing):
        if broken == "refuse":
            raise _refused(name, _absent(len(missing)), storage.path)
        writer.note_broken(rows[name], "is not there")


def in_parallel(
    encoded: Iterator[tuple[int, bytes]], size: int, threads: int | None = None, fit: Fit = "crop"
) -> Generator[Small, None, None]:
    """Yield decoded pictures in the order of arrival. Reads only as many as keep every thread busy."""
    threads = threads or _processors()
    shrink = _shrink if fit == "crop" else partial(_shrink, fit=fit)
    waiting: deque[tuple[Future[Small], int]] = deque()
    under_way = 0  # bytes
    with ThreadPoolExecutor(threads, "decode") as pool:
        try:
            for row, content in encoded:
                waiting.append((pool.submit(shrink, row, content, size), len(content)))
                under_way += len(content)
                while len(waiting) > 4 * threads or under_way > _MOST_BYTES:
                    future, length = waiting.popleft()
                    yield future.result()
                    under_way -= length
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            for future, _ in waiting:
                future.cancel()


def _shrink(row: int, content: bytes, size: int, fit: Fit = "crop") -> Small:
    if len(content) > LARGEST_FILE:
        return Small(row, broken=f"is larger than {LARGEST_FILE >> 20} MB")
    try:
        pixels = _decode(content, size, fit)
    except MemoryError:  # not the picture's fault
        raise
    except Exception as error:  # Pillow's plugins raise exceptions of all kinds: all mean a broken picture
        return Small(row, broken=f"cannot be decoded ({str(error) or type(error).__name__})")
    return Small(row, pixels, picture_digest(pixels))


def _decode(content: bytes, size: int, fit: Fit = "crop") -> bytes:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        opened: Any = Image.open(io.BytesIO(content), formats=_FORMATS)
    except UnidentifiedImageError:
        raise ValueError("not a picture of a known format") from None
    with opened as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width}×{image.height} pixels are more than {MOST_PIXELS // 10**6} million")
        image.draft("RGB", (2 * size, 2 * size))
        image.load()
        with contextlib.suppress(Exception):  # damaged EXIF data must not lose the picture
            ImageOps.exif_transpose(image, in_place=True)
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side) if fit == "crop" else None
        small = _of_eight_bits(image).convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
        return bytes(small.tobytes())


def _of_eight_bits(image: Any) -> Any:
    """Scale 16-bit pixels to 8 bits (Pillow would clip them at 255). Other wide pixels have no known range."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, whose range is not known; save it with 8 or 16 bits")
    return image


def _report(
    copies: Copies, names: Sequence[str], source: Path, broken: str, tell: Callable[[str], None] | None
) -> None:
    """Report broken pictures: found now, or by an earlier process that skipped them."""
    if not copies.broken:
        return
    row, why = next(iter(sorted(copies.broken.items())))
    if broken == "refuse":
        raise _refused(names[row], _absent(1) if why == "is not there" else why, source)
    if tell is not None:
        tell(left_out(source, [f"{names[row]} {why}" for row, why in sorted(copies.broken.items())], len(names)))


def left_out(source: Path, broken: Sequence[str], pictures: int) -> str:
    """Return a note that names the first few pictures left out."""
    more = len(broken) - _NAMED_IN_A_NOTE
    return f"{source}: {len(broken)} of {pictures} pictures left out: {'; '.join(broken[:_NAMED_IN_A_NOTE])}" + (
        f"; and {more} more" if more > 0 else ""
    )


def _absent(count: int) -> str:
    return "is not there" if count == 1 else f"is not there, nor are {count - 1} others"


def _refused(name: str, why: str, source: Path) -> DataError:
    return DataError(f'{name} {why}. Get it again, or leave broken pictures out (images.broken = "skip")', source)
