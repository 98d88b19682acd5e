"""The data of a plan's runs: whether it is there, and how it is divided among clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedalc.data.catalog import entry, is_known
from fedalc.data.load import dataset_dir, find_split_files, load_dataset
from fedalc.errors import DataError
from fedalc.reproduction.plan import Plan


def absent_data(plan: Plan, data_dir: Path | None) -> str | None:
    """What is missing and how to get it; None if the files are there. They are not read."""
    for name in dict.fromkeys(job.settings.dataset for job in plan.jobs):
        if name == "demo":
            continue
        folder = dataset_dir(entry(name), data_dir) if is_known(name) else Path(name)
        try:
            if folder.is_dir():
                find_split_files(folder)
                continue
            why = "no such folder"
        except DataError as error:
            why = str(error)
        hint = f"; `fedalc data info {name}` says where to get it" if is_known(name) else ""
        return f"dataset {name!r} is not in {folder}: {why}{hint}"
    return None


def client_sizes(plan: Plan, data_dir: Path | None) -> np.ndarray | None:
    """Instances of each client; None where no figure wants them or the data is not here."""
    if "clients" not in plan.table.figures or not plan.jobs or absent_data(plan, data_dir) is not None:
        return None
    return np.asarray(load_dataset(plan.jobs[0].settings.dataset, data_dir).train.labels.getnnz(axis=0))
