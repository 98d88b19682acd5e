"""From a folder or archive in one of the known layouts of pictures to a `Dataset`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fedalc.data.catalog.datasets import ImageSet
from fedalc.data.dataset import Dataset
from fedalc.data.formats import coco, flair, voc
from fedalc.data.images.annotations import Annotations, kept_annotations, make_dataset
from fedalc.data.images.decode import need_pillow
from fedalc.data.images.images import ImageOptions
from fedalc.data.storage import Place


def load_pictures(name: str, kind: ImageSet, path: Path, options: ImageOptions, cache: bool = True) -> Dataset:
    """`path` is the dataset's folder, with its files or archives of them, or one archive."""
    need_pillow()  # before minutes are spent on annotations
    place = Place(path)
    files, facts, read = _reader(kind, place, options)
    # Loose files are known by their sizes and times; where there are none, the archives are.
    key = "\0".join((*facts, place.stamp(place.loose(files))))
    return make_dataset(name, place, kept_annotations(key, read, cache), options, cache)


def pictures_at(kind: ImageSet, path: Path) -> Literal["yes", "packed", "no"]:
    """Whether something of this layout seems to be there, loose or in an archive, which is not looked into."""
    if any((path / marker).exists() for marker in kind.markers):
        return "yes"
    return "packed" if path.is_dir() and Place(path).archives else "no"


def _reader(
    kind: ImageSet, place: Place, options: ImageOptions
) -> tuple[re.Pattern[str], tuple[str, ...], Callable[[], Annotations]]:
    """The files with annotations, all else that has a say in what they are read as, and how to read them."""
    if kind.layout == "voc":
        of_voc, difficult = voc.VARIANTS[kind.variant], options.difficult
        facts = ("voc", str(voc.VERSION), repr(of_voc), str(difficult))
        return voc.pattern(of_voc), facts, lambda: voc.read_voc(place, of_voc, difficult)
    if kind.layout == "coco":
        of_coco = coco.VARIANTS[kind.variant]
        known = ("coco", str(coco.VERSION), repr(of_coco), *coco.picture_folders(place, of_coco))
        return coco.pattern(of_coco), known, lambda: coco.read_coco(place, of_coco)
    of_flair = flair.VARIANTS[kind.variant]
    known = ("flair", str(flair.VERSION), repr(of_flair))
    return flair.pattern(of_flair), known, lambda: flair.read_flair(place, of_flair)
