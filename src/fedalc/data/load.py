"""From a dataset's name, a folder or a file to a `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedalc.core.arguments import as_path
from fedalc.core.explain import checked_section
from fedalc.data.catalog import datasets as catalog
from fedalc.data.catalog.locate import dataset_dir, refuse_published
from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats import Format, ReadOptions, errors_named, file_format, folder_format, formats
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.images.decode import of_size
from fedalc.data.images.images import ImageOptions
from fedalc.data.images.load import load_pictures
from fedalc.data.parties import party_folders, read_parties
from fedalc.data.synthetic.demo import make_demo
from fedalc.data.synthetic.identities import make_identities
from fedalc.data.synthetic.mosaics import make_mosaics
from fedalc.data.synthetic.shapes import make_shaped
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError, DataError


def load_dataset(
    name_or_path: str | Path,
    data_dir: Path | str | None = None,
    cache: bool = True,
    images: ImageOptions | None = None,
    table: TableSettings | Mapping[str, Any] | None = None,
    text: TextSettings | TextFeatures | Mapping[str, Any] | None = None,
) -> Dataset:
    """Load a dataset of the catalog by its name, or the dataset in a folder or a file.

    fedalc looks for a known name in the folder of that name in `data_dir`, else in $FEDALC_DATA, else in ./data. Your
    own folder holds a train file (and perhaps a test and a validation file) in one of the formats, and may name the
    labels in `labels.txt`; or it has a folder of this kind for each party (`data.parties`). Parsed files are cached
    unless `cache` is false. `images` applies to pictures, `text` to raw texts (the features of a model make the same
    features again); `table` says which column of a table is what, and what to test on if there is no test file. Both
    may be a dict of settings.
    """
    as_path(name_or_path, "dataset")
    if images is not None and not isinstance(images, ImageOptions):
        raise ConfigError(f"expected fedalc.data.ImageOptions, found {images!r:.60}", "images")
    if not isinstance(text, TextFeatures):
        text = checked_section(TextSettings, text, "text")
    table = checked_section(TableSettings, table, "table")
    options = ReadOptions(cache, images or ImageOptions(), table=table, text=text)
    if isinstance(name_or_path, str) and catalog.is_known(name_or_path):
        return _load_known(catalog.entry(name_or_path), data_dir, options, images)
    path = Path(name_or_path)
    if path.is_dir():
        if folders := party_folders(path):
            return read_parties(path, folders, options)
        return _read(format_of(path), path, path.resolve().name, options)
    if path.is_file():
        return _read_alone(file_format(path), path, options)
    if isinstance(name_or_path, Path) or len(path.parts) != 1 or path.suffix:
        raise DataError("no such file or folder", path)
    catalog.entry(name_or_path)  # raises, with the names that are close
    raise AssertionError


def _load_known(
    entry: catalog.Entry, data_dir: Path | str | None, options: ReadOptions, images: ImageOptions | None
) -> Dataset:
    if entry.name == "demo":
        return make_demo()
    if entry.name == "identities":
        return make_identities()
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
        return load_pictures(entry.name, entry.images, folder, options.images, options.cache)
    if entry.is_single_file:
        path = folder / entry.files[0]
        return replace(_read_alone(file_format(path), path, options), name=entry.name)
    data_format = format_of(folder)
    data_format.split_files(folder)  # refuses a copy without a test file
    return _read(data_format, folder, entry.name, replace(options, label_prefix=entry.label_prefix))


def _of_size(dataset: Dataset, images: ImageOptions | None) -> Dataset:
    if images is None:
        return dataset
    train, test = (
        replace(split, features=of_size(split.features, images.size)) for split in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test)


def _read(data_format: Format, folder: Path, name: str, options: ReadOptions) -> Dataset:
    with errors_named(data_format, folder):
        return replace(_checked(data_format.read(folder, options), data_format, folder), name=name)


def _read_alone(data_format: Format, path: Path, options: ReadOptions) -> Dataset:
    with errors_named(data_format, path):
        return _checked(data_format.read_alone(path, options), data_format, path)


def _checked(dataset: Dataset, data_format: Format, path: Path) -> Dataset:
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"the format {data_format.name!r} returned {dataset!r:.60}: read should return a fedalc.Dataset", path
        )
    return dataset


def format_of(folder: Path) -> Format:
    """Return the format of a user's folder, by the files in it."""
    data_format = folder_format(folder)
    if data_format is None:
        refuse_published(folder)
        wanted = "; or ".join(dict.fromkeys(each.looks_for() for each in reversed(list(formats()))))
        within = sorted(path.name for path in folder.iterdir() if path.is_dir())
        parties = f". With a folder per party ({within[0]}, …), each has such a file" if len(within) > 1 else ""
        raise DataError(f"no train file: expected {wanted}{parties}", folder)
    return data_format


def has_pictures(name_or_path: str | Path) -> bool:
    """Return whether a dataset holds pictures. Does not check that it can be read."""
    if isinstance(name_or_path, str) and catalog.is_known(name_or_path):
        entry = catalog.entry(name_or_path)
        return entry.images is not None or entry.name == "mosaics"
    folder = Path(name_or_path)
    try:
        folder = next(iter(party_folders(folder).values()), folder)
        return folder.is_dir() and next((f.has_pictures for f in formats() if f.recognises(folder)), False)
    except Exception:  # reading it says what is wrong
        return False


def has_difficult_objects(name_or_path: str | Path) -> bool:
    """Return whether objects of a dataset may be marked as difficult, so that `images.difficult` changes its labels."""
    if not isinstance(name_or_path, str) or not catalog.is_known(name_or_path):
        return False
    images = catalog.entry(name_or_path).images
    return images is not None and images.layout == "voc"


def has_parties(name_or_path: str | Path) -> bool:
    """Return whether a dataset has a folder per party. Does not check that it can be read."""
    if isinstance(name_or_path, str) and catalog.is_known(name_or_path):
        return False
    try:
        return bool(party_folders(Path(name_or_path)))
    except Exception:  # reading it says what is wrong
        return False


def load_file(
    path: Path | str,
    feature_count: int | None = None,
    label_count: int | None = None,
    cache: bool = False,
    table: TableSettings | None = None,
) -> Split:
    """Read one file of features. A number of features other than `feature_count` is an error.

    In an ARFF file that does not say which attributes are labels, the last `label_count` are. `table` says which
    columns of a table are features.
    """
    path = Path(path)
    data_format = file_format(path)
    if data_format.has_pictures:
        raise DataError("lists pictures, and features are expected", path)
    with errors_named(data_format, path):
        options = ReadOptions(
            cache, label_count=label_count, feature_count=feature_count, table=table or TableSettings()
        )
        split = data_format.parse(path, options).split
    count = split.features.shape[1]
    if feature_count is not None and feature_count != count:
        raise DataError(f"has {count} features where {feature_count} are expected", path)
    return split


def load_held(
    name_or_path: str | Path,
    data_dir: Path | str | None = None,
    images: ImageOptions | None = None,
    text: TextSettings | TextFeatures | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """Return a party's data and its label names: a file, the train file of a folder, or a known dataset's train split.

    A list of pictures is read together with the other lists of its folder, none of which has to be there.
    """
    path = Path(name_or_path)
    file, data_format = None, None
    if path.is_file():
        file, data_format = path, file_format(path)
    elif path.is_dir() and not catalog.is_known(str(name_or_path)):
        data_format = format_of(path)
        file = data_format.split_files(path, needed=()).get("train")
    if file is not None and data_format is not None:
        options = ReadOptions(
            cache=data_format.has_pictures, images=images or ImageOptions(), text=text or TextSettings()
        )
        with errors_named(data_format, file):
            return data_format.read_held(file, options)
    dataset = load_dataset(name_or_path, data_dir, images=images)
    return dataset.train, dataset.label_names


def held_out_file(folder: Path) -> Path | None:
    """Return the folder's test file, if it has one."""
    files = (each.split_files(folder, needed=()).get("test") for each in formats())
    return next((file for file in files if file is not None), None)
