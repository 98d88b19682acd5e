"""Check arguments of the Python API, so that errors are clear and early."""

from __future__ import annotations

import math
import operator
import os
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.core.atomic_files import previous
from fedalc.errors import ConfigError, DataError, FedalcError


def as_path(value: Any, name: str) -> Path:
    """Return a path from a string or path object."""
    try:
        return Path(os.fspath(value))
    except TypeError:
        raise ConfigError(f"expected a path, found {value!r:.60}", name) from None


def as_count(value: Any, name: str) -> int:
    """Return a whole number of at least 1. Accepts numpy integers, refuses 2.0 and True."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool | np.bool_):
        raise ConfigError(f"expected a whole number from 1 on, found {value!r:.60}", name)
    return number


def as_flag(value: Any, name: str) -> bool:
    """Return True or False. Refuses "yes" and 1, which may be meant for another argument."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"expected True or False, found {value!r:.60}", name)
    return bool(value)


def as_positive(value: Any, name: str) -> float:
    """Return a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ConfigError(f"expected a number above 0, found {value!r:.60}", name)
    return float(value)


def model_folder(value: Any) -> Path:
    """Return the folder to save a model in: a new or empty folder, or that of an older model, which is replaced."""
    from fedalc.core.tensor_folder import FACTS  # loads torch

    folder = as_path(value, "folder")
    try:
        if (before := previous(folder)).exists():
            raise FedalcError(f"{before}: saving needs this name temporarily; rename or remove it")
        if folder.is_dir():
            others = [path.name for path in folder.iterdir()]
            if others and FACTS not in others:
                raise FedalcError(f"{folder}: contains other files, such as {min(others)}; give a new folder")
        elif folder.exists():
            raise FedalcError(f"{folder}: is a file, but a model is saved as a folder")
    except OSError as error:
        raise FedalcError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return folder


def check_scores(scores: np.ndarray) -> None:
    """Refuse scores that are not numbers. Finite features can cause them if their products overflow."""
    wrong = np.flatnonzero(np.isnan(scores).any(axis=1))
    if len(wrong):
        raise DataError(
            f"features: row {wrong[0]} has values so large that its scores are not numbers; scale the features like "
            "those the model was trained on"
        )
