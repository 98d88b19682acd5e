"""Read a party's instances and labels from its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedalc.data.dataset import Split
from fedalc.data.images.images import ImageOptions
from fedalc.data.label_names import repeated_name
from fedalc.data.load import load_held
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.errors import ConfigError, DataError


@dataclass(frozen=True)
class Holding:
    """A party's instances that carry at least one of its labels `names`. `records` are their record names, if given."""

    split: Split
    names: tuple[str, ...]
    records: tuple[str, ...] | None


def load_holding(
    data: str | Path,
    labels: str | None = None,
    records: Path | None = None,
    data_dir: Path | None = None,
    images: ImageOptions | None = None,
    text: TextSettings | TextFeatures | None = None,
    least_records: int = 0,
) -> Holding:
    """Load a party's data.

    `labels` are the party's label names, comma-separated (default: all that have a record). `records` is a file of
    record names, one per line. `images` says how to read pictures, `text` how texts become features. Labels of fewer
    than `least_records` records are left out.
    """
    split, names = load_held(data, data_dir, images, text)
    if (name := repeated_name(names)) is not None:
        raise DataError(f"two labels have the same name, {name!r}; other parties know labels only by name", data)
    counts = split.labels.getnnz(axis=0)
    wanted = _columns_of(labels, names) if labels else counts.nonzero()[0].tolist()
    columns = [column for column in wanted if counts[column] >= least_records]
    if wanted and not columns:
        raise DataError(f"nothing to send: no label has {least_records:,} records (--least-records)", data)
    label_matrix = split.labels[:, columns]
    labelled = label_matrix.getnnz(axis=1) > 0
    if not labelled.any():
        raise DataError("nothing to send: no instance carries one of these labels", data)
    record_names = None
    if records is not None:
        every_record = _read_records(records, len(split))
        record_names = tuple(every_record[row] for row in labelled.nonzero()[0])
    label_names = tuple(names[column] for column in columns)
    held = replace(split, labels=label_matrix, users=None, parties=None, places=None).rows(labelled)
    return Holding(held, label_names, record_names)


def _columns_of(wanted: str, names: tuple[str, ...]) -> list[int]:
    column_of = {name: column for column, name in enumerate(names)}
    chosen = [wanted] if wanted in column_of else [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in column_of]
    if unknown:
        known = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise ConfigError(f"--labels: there is no label {unknown[0]!r}; the labels are {known}")
    if not chosen:
        raise ConfigError("--labels: give at least one label name")
    return sorted({column_of[name] for name in chosen})


def _read_records(path: Path, count: int) -> list[str]:
    names = read_lines(path)
    if len(names) != count:
        raise DataError(f"has {len(names)} record names (one per line) for {count} instances", path)
    line_of: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if name in line_of:
            raise DataError(f"the same record as in line {line_of[name]}", path, line)
        line_of[name] = line
    return names


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None
