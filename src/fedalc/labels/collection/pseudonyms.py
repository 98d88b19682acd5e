"""From pseudonyms to names and back: only who has the parties' key can do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedalc.core.tensor_folder import load_facts
from fedalc.data.label_names import repeated_name
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.models.trained import TrainedModel
from fedalc.runs.folder import CENSUS


def read_names(path: Path) -> list[str]:
    """One label's name per line, alone or after an identifier and a tab, as in labels.txt."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    names = [line.split("\t", 1)[-1].strip() for line in lines]
    names = [name for name in names if name]
    if not names:
        raise DataError("names no label", path)
    if (name := repeated_name(names)) is not None:
        raise DataError(f"the name {name!r} is there twice", path)
    return names


def run_id_of(run: Path) -> str:
    """The run id that a deployed run's labels were hashed under; none, if it began before there were any."""
    folder = run if (run / CENSUS).is_dir() else run.parent
    return str(load_facts(folder / CENSUS).get("run", "")) if (folder / CENSUS).is_dir() else ""


def pseudonyms(hasher: Hasher, names: Sequence[str]) -> list[str]:
    """Of each label, as the server writes it."""
    return [row.tobytes().hex() for row in hasher.labels(names)]


def named(model: TrainedModel, hasher: Hasher, names: Sequence[str]) -> tuple[TrainedModel, int]:
    """The model with these names where it has their pseudonyms, and how many labels got one."""
    name_of = dict(zip(pseudonyms(hasher, names), names, strict=True))
    found = sum(label in name_of for label in model.label_names)
    if not found:
        raise FedalcError(
            "none of these names belongs to a label of the model: another key, another run id, another algorithm or "
            "other names?"
        )
    labels = tuple(name_of.get(label, label) for label in model.label_names)
    return replace(model, label_names=labels), found
