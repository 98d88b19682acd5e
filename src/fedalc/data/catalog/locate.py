"""Find the files of the datasets in the catalog."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from fedalc.core.arguments import as_path
from fedalc.data.catalog.datasets import ENTRIES, Entry
from fedalc.data.formats import folder_format
from fedalc.data.images.load import pictures_at
from fedalc.errors import DataError, either


def data_root(data_dir: Path | str | None = None) -> Path:
    """Return the folder that holds a folder for each dataset."""
    return as_path(data_dir if data_dir is not None else os.environ.get("FEDALC_DATA") or "data", "data_dir")


def dataset_dir(entry: Entry, data_dir: Path | str | None = None) -> Path:
    """Return the folder of a dataset of the catalog."""
    return data_root(data_dir) / entry.folder


def presence(
    entry: Entry, data_dir: Path | str | None = None
) -> Literal["embedded", "generated", "yes", "packed", "no"]:
    """Return whether a dataset's files are in its folder. Reads neither the files nor archives of them."""
    if entry.like is not None:
        return "generated"
    if entry.is_embedded:
        return "embedded"
    folder = dataset_dir(entry, data_dir)
    if entry.images is not None:
        return pictures_at(entry.images, folder)
    if entry.is_single_file:
        return "yes" if (folder / entry.files[0]).is_file() else "no"
    try:
        data_format = folder_format(folder) if folder.is_dir() else None
        return "yes" if data_format is not None and data_format.split_files(folder) else "no"
    except DataError:
        return "no"


def refuse_published(folder: Path) -> None:
    """Refuse a user's folder that holds a picture dataset of the catalog: its name says how to split it."""
    path = folder.resolve()
    states = [(entry, pictures_at(entry.images, folder)) for entry in ENTRIES if entry.images is not None]
    if names := " or ".join(entry.name for entry, state in states if state != "no" and entry.folder == path.name):
        raise DataError(
            f"load it by name ({names}), which says how to split it, from the folder "
            f"{either(f'--data-dir {path.parent}', 'data_dir=')}",
            path,
        )
    if unpacked := [entry for entry, state in states if state == "yes"]:
        names = " or ".join(entry.name for entry in unpacked)
        folders = " or ".join(dict.fromkeys(f"DIR/{entry.folder}" for entry in unpacked))
        raise DataError(
            f"looks like {names}. Load it by that name: move or link the folder to {folders}, and give "
            + either("--data-dir DIR", "data_dir=DIR"),
            folder,
        )
