"""Errors meant for a person: what was wrong, where, and what to do. The command line prints them and exits with 2."""

from __future__ import annotations

from pathlib import Path


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


class Locked(FedalcError):
    """Another process is writing to this run folder."""


class Interrupted(FedalcError):
    """The user stopped the run; its checkpoint is written."""
