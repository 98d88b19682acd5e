"""The data of a plan's runs: whether it is available, and how many instances each client has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedalc.data.catalog.datasets import entry, is_known
from fedalc.data.catalog.locate import dataset_dir, presence
from fedalc.data.load import format_of, has_pictures, load_dataset
from fedalc.errors import DataError

if TYPE_CHECKING:
    from fedalc.reproduction.plan import Plan


def absent_data(plan: Plan, data_dir: Path | None) -> str | None:
    """Return what is missing and how to get it, or None if the files or their archives exist. Does not read them."""
    for name in dict.fromkeys(job.settings.dataset for job in plan.jobs):
        if is_known(name) and presence(entry(name), data_dir) != "no":
            continue
        folder = dataset_dir(entry(name), data_dir) if is_known(name) else Path(name)
        why = _what_is_wrong(folder, is_known(name) and has_pictures(name))
        if why is not None:
            hint = f"; `fedalc data info {name}` says how to get it" if is_known(name) else ""
            return f"dataset {name!r} is not in {folder}: {why}{hint}"
    return None


def _what_is_wrong(folder: Path, pictures: bool) -> str | None:
    if not folder.is_dir():
        return "no such folder"
    if pictures:
        return "the folder has neither its files nor an archive of them"
    try:
        format_of(folder).split_files(folder)
    except DataError as error:
        return str(error)
    return None


def client_sizes(plan: Plan, data_dir: Path | None) -> np.ndarray | None:
    """Return the instances per client, or None if no figure needs them or the data is missing."""
    from fedalc.workflows.train import image_options

    if "clients" not in plan.table.figures or not plan.jobs or absent_data(plan, data_dir) is not None:
        return None
    settings = plan.jobs[0].settings
    dataset = load_dataset(settings.dataset, data_dir, images=image_options(settings))
    return np.asarray(dataset.train.labels.getnnz(axis=0))
