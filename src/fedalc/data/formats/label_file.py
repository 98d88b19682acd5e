"""`labels.txt`: the names of the labels, for formats whose files have none."""

from __future__ import annotations

import warnings
from pathlib import Path

from fedalc.data.formats.text_stream import LineReader, text_lines
from fedalc.data.label_names import distinct_names
from fedalc.errors import DataError

_FILES = ("labels.txt", "labels.txt.gz", "labels.txt.bz2")


def label_list(folder: Path) -> tuple[str, ...]:
    """Return all names in a folder's labels.txt, as `label_names` does; none without a file."""
    path = _file_in(folder)
    names = [] if path is None else _lines(path)
    while names and not names[-1]:
        names.pop()
    return tuple(name or str(number) for number, name in enumerate(names))


def label_names(folder: Path, count: int) -> tuple[str, ...]:
    """Return the name of each label. Line i names label i, alone or after an identifier and a tab.

    Without a file, labels are called by number.
    """
    path = _file_in(folder)
    if path is None:
        return tuple(map(str, range(count)))
    names = [name or str(number) for number, name in enumerate(_lines(path))]
    while len(names) > count and names[-1] == str(len(names) - 1):  # blank lines at the end
        names.pop()
    if len(names) != count:
        raise DataError(f"has {len(names)} names, one per line, for {count} labels", path)
    return tuple(names)


def _file_in(folder: Path) -> Path | None:
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def _lines(path: Path) -> list[str]:
    with LineReader(path) as reader:
        return [line.split("\t", 1)[-1].strip() for line in text_lines(reader)]


def distinct_label_names(folder: Path, count: int) -> tuple[str, ...]:
    """Return the same names, with a number added to those that repeat.

    Real datasets repeat names. Training uses numbers, so this is a warning and not an error.
    """
    names, changed = distinct_names(label_names(folder, count))
    if changed:
        warnings.warn(
            f"{folder}: {len(changed)} labels share a name with another; fedalc adds the label's number to these "
            f"names, as in {names[changed[0]]!r}",
            stacklevel=4,
        )
    return names
