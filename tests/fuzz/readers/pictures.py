"""Picture datasets: annotations and pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

from fedalc.data.cache import store_arrays
from fedalc.data.formats import coco as coco_module
from fedalc.data.formats import flair as flair_module
from fedalc.data.formats import voc as voc_module
from fedalc.data.formats.image_list import read_listed
from fedalc.data.images.annotations import _from_arrays, _to_arrays, kept_annotations
from fedalc.data.images.decode import _shrink
from fedalc.data.images.loose_files import picture_blocks
from fedalc.data.images.small_copies import kept_copies
from fedalc.data.storage import File, Place
from fedalc.errors import DataError
from tests.data.layouts import annotation, coco_json, flair, picture, write_files
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import changed_json
from tests.fuzz.registry import as_file, reader, workplace


def _of_file(read: Callable[[File], object]) -> Callable[[bytes], object]:
    return lambda data: read(File(io.BytesIO(data), "input", Path("place"), len(data)))


@reader
def voc_annotation() -> Reader:
    seeds = [annotation("1", [("dog", False), ("person", True)]), annotation("2", [])]
    tokens = (b"<object>", b"</object>", b"<name>cat</name>", b"<difficult>1</difficult>", b"<a>" * 20, b"&amp;")
    read = _of_file(lambda file: voc_module._read_objects(file, difficult=False))
    return Reader("voc-annotation", "VOC's XML", seeds, read, tokens=tokens)


@reader
def voc_list() -> Reader:
    seeds = [b"000001\n000003\n", b"000001  1\n000003 -1\n"]
    return Reader("voc-list", "VOC's lists", seeds, _of_file(voc_module._read_list))


@reader
def coco() -> Reader:
    seeds = [json.dumps(coco_json([1, 2, 3], [(1, 17), (2, 1), (1, 90)])).encode()]
    read = _of_file(lambda file: coco_module._read_set(file, "val2017/"))
    return Reader("coco", "COCO's instances JSON", seeds, read, changed_json)


@reader
def flair_records() -> Reader:
    variant = flair_module.VARIANTS["fine"]
    read = _of_file(partial(flair_module._records, variant=variant))
    return Reader("flair-records", "FLAIR's JSON", [flair()[0]], read, changed_json)


def _listed_folder(name: str) -> Path:
    test = b"picture,labels,user\nc.jpg,dog,u2\n"
    train = b"picture,labels,user\na.jpg,dog|cat,u1\nb.jpg,,u2\n"
    return write_files(workplace() / name, {"train.csv": train, "test.csv": test, "labels.txt": b"dog\ncat\n"})


@reader
def picture_list() -> Reader:
    folder = _listed_folder("listed-csv")
    seeds = [
        b"picture,labels,user\na.jpg,dog|cat,u1\nb.jpg,,u2\n",
        b'labels,picture,user\n"dog","a, b.jpg",u1\r\ncat,"c ""d"".jpg",u\n',
    ]

    def read(data: bytes) -> object:
        (folder / "train.csv").write_bytes(data)
        return read_listed(Place(folder))

    return Reader("picture-list", "train.csv of pictures", seeds, read, tokens=(b'"', b'""', b"|", b",", b"picture"))


@reader
def picture_labels() -> Reader:
    folder = _listed_folder("listed-labels")

    def read(data: bytes) -> object:
        (folder / "labels.txt").write_bytes(data)
        return read_listed(Place(folder))

    return Reader("picture-labels", "labels.txt of pictures", [b"dog\ncat\n", b"cat\ndog\nbird\n"], read)


@reader
def picture_decode() -> Reader:
    """A broken picture is a result here, not an error: it is left out, or refused by name later."""
    colours = ((200, 30, 30), (0, 0, 0))
    seeds = [picture(c, (9, 7), kind) for c in colours for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP")]

    def read(data: bytes) -> None:
        # Small sizes only: a header that claims 50 million pixels takes a second to find out about.
        with mock.patch("fedalc.data.images.decode.MOST_PIXELS", 100_000):
            small = _shrink(0, data, 8)
        if small.broken:
            raise DataError(small.broken)

    return Reader("picture-decode", "JPEG, PNG, GIF, BMP, WebP", seeds, read)


@reader
def picture_file() -> Reader:
    """The full path of `fedalc predict` for one file: a picture or an archive, recognised by content."""
    seeds = [picture((1, 2, 3), (9, 7), kind) for kind in ("JPEG", "PNG")]
    read = as_file("one/picture.jpg", lambda file: list(picture_blocks(file, 8)))
    return Reader("picture-file", "a picture to predict", seeds, read)


@reader
def annotations_cache() -> Reader:
    place = workplace() / "annotations-cache"
    place.mkdir(exist_ok=True)
    found = read_listed(Place(_listed_folder("listed-for-cache")))
    store_arrays(place / "seed.npz", _to_arrays(found))

    def read(file: Path) -> object:
        import fedalc.data.images.annotations as module

        entry = hashed_entry(file.parent)
        file.replace(entry)
        module.cache_dir, where = (lambda: file.parent), module.cache_dir
        try:
            return kept_annotations("key", lambda: found)
        finally:
            module.cache_dir = where

    def hashed_entry(folder: Path) -> Path:
        import hashlib

        known = hashlib.sha256(b"1 key").hexdigest()
        return folder / f"annotations-{known[:40]}.npz"

    import numpy as np

    with np.load(place / "seed.npz") as arrays:
        assert _from_arrays(arrays).pictures == found.pictures
    seeds = [(place / "seed.npz").read_bytes()]
    return Reader("annotations-cache", "annotations in the cache", seeds, as_file("annotations/entry.npz", read))


@reader
def copies_cache() -> Reader:
    """The index of small copies of pictures in the cache."""
    folder = workplace() / "copies-cache"
    folder.mkdir(exist_ok=True)
    import fedalc.data.images.small_copies as module

    def make(writer: module.Writer) -> None:
        writer.write(0, bytes(3 * 4 * 4), bytes(16))
        writer.note_broken(1, "cannot be decoded")

    def read(data: bytes | None) -> object:
        module.cache_dir, where = (lambda: folder), module.cache_dir
        try:
            if data is not None:
                index.write_bytes(data)
            return kept_copies("key", "stamp", 2, 4, make)
        finally:
            module.cache_dir = where

    read(None)
    (entry,) = (path for path in folder.iterdir() if path.is_dir())
    index = entry / "index.npz"
    return Reader("copies-cache", "small copies of pictures in the cache", [index.read_bytes()], read)
