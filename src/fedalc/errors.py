"""Errors meant for a person: what was wrong, where, and what to do. The command line prints them and exits with 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class FedalcError(Exception):
    """An error that the user can fix. Its message is complete: no traceback is needed."""


class DataError(FedalcError):
    """A dataset that cannot be read as it stands. Says the file and, where there is one, the line."""

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)


class ConfigError(FedalcError):
    """A setting that is unknown, out of range, or at odds with another. Says the field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}")


class NeedsSecureSums(ConfigError):
    """Settings that are only possible with secure sums (`secure_sums.on`)."""


def either(option: str, python: str) -> str:
    """Return what to write on the command line and in Python, for a message that both may show.

    >>> either("--no-tune", "tune=False")
    '--no-tune, in Python tune=False'
    """
    return f"{option}, in Python {python}"


def either_setting(name: str, value: Any) -> str:
    """Return how to give a setting on the command line and in Python.

    >>> either_setting("table.header", False)
    "--set table.header=false, in Python table={'header': False}"
    """
    section, _, field = name.partition(".")
    written = str(value).lower() if isinstance(value, bool) else value
    return either(f"--set {name}={written}", f"{section}={{{field!r}: {value!r}}}")


NO_SEARCH = either("--no-tune", "tune=False")
OVERWRITE = either("--overwrite", "overwrite=True")
OTHER_FOLDER = f"choose another folder ({either('--name', 'folder=')})"


def resuming(folder: Path) -> str:
    """Return how to resume the run in a folder."""
    return either(f"fedalc train --resume {folder}", "resume=True")


class Locked(FedalcError):
    """Another process is writing to this run folder."""


class Interrupted(FedalcError):
    """The user stopped the run; its checkpoint is written."""
