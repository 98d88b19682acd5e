"""Labelled records for a trained model: read from anything that fedalc reads, with the model's own label numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.core.arguments import as_path
from fedalc.data import Dataset, Split, load_dataset
from fedalc.data.catalog.datasets import is_known
from fedalc.data.formats import errors_named, file_format
from fedalc.data.formats.table import TableFormat
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.load import load_held
from fedalc.errors import ConfigError, DataError
from fedalc.models.predicting import Predictor
from fedalc.models.text_parts import from_texts
from fedalc.training.base import inverse_propensity


@dataclass(frozen=True, eq=False)
class Labelled:
    """Records and their labels. `truth` has a column for each label of the model, then one for each of `unknown`."""

    name: str
    features: Any
    truth: csr_matrix
    unknown: tuple[str, ...] = ()
    inverse_propensity: np.ndarray | None = None
    """1 / p of each column, if the training data is there too."""

    def __len__(self) -> int:
        return int(self.truth.shape[0])


def labelled(
    model: Predictor,
    data: Any = None,
    settings: Experiment | None = None,
    data_dir: Path | str | None = None,
    split: str = "test",
) -> Labelled:
    """Return the records of a `Dataset`, a `Split`, a dataset's name, a folder or a file.

    Of a dataset or folder, its `split` (the test data, with a warning, if it has no validation data); a file is taken
    whole. Without `data`, the dataset that the run was trained on.
    Labels are matched by name; if a file only has numbers, by number.
    """
    if data is None:
        if settings is None:
            raise ConfigError("this is a model without a run: say which records to take", "data")
        data = settings.dataset
    if isinstance(data, Split):
        if data.labels.shape[1] != len(model.label_names):
            raise DataError(f"{data.labels.shape[1]} labels, but the model has {len(model.label_names)}")
        return Labelled("records", data.features, data.labels)
    if not isinstance(data, Dataset):
        path = as_path(data, "data")
        own = settings is not None and path.resolve() == Path(settings.dataset).resolve()
        if path.is_file() and not own and not is_known(str(data)):
            return _of_file(model, path, settings)
        table = None if settings is None else settings.table
        data = load_dataset(data, data_dir, images=_images(model, settings), table=table, text=model.text)
    if split == "validation" and data.validation is None:
        warnings.warn(
            f"{data.name} has no validation data: taking its test data, whose F1 will look too good", stacklevel=2
        )
        split = "test"
    records = data.splits.get(split)
    if records is None or not len(records):
        raise DataError(f"dataset {data.name}: it has no {split} data; give a file")
    found = _matched(model, f"{data.name} ({split})", records, data.label_names)
    weights = np.ones(found.truth.shape[1])
    weights[_places(model, data.label_names)[0]] = inverse_propensity(data)
    return Labelled(found.name, found.features, found.truth, found.unknown, weights)


def _of_file(model: Predictor, path: Path, settings: Experiment | None) -> Labelled:
    data_format = file_format(path)
    if not isinstance(data_format, TableFormat):
        return _matched(model, path.name, *load_held(path, images=_images(model, settings)))
    with errors_named(data_format, path):
        records = data_format.read_labelled(path, TableSettings() if settings is None else settings.table)
    if records.texts is not None and model.text is None:
        raise DataError(f"holds texts, but this model was trained on {model.feature_count} features", path)
    features = records.features if records.texts is None else from_texts(list(records.texts), model.text)
    return _matched(model, path.name, Split(features, records.labels), records.label_names)


def _images(model: Predictor, settings: Experiment | None) -> Any:
    from fedalc.data import ImageOptions

    if model.picture_size is None:
        return None
    if settings is None:
        return ImageOptions(model.picture_size)
    return ImageOptions(model.picture_size, settings.images.difficult, settings.images.broken)


def _matched(model: Predictor, name: str, records: Split, names: tuple[str, ...]) -> Labelled:
    places, unknown = _places(model, names)
    rows, columns = records.labels.nonzero()
    shape = (len(records), len(model.label_names) + len(unknown))
    truth = csr_matrix((np.ones(len(rows), np.float32), (rows, places[columns])), shape=shape)
    occurring = np.unique(truth.indices)
    if len(occurring) and occurring.min() >= len(model.label_names):
        raise DataError(f"{name}: none of its labels is one of the model's, such as {model.label_names[0]!r}")
    return Labelled(name, records.features, truth, unknown)


def _places(model: Predictor, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the column of each label, and the names of those that the model does not have."""
    known = model.label_names
    if names == known or (len(names) == len(known) and names == tuple(map(str, range(len(names))))):
        return np.arange(len(names)), ()
    number = {name: place for place, name in enumerate(known)}
    unknown = tuple(name for name in names if name not in number)
    number |= {name: len(known) + place for place, name in enumerate(unknown)}
    return np.array([number[name] for name in names], dtype=np.int64), unknown
