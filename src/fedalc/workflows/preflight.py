"""Checks before a run, so that a run that cannot work fails at once with a clear message."""

from __future__ import annotations

import numpy as np
import psutil

from fedalc.config.experiment import Experiment
from fedalc.config.facts import encoder_facts
from fedalc.core import distributed
from fedalc.core.registry import ENCODERS, ORACLES
from fedalc.data import Dataset, Images
from fedalc.data.text.agreed import needs_counts
from fedalc.errors import ConfigError, either
from fedalc.methods import METHODS
from fedalc.models.encoders import encoder_shape, picture_bytes
from fedalc.models.sharding import shard_of
from fedalc.training.settings_for_data import equations


def check_processes(settings: Experiment) -> None:
    """Under torchrun: check that several processes can share the work."""
    if distributed.started_as().count == 1:
        return
    if settings.method in ORACLES:
        raise ConfigError(f"{settings.method} runs in one process: start it without torchrun", "method")
    if settings.engine != "fused":
        raise ConfigError(
            f"{settings.engine} runs in one process: start it without torchrun, or use fused, which splits the work "
            "among processes",
            "engine",
        )
    if settings.device not in ("cpu", "cuda"):
        raise ConfigError(f"{settings.device} is a single device; with cuda each process uses its own", "device")


def check_kind(settings: Experiment, data: Dataset) -> None:
    """Check that the settings fit the dataset: features or pictures, and the size of the pictures."""
    features = data.train.features
    refuse_other_kind(settings, data.name, isinstance(features, Images))
    if isinstance(features, Images) and features.size != settings.images.size:
        raise ConfigError(
            f"is {settings.images.size}, but the pictures of {data.name} have {features.size} pixels a side",
            "images.size",
        )


def refuse_other_kind(settings: Experiment, dataset: str, pictures: bool) -> None:
    """Refuse an encoder of pictures for a dataset without pictures, and vice versa."""
    if pictures and settings.method in ORACLES:
        raise ConfigError(f"{settings.method} is for sparse features, but {dataset} has pictures", "method")
    if pictures != settings.encoder.is_image and settings.method not in ORACLES:
        fitting = " or ".join(name for name in ENCODERS if encoder_facts(name).pictures == pictures)
        has = "pictures" if pictures else "no pictures"
        raise ConfigError(f"{settings.encoder.name} does not fit: {dataset} has {has}: use {fitting}", "encoder.name")


def check_records(settings: Experiment, data: Dataset) -> None:
    """Refuse persons with records of zeros: every such record would be accepted as theirs."""
    if settings.task != "verification" or isinstance(data.train.features, Images):
        return
    empty = np.flatnonzero(np.asarray(abs(data.train.features).sum(axis=1)).ravel() == 0)
    if len(empty):
        raise ConfigError(
            f"{len(empty)} training records have no number other than 0, the first is record {empty[0]}: every such "
            "record would be accepted; leave them out",
            "dataset",
        )


def check_width(settings: Experiment, data: Dataset) -> None:
    """Refuse more features than a method can take."""
    widest = None if settings.method in ORACLES else METHODS[settings.method].widest
    if widest is not None and data.feature_count > widest:
        network = either("--text-encoder FOLDER", "text={'encoder': FOLDER}")
        raise ConfigError(
            f"{settings.method} is for embeddings of at most {widest:,} numbers, and records of {data.name} have "
            f"{data.feature_count:,} features; use fedncm"
            + (f", or a sentence encoder ({network})" if data.text is not None else ""),
            "method",
        )


def check_memory(settings: Experiment, data: Dataset) -> None:
    """Refuse a model that does not fit into memory, before the system kills the process."""
    check_width(settings, data)
    has = psutil.virtual_memory().total // distributed.here().local_count
    if settings.method in ORACLES:
        needed = ORACLES[settings.method].memory(settings, data)
        if needed > has:
            raise ConfigError(
                f"{settings.method} on {data.feature_count} features and {data.label_count} labels needs "
                f"{needed / 1e9:.0f} GB, this machine has {has / 1e9:.0f}; choose another method",
                "method",
            )
        return
    shape = encoder_shape(data.feature_count, settings.encoder)
    theta = sum(parameter.numel() for parameter in shape.parameters())
    sub_models = METHODS[settings.method].sub_models(settings)
    number = 8 if settings.dtype == "float64" else 4
    method = METHODS[settings.method]
    # Gradient, optimiser, average, a copy. A tree is solved for cluster by cluster.
    copies = 2 if method.sums_by_cluster else 10 if settings.server.optimizer == "cg" else 6
    shard = shard_of(settings, data.label_count)
    rows = data.label_count if shard is None else shard.own.stop - shard.own.start
    needed = number * sub_models * (copies * theta + shape.drawn + 4 * rows * settings.encoder.dim)
    if method.one_round and method.sends_gram and not method.sums_by_cluster:
        needed += equations(settings, data, shape.width) ** 2 * (number + 28)  # and a solution in double precision
    if settings.device == "cpu" and needed > has:
        fewer = ", and so do fewer text.buckets" if data.text is not None else ""
        field, hint = (
            ("method", f"; fedalc-exact needs less{fewer}") if METHODS[settings.method].one_round else ("encoder", "")
        )
        raise ConfigError(
            f"training needs {needed / 1e9:.0f} GB for the model, this machine has {has / 1e9:.0f}{hint}", field
        )
    # The backward pass needs about half of all layer outputs.
    pictures = sub_models * settings.block_rows * picture_bytes(shape, settings.images.size) // 2
    if settings.device == "cpu" and needed + pictures > has:
        raise ConfigError(
            f"{settings.block_rows} pictures at a time need {pictures / 1e9:.0f} GB, this machine has {has / 1e9:.0f}; "
            "use a smaller number",
            "block_rows",
        )


def check_document_counts(settings: Experiment, data: Dataset) -> None:
    """Refuse differential privacy beside numbers of documents that parties share, or that are in the model, without
    noise."""
    counted = data.text is not None and needs_counts(data.text.settings)
    if counted and (data.train.parties is not None or settings.privacy.covers_records):
        refuse_exact_numbers(settings)


def refuse_exact_numbers(settings: Experiment) -> None:
    """The same for parties that do share numbers of documents."""
    if settings.privacy.mechanism is not None and settings.text.epsilon is None:
        raise ConfigError(
            "ε does not cover the numbers of documents that make a vocabulary or idf; use text.kind=hashing with "
            "text.idf=false, which needs none, or with text.epsilon, which adds noise to them",
            "privacy",
        )
