"""What callers of the Python API give as data and settings, in the form that a training takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.nn import Module

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.data import Dataset, ImageOptions, Images, load_dataset
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.in_memory import check_has_labels, dataset_from
from fedalc.data.pretrained.apply import with_features
from fedalc.data.pretrained.pictures import PictureFeatures, Views
from fedalc.errors import ConfigError
from fedalc.models.encoders import register_module

NOT_GIVEN: Any = object()
"""The first argument of `train()`: a variable that happens to be None is a mistake, not a wish for the demo."""


def given_data(
    first: Any, labels: Any, test: Any, keys: dict[str, Any], data: Dataset | None, call: str = "train("
) -> Dataset | None:
    """Return the dataset that the first argument is or describes. A name or path goes into `keys`. `call`: what
    messages tell to call."""
    if first is None and labels is None and data is None and "dataset" not in keys:
        raise ConfigError(
            f'expected data, found None. Give {call}X, Y), a data frame, a path, or a name: fedalc.{call}"demo")',
            "data",
        )
    first = None if first is NOT_GIVEN else first
    if test is not None and (first is None or isinstance(first, str | os.PathLike | Dataset)):
        raise ConfigError(f"goes with records in memory: {call}X, Y, test=(X_test, Y_test))", "test")
    if first is None:
        if labels is not None:
            raise ConfigError(f"there are labels but no records: give both, {call}X, Y)", "labels")
        return data
    if data is not None or "dataset" in keys:
        raise ConfigError("the data is the first argument; do not give it again", "dataset" if data is None else "data")
    if isinstance(first, str | os.PathLike):
        refuse_labels(labels, f"the dataset {os.fspath(first)!r}")
        keys["dataset"] = os.fspath(first)
        return None
    if isinstance(first, Dataset):
        refuse_labels(labels, "a Dataset")
        return first
    if labels is None:
        check_has_labels(first, f"{call}X, Y)")
    return dataset_from(first, labels, test=test, table=_section(keys, "table"), text=_section(keys, "text"))


def _section(keys: Mapping[str, Any], name: str) -> Any:
    """Return a section of the settings, checked, from which data in memory is read."""
    return getattr(experiment({name: keys.get(name, {})}), name)


def table_with(table: TableSettings, changes: Mapping[str, Any] | None) -> TableSettings:
    """Return the settings of tables with these changes, checked."""
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(f"expected a dict of settings, found {changes!r:.60}", "table")
    return experiment({"table": {**table.model_dump(), **changes}}).table if changes else table


def refuse_labels(labels: Any, what: str) -> None:
    if labels is not None:
        raise ConfigError(f"{what} has labels already: leave the second argument out", "labels")


def own_data(keys: dict[str, Any], data: Dataset | None = None) -> Dataset | None:
    """Return the dataset that the caller built, given as `data` or `dataset`; None if `dataset` is a name or folder.

    A path in `keys` becomes a string, as settings need it.
    """
    if data is not None and not isinstance(data, Dataset):
        raise ConfigError(f"expected a fedalc.Dataset, found {data!r:.60}; names and folders are for dataset=", "data")
    given = keys.get("dataset")
    if isinstance(given, os.PathLike):
        keys["dataset"] = os.fspath(given)
    if not isinstance(given, Dataset):
        return data
    if data is not None:
        raise ConfigError("give one of dataset and data, not both", "data")
    del keys["dataset"]
    return given


def register_own_encoder(keys: dict[str, Any]) -> None:
    """Let `encoder` be a name, or a torch.nn.Module: register it, and put the settings that ask for it in its place."""
    if isinstance(encoder := keys.get("encoder"), str):
        keys["encoder"] = {"name": encoder}
    if isinstance(encoder, Module):
        keys["encoder"] = register_module(encoder)


def load_data(settings: Experiment, data_dir: Path | str | None, options: ImageOptions) -> Dataset:
    """Load the data of an experiment, with the features of a frozen network in place of pictures, if it has one."""
    data = load_dataset(settings.dataset, data_dir, images=options, table=settings.table, text=settings.text)
    return as_features(settings, data)


def as_features(settings: Experiment, data: Dataset) -> Dataset:
    """Return the data with the features of the frozen network that the settings name, if they do. Refuse a network
    for other records than these."""
    if settings.text.encoder is not None and data.text is None:
        has = "pictures" if isinstance(data.train.features, Images) else "no texts"
        raise ConfigError(f"{settings.text.encoder}: is a network for texts, but {data.name} has {has}", "text.encoder")
    if not settings.encoder.frozen or data.pictures is not None:
        return data
    if not isinstance(data.train.features, Images):
        raise ConfigError(f"is a network for pictures, but {data.name} has no pictures", "encoder.pretrained")
    return with_features(data, frozen_pictures(settings))


def frozen_pictures(settings: Experiment) -> PictureFeatures:
    """Return what turns pictures into features, and check that its weights are those that the settings name."""
    encoder, sources = settings.encoder, settings.encoder.sources
    pictures = PictureFeatures.open(sources, views_of(settings), settings.device)
    if encoder.weights is not None and encoder.weights != pictures.digest:
        raise ConfigError(
            f"{', '.join(sources)}: has other weights (digest {pictures.digest[:12]}…) than those that the settings "
            f"name ({encoder.weights[:12]}…)",
            "encoder.weights",
        )
    return pictures


def views_of(settings: Experiment) -> Views:
    """Return how pictures are shown to a frozen network."""
    images = settings.images
    return Views(images.size, images.fit, images.views, images.mean, images.deviation)


def describe(keys: dict[str, Any], data: Dataset) -> None:
    """Add the settings that follow from the data: its name, its parties and the size of its pictures."""
    keys.setdefault("dataset", data.name)
    if data.train.parties is not None:
        keys.setdefault("clients", "parties")
    images = keys.get("images", {})
    if isinstance(data.train.features, Images) and isinstance(images, Mapping):
        keys["images"] = {"size": data.train.features.size, **images}
