"""What a party holds: its instances under its own labels, read from its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedalc.data.dataset import Split
from fedalc.data.images.images import ImageOptions
from fedalc.data.label_names import repeated_name
from fedalc.data.load import load_held
from fedalc.errors import ConfigError, DataError


@dataclass(frozen=True)
class Holding:
    """Only instances that carry one of the labels `names`. `records` are the instances' names, where they have some."""

    split: Split
    names: tuple[str, ...]
    records: tuple[str, ...] | None


def load_holding(
    data: str | Path,
    labels: str | None = None,
    records: Path | None = None,
    data_dir: Path | None = None,
    images: ImageOptions | None = None,
) -> Holding:
    """`labels`: the party's, by name, comma-separated; those in its data, if it does not say. `images`: how pictures
    are read, if it holds pictures."""
    split, names = load_held(data, data_dir, images)
    if (name := repeated_name(names)) is not None:
        raise DataError(f"two labels have the same name, {name!r}, and others know labels by name only", data)
    own = _columns_of(labels, names) if labels else split.labels.getnnz(axis=0).nonzero()[0].tolist()
    held = split.labels[:, own]
    kept = held.getnnz(axis=1) > 0
    if not kept.any():
        raise DataError("no instance here carries one of these labels: nothing to send", data)
    every = None if records is None else _read_records(records, len(split))
    chosen = None if every is None else tuple(every[row] for row in kept.nonzero()[0])
    return Holding(Split(split.features[kept], held[kept]), tuple(names[label] for label in own), chosen)


def _columns_of(wanted: str, names: tuple[str, ...]) -> list[int]:
    place = {name: column for column, name in enumerate(names)}
    asked = [wanted] if wanted in place else [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in asked if name not in place]
    if unknown or not asked:
        known = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise ConfigError(
            f"--labels: there is no label {unknown[0]!r}; there are {known}" if unknown else "--labels: names no label"
        )
    return sorted({place[name] for name in asked})


def _read_records(path: Path, count: int) -> list[str]:
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    if len(names) != count:
        raise DataError(f"has {len(names)} record names, one per line, for {count} instances", path)
    seen: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if name in seen:
            raise DataError(f"the same record as in line {seen[name]}", path, line)
        seen[name] = line
    return names
