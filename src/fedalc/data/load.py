"""From a dataset's name, or a folder, to a `Dataset`."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fedalc.core.arguments import as_path
from fedalc.data.cache import Parsed, cached, content_digest
from fedalc.data.catalog import datasets as catalog
from fedalc.data.catalog.datasets import Entry
from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats import arff, xmlc
from fedalc.data.formats import image_list as listed
from fedalc.data.formats.arff_header import LabelRule, find_labels_file
from fedalc.data.formats.text_stream import LineReader
from fedalc.data.images.decode import of_size
from fedalc.data.images.images import ImageOptions
from fedalc.data.images.load import load_listed, load_lists, load_pictures, pictures_at
from fedalc.data.label_names import told_apart
from fedalc.data.synthetic.demo import make_demo
from fedalc.data.synthetic.mosaics import make_mosaics
from fedalc.data.synthetic.shapes import make_shaped
from fedalc.errors import ConfigError, DataError

_SPLIT_FILE = re.compile(r".*?(train|test|dev|valid|validation)\.(?:txt|arff)(?:\.gz|\.bz2)?", re.IGNORECASE)
_SPLIT_OF = {"train": "train", "test": "test", "dev": "validation", "valid": "validation", "validation": "validation"}
_LABEL_FILES = ("labels.txt", "labels.txt.gz", "labels.txt.bz2")


def load_dataset(
    name_or_path: str | Path,
    data_dir: Path | str | None = None,
    cache: bool = True,
    images: ImageOptions | None = None,
) -> Dataset:
    """A dataset of the catalog by its name, or the one in a folder.

    A known name is looked for in the folder of that name in `data_dir`, or else in $FEDALC_DATA, or else in ./data.
    A folder should hold a train and a test file (and perhaps one for validation) in either format, or `train.csv` and
    `test.csv` with pictures; and it may hold the labels' names in `labels.txt`. What was parsed is kept in the cache
    unless `cache` is false. `images` says how pictures are read, and means nothing to other datasets.
    """
    as_path(name_or_path, "dataset")
    if images is not None and not isinstance(images, ImageOptions):
        raise ConfigError(f"expected fedalc.data.ImageOptions, found {images!r:.60}", "images")
    if isinstance(name_or_path, str) and catalog.is_known(name_or_path):
        entry = catalog.entry(name_or_path)
        if entry.name == "demo":
            return make_demo()
        if entry.name == "mosaics":
            return _of_size(make_mosaics(), images)
        if entry.like is not None:
            return make_shaped(entry.name)
        folder = dataset_dir(entry, data_dir)
        if not folder.is_dir():
            raise DataError(
                f"dataset {entry.name!r} is not here: looked for the folder {folder}. "
                f"`fedalc data info {entry.name}` says where to get it"
            )
        if entry.images is not None:
            return load_pictures(entry.name, entry.images, folder, images or ImageOptions(), cache)
        return _load_folder(folder, entry.name, LabelRule(prefix=entry.label_prefix), cache)
    folder = Path(name_or_path)
    if folder.is_dir():
        name = folder.resolve().name
        if folder_kind(folder) == "pictures":
            return load_listed(name, folder, images or ImageOptions(), cache)
        return _load_folder(folder, name, LabelRule(), cache)
    if folder.is_file():
        raise DataError("is a file: a dataset is a folder with a train and a test file", folder)
    if isinstance(name_or_path, Path) or len(folder.parts) != 1:
        raise DataError("no such folder", folder)
    catalog.entry(name_or_path)  # raises, with the names that are close
    raise AssertionError


def _of_size(dataset: Dataset, images: ImageOptions | None) -> Dataset:
    if images is None:
        return dataset
    train, test = (
        replace(split, features=of_size(split.features, images.size)) for split in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test)


def has_pictures(name_or_path: str | Path) -> bool:
    """Whether this is a dataset of pictures, told without reading it and without a word on whether it can be read."""
    if isinstance(name_or_path, str) and catalog.is_known(name_or_path):
        entry = catalog.entry(name_or_path)
        return entry.images is not None or entry.name == "mosaics"
    return listed.is_listed(Path(name_or_path))


def folder_kind(folder: Path) -> Literal["pictures", "sparse"]:
    """What a user's own folder has, by the names of its files."""
    sparse = _candidates(folder).get("train")
    if not listed.is_listed(folder):
        if not sparse:
            _refuse_published(folder)
        return "sparse"
    if sparse:
        raise DataError(
            f"has pictures in {listed.TRAIN} and sparse features in {sparse[0].name}: leave one of them, or move each "
            "to a folder of its own",
            folder,
        )
    return "pictures"


def _refuse_published(folder: Path) -> None:
    """One of the catalog's datasets of pictures is asked for by its name, which says how it is split too."""
    at = folder.resolve()
    here = [(entry, pictures_at(entry.images, folder)) for entry in catalog.ENTRIES if entry.images is not None]
    in_its_place = [entry.name for entry, what in here if what != "no" and entry.folder == at.name]
    if in_its_place:
        names = " or ".join(in_its_place)
        raise DataError(f"is loaded by name, which says how to split it: --dataset {names} --data-dir {at.parent}", at)
    if unpacked := [entry for entry, what in here if what == "yes"]:
        names = " or ".join(entry.name for entry in unpacked)
        places = " or ".join(dict.fromkeys(f"DIR/{entry.folder}" for entry in unpacked))
        raise DataError(
            f"looks like {names}, which is loaded by that name: have the folder, or a link to it, at {places}, and "
            "give --data-dir DIR",
            folder,
        )


def data_root(data_dir: Path | str | None = None) -> Path:
    """The folder of the datasets' folders."""
    return as_path(data_dir if data_dir is not None else os.environ.get("FEDALC_DATA") or "data", "data_dir")


def dataset_dir(entry: Entry, data_dir: Path | str | None = None) -> Path:
    """Where the files of a dataset of the catalog belong."""
    return data_root(data_dir) / entry.folder


def presence(
    entry: Entry, data_dir: Path | str | None = None
) -> Literal["embedded", "generated", "yes", "packed", "no"]:
    """Whether a dataset's files are where they belong, without reading them. An archive is not looked into."""
    if entry.like is not None:
        return "generated"
    if entry.is_embedded:
        return "embedded"
    folder = dataset_dir(entry, data_dir)
    if entry.images is not None:
        return pictures_at(entry.images, folder)
    try:
        return "yes" if folder.is_dir() and find_split_files(folder) else "no"
    except DataError:
        return "no"


def load_file(
    path: Path | str,
    feature_count: int | None = None,
    label_count: int | None = None,
    label_prefix: str | None = None,
    cache: bool = False,
) -> Split:
    """One file in either format, told apart by content. Another number of features than asked for is an error.

    In an ARFF file that does not say which attributes are labels, they are the last `label_count`.
    """
    path = Path(path)
    rule = LabelRule(prefix=label_prefix, otherwise_last=label_count)
    split = _parse(path, rule, cache).split
    found = split.features.shape[1]
    if feature_count is not None and feature_count != found:
        raise DataError(f"has {found} features where {feature_count} are expected", path)
    return split


def load_held(
    name_or_path: str | Path, data_dir: Path | str | None = None, images: ImageOptions | None = None
) -> tuple[Split, tuple[str, ...]]:
    """What a party holds, and the labels' names: a file, the train file of a folder, or that of a known dataset.

    A list of pictures is read along with the others of its folder, of which none has to be there. `images` says how.
    """
    path = Path(name_or_path)
    if path.is_file() and (part := listed.split_of(path)) is not None:
        splits, names = load_lists(path.parent, images or ImageOptions())
        return splits[part], names
    if path.is_file():
        read = _parse(path, LabelRule(), cache=False)
        return read.split, read.label_names or _label_names(path.parent, read.split.labels.shape[1])
    if path.is_dir() and not catalog.is_known(str(name_or_path)):
        if folder_kind(path) == "pictures":
            return load_held(path / listed.TRAIN, images=images)
        found = _split_files(path)
        if "train" not in found:
            raise DataError("expected a file whose name ends with train.txt or train.arff (.gz, .bz2)", path)
        return load_held(found["train"])
    dataset = load_dataset(name_or_path, data_dir, images=images)
    return dataset.train, dataset.label_names


def held_out_file(folder: Path) -> Path | None:
    """The folder's test file, if it has one."""
    return listed.find_lists(folder, needed=()).get("test") or _split_files(folder).get("test")


def _load_folder(folder: Path, name: str, rule: LabelRule, cache: bool) -> Dataset:
    files = find_split_files(folder)
    parsed = {split: _parse(path, rule, cache) for split, path in files.items()}
    train = parsed["train"]
    if len(parsed["test"].split) == 0:
        raise DataError("has no instances to test on", files["test"])
    for split, other in parsed.items():
        if (other.feature_names, other.label_names) != (train.feature_names, train.label_names):
            raise DataError(f"has other attributes than {files['train']}, or in another order", files[split])
    validation = parsed.get("validation")
    return Dataset(
        name,
        train.split,
        parsed["test"].split,
        train.label_names or _names_told_apart(folder, train.split.labels.shape[1]),
        None if validation is None else validation.split,
    )


def find_split_files(folder: Path) -> dict[str, Path]:
    """The folder's train, test and, if there is one, validation file. Two that could be meant are an error."""
    found = _split_files(folder)
    for split in ("train", "test"):
        if split not in found:
            raise DataError(
                f"no {split} file: expected one whose name ends with {split}.txt or {split}.arff (.gz, .bz2)"
                + (f"; or, for pictures, {listed.TRAIN} and test.csv" if not found else ""),
                folder,
            )
    return found


def _split_files(folder: Path) -> dict[str, Path]:
    candidates = _candidates(folder)
    for split, paths in candidates.items():
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise DataError(f"several files could be the {split} split: {names}. Leave one", folder)
    return {split: paths[0] for split, paths in candidates.items()}


def _candidates(folder: Path) -> dict[str, list[Path]]:
    """The files of sparse features that could be meant, by split."""
    candidates: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _SPLIT_FILE.fullmatch(path.name)
        if match is not None and path.is_file():
            candidates.setdefault(_SPLIT_OF[match[1].lower()], []).append(path)
    return candidates


def _parse(path: Path, rule: LabelRule, cache: bool) -> Parsed:
    if _is_arff(path):
        labels_file = find_labels_file(path)
        known = "" if labels_file is None else content_digest(labels_file)

        def parse() -> Parsed:
            read = arff.read_arff(path, rule, labels_file)
            return Parsed(read.split, read.feature_names, read.label_names)

        return cached(path, f"arff {arff.VERSION}", f"{rule} {known}", parse) if cache else parse()

    def parse_xmlc() -> Parsed:
        return Parsed(xmlc.read_xmlc(path))

    return cached(path, f"xmlc {xmlc.VERSION}", "", parse_xmlc) if cache else parse_xmlc()


def _is_arff(path: Path) -> bool:
    """ARFF begins with an @ or a comment, the other format with a number."""
    with LineReader(path) as reader:
        while (line := reader.next_line()) is not None:
            if line.strip():
                return line.lstrip()[:1] in (b"@", b"%")
    return False


def _names_told_apart(folder: Path, count: int) -> tuple[str, ...]:
    """Label names of real datasets do repeat. Training goes by numbers, so that is worth a note and not an error."""
    names, changed = told_apart(_label_names(folder, count))
    if changed:
        warnings.warn(
            f"{folder}: {len(changed)} labels share a name with another; each is called by name and number, as in "
            f"{names[changed[0]]!r}",
            stacklevel=4,
        )
    return names


def _label_names(folder: Path, count: int) -> tuple[str, ...]:
    """Line i names label i, alone or after an identifier and a tab. Without a file, labels are called by number."""
    found = [folder / name for name in _LABEL_FILES if (folder / name).is_file()]
    if not found:
        return tuple(str(label) for label in range(count))
    path = found[0]
    names: list[str] = []
    with LineReader(path) as reader:
        while (line := reader.next_line()) is not None:
            try:
                text = line.decode("utf-8").strip("\r\n")
            except UnicodeDecodeError:
                raise DataError("is not UTF-8 text", path, reader.line) from None
            names.append(text.split("\t", 1)[-1].strip() or str(len(names)))
    while len(names) > count and names[-1] == str(len(names) - 1):  # blank lines at the end
        names.pop()
    if len(names) != count:
        raise DataError(f"has {len(names)} names, one per line, for {count} labels", path)
    return tuple(names)
