"""`labels.txt`: the names of the labels, for formats whose files have none."""

from __future__ import annotations

import warnings
from pathlib import Path

from fedalc.data.formats.text_stream import LineReader
from fedalc.data.label_names import distinct_names
from fedalc.errors import DataError

_FILES = ("labels.txt", "labels.txt.gz", "labels.txt.bz2")


def label_names(folder: Path, count: int) -> tuple[str, ...]:
    """Return the name of each label. Line i names label i, alone or after an identifier and a tab.

    Without a file, labels are called by number.
    """
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        return tuple(map(str, range(count)))
    names: list[str] = []
    with LineReader(path) as reader:
        while (line := reader.next_line()) is not None:
            try:
                text = line.decode("utf-8").strip("\r\n")
            except UnicodeDecodeError:
                raise DataError("is not UTF-8 text", path, reader.line) from None
            names.append(text.split("\t", 1)[-1].strip() or str(len(names)))
    while len(names) > count and names[-1] == str(len(names) - 1):  # blank lines at the end
        names.pop()
    if len(names) != count:
        raise DataError(f"has {len(names)} names, one per line, for {count} labels", path)
    return tuple(names)


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
