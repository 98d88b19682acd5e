"""Data formats, one file each. `register_format` adds one from outside the package.

A folder, or a file, is read by the first format that recognises it. Registered formats are asked before the built-in
ones, the newest first; XML-repository text is asked last, because any text file could be meant to be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from fedalc.core.registry import FORMATS, registering
from fedalc.data.cache import Parsed
from fedalc.data.formats.base import Format, ReadOptions, errors_named
from fedalc.errors import ConfigError, DataError

__all__ = [
    "Format",
    "Parsed",
    "ReadOptions",
    "check_format_class",
    "errors_named",
    "file_format",
    "folder_format",
    "formats",
    "register_format",
]

T = TypeVar("T")


def check_format_class(item: Any) -> type[Format]:
    if not (isinstance(item, type) and issubclass(item, Format)):
        raise ConfigError(f"{item!r:.60} is not a format: register a class that extends fedalc.data.formats.Format")
    return item


register_format: Callable[[str], Callable[[T], T]] = registering(FORMATS)


def formats() -> Iterator[Format]:
    """Return one object of each format, in the order in which they are asked."""
    for name in reversed(list(FORMATS)):
        data_format: Format = FORMATS[name]()
        data_format.name = name
        yield data_format


def file_format(path: Path) -> Format:
    """Return the first format that recognises a file."""
    for data_format in formats():
        with errors_named(data_format, path):
            if data_format.recognises_file(path):
                return data_format
    raise DataError(f"is in none of the formats that fedalc reads: {', '.join(FORMATS)}", path)


def folder_format(folder: Path) -> Format | None:
    """Return the format of a folder; None if no format recognises it. Two formats with different files are an error.

    A registered format of whole folders, which names no files, wins over the built-in ones."""
    first: Format | None = None
    for data_format in formats():
        with errors_named(data_format, folder):
            if not data_format.recognises(folder):
                continue
            files = data_format.candidates(folder, "train")
        if first is None:
            first, its_files = data_format, files
        elif files != its_files and (its_files or type(first).__module__.startswith("fedalc.")):
            both = " and ".join(_in_files(*each) for each in ((first, its_files), (data_format, files)))
            raise DataError(f"has {both}: leave one of them, or move each to a folder of its own", folder)
    return first


def _in_files(data_format: Format, files: list[Path]) -> str:
    return data_format.name + (f" in {', '.join(path.name for path in files)}" if files else "")
