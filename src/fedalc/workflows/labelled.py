"""Labelled records for a trained model: read from anything that fedalc reads, with the model's own label numbers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from fedalc.data.in_memory import records_to_evaluate
from fedalc.data.load import load_held
from fedalc.data.tables.label_cells import separator_hint
from fedalc.data.tables.records import Records
from fedalc.errors import ConfigError, DataError
from fedalc.models.predicting import Predictor
from fedalc.models.text_parts import from_texts
from fedalc.training.base import inverse_propensity
from fedalc.workflows.inputs import refuse_labels, table_with


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
    *,
    labels: Any = None,
    columns: Mapping[str, Any] | None = None,
) -> Labelled:
    """Return the records of a `Dataset`, a `Split`, a dataset's name, a folder or a file, or records in memory: with
    `labels`, or a frame that has them.

    Of a dataset or folder, its `split` (the test data, with a warning, if it has no validation data); a file is taken
    whole, unless a column names splits. Without `data`, the dataset that the run was trained on. `columns`: settings of
    tables that are other than in training.
    Labels are matched by name; if a file only has numbers, by number.
    """
    table = table_with(TableSettings() if settings is None else settings.table, columns)
    if data is None:
        if labels is not None:
            raise ConfigError("there are labels but no records: give both, evaluate(X, Y)", "labels")
        if settings is None:
            raise ConfigError("this is a model without a run: say which records to take", "data")
        data = settings.dataset
    if isinstance(data, Split | Dataset):
        refuse_labels(labels, f"a {type(data).__name__}")
    if isinstance(data, Split):
        _check_count(model, data.labels.shape[1])
        return Labelled("records", data.features, data.labels)
    if isinstance(data, str | os.PathLike):
        refuse_labels(labels, f"the dataset {os.fspath(data)!r}")
        path = as_path(data, "data")
        own = settings is not None and path.resolve() == Path(settings.dataset).resolve()
        if path.is_file() and not own and not is_known(str(data)):
            return _of_file(model, path, settings, table, split)
        name = data if isinstance(data, str) else path
        data = load_dataset(name, data_dir, images=_images(model, settings), table=table, text=model.text)
    if not isinstance(data, Dataset):
        records = records_to_evaluate(data, labels, table, split)
        if labels is not None and records.in_order and records.label_names == _numbers(len(records.label_names)):
            _check_count(model, len(records.label_names))  # a matrix, whose columns are the model's labels
        return _of_records(model, "records", records)
    if split == "validation" and data.validation is None:
        warnings.warn(
            f"{data.name} has no validation data: taking its test data, whose F1 will look too good", stacklevel=2
        )
        split = "test"
    found = data.splits.get(split)
    if found is None or not len(found):
        raise DataError(f"dataset {data.name}: it has no {split} data; give a file")
    made = _matched(model, f"{data.name} ({split})", found, data.label_names)
    weights = np.ones(made.truth.shape[1])
    weights[_places(model, data.label_names)[0]] = inverse_propensity(data)
    return replace(made, inverse_propensity=weights)


def _check_count(model: Predictor, count: int) -> None:
    if count != len(model.label_names):
        raise DataError(f"{count} labels, but the model has {len(model.label_names)}")


def _of_file(model: Predictor, path: Path, settings: Experiment | None, table: TableSettings, split: str) -> Labelled:
    data_format = file_format(path)
    if not isinstance(data_format, TableFormat):
        return _matched(model, path.name, *load_held(path, images=_images(model, settings)))
    with errors_named(data_format, path):
        records = data_format.read_labelled(path, table, split)
    return _of_records(model, path.name, records)


def _of_records(model: Predictor, name: str, records: Records) -> Labelled:
    """Return the records with the model's own features of their texts."""
    if records.texts is not None and model.text is None:
        raise DataError(f"{name}: holds texts, but this model was trained on {model.feature_count} features")
    features = records.features if records.texts is None else from_texts(list(records.texts), model.text)
    return _matched(model, name, Split(features, records.labels), records.label_names)


def _images(model: Predictor, settings: Experiment | None) -> Any:
    from fedalc.data import ImageOptions

    if model.picture_size is None:
        return None
    if settings is None:
        return ImageOptions(model.picture_size, fit=model.picture_fit)
    images = settings.images
    return ImageOptions(model.picture_size, images.difficult, images.broken, model.picture_fit)


def _matched(model: Predictor, name: str, records: Split, names: tuple[str, ...]) -> Labelled:
    places, unknown = _places(model, names)
    rows, columns = records.labels.nonzero()
    shape = (len(records), len(model.label_names) + len(unknown))
    truth = csr_matrix((np.ones(len(rows), np.float32), (rows, places[columns])), shape=shape)
    occurring = np.unique(truth.indices)
    if len(occurring) and occurring.min() >= len(model.label_names):
        hint = separator_hint(unknown, model.label_names)
        raise DataError(
            f"{name}: none of its labels is one of the model's, such as {model.label_names[0]!r}{hint and f'. {hint}'}"
        )
    return Labelled(name, records.features, truth, unknown)


def _numbers(count: int) -> tuple[str, ...]:
    """The names of labels that have none."""
    return tuple(map(str, range(count)))


def _places(model: Predictor, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the column of each label, and the names of those that the model does not have."""
    known = model.label_names
    if names == known or (len(names) == len(known) and names == _numbers(len(names))):
        return np.arange(len(names)), ()
    number = {name: place for place, name in enumerate(known)}
    unknown = tuple(name for name in names if name not in number)
    number |= {name: len(known) + place for place, name in enumerate(unknown)}
    return np.array([number[name] for name in names], dtype=np.int64), unknown
