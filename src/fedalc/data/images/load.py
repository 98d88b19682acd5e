"""Load picture datasets of the catalog: VOC, COCO, FLAIR."""

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
    """Load from `path`: a folder with the files or archives of them, or one archive."""
    need_pillow()  # reading annotations can take minutes: fail before that
    storage = Place(path)
    files, facts, read = _reader(kind, storage, options)
    # The key has size and time of the loose files, or of the archives if there are none.
    key = "\0".join((*facts, storage.stamp(storage.loose(files))))
    return make_dataset(name, storage, kept_annotations(key, read, cache), options, cache)


def pictures_at(kind: ImageSet, path: Path) -> Literal["yes", "packed", "no"]:
    """Return whether `path` has files of this layout ("yes") or archives that may have them ("packed")."""
    if any((path / marker).exists() for marker in kind.markers):
        return "yes"
    return "packed" if path.is_dir() and Place(path).archives else "no"


def _reader(
    kind: ImageSet, storage: Place, options: ImageOptions
) -> tuple[re.Pattern[str], tuple[str, ...], Callable[[], Annotations]]:
    """Return the pattern of annotation files, the rest of the cache key, and a function that reads them."""
    if kind.layout == "voc":
        of_voc, difficult = voc.VARIANTS[kind.variant], options.difficult
        facts: tuple[str, ...] = ("voc", str(voc.VERSION), repr(of_voc), str(difficult))
        return voc.pattern(of_voc), facts, lambda: voc.read_voc(storage, of_voc, difficult)
    if kind.layout == "coco":
        of_coco = coco.VARIANTS[kind.variant]
        facts = ("coco", str(coco.VERSION), repr(of_coco), *coco.picture_folders(storage, of_coco))
        return coco.pattern(of_coco), facts, lambda: coco.read_coco(storage, of_coco)
    of_flair = flair.VARIANTS[kind.variant]
    facts = ("flair", str(flair.VERSION), repr(of_flair))
    return flair.pattern(of_flair), facts, lambda: flair.read_flair(storage, of_flair)
