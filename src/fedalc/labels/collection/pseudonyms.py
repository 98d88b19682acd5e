"""Convert between pseudonyms and label names. This needs the parties' key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedalc.core.tensor_folder import load_facts
from fedalc.data.label_names import repeated_name
from fedalc.data.text.keyed import KeyedVocabularyText
from fedalc.errors import DataError, FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.holding import read_lines
from fedalc.labels.collection.secret_rows import turned
from fedalc.models.trained import TrainedModel
from fedalc.runs.folder import CENSUS


def read_names(path: Path) -> list[str]:
    """Read label names, one per line, each alone or after an identifier and a tab, as in labels.txt."""
    names = [line.split("\t", 1)[-1].strip() for line in read_lines(path)]
    names = [name for name in names if name]
    if not names:
        raise DataError("has no label names", path)
    if (name := repeated_name(names)) is not None:
        raise DataError(f"has the name {name!r} twice", path)
    return names


def run_id_of(run: Path) -> str:
    """Return the run id of a deployed run, or "" if it has none (fedalc 0.1)."""
    folder = run if (run / CENSUS).is_dir() else run.parent
    return str(load_facts(folder / CENSUS).get("run", "")) if (folder / CENSUS).is_dir() else ""


def pseudonyms(hasher: Hasher, names: Sequence[str]) -> list[str]:
    """Return the pseudonym of each label in hex, as the server writes it."""
    return [row.tobytes().hex() for row in hasher.labels(names)]


def terms_key(hasher: Hasher) -> bytes:
    """Return the key of a run's terms (`data.text.keyed`). Only holders of the parties' key can compute it."""
    return hasher.secret("terms")


def named(model: TrainedModel, hasher: Hasher, names: Sequence[str]) -> tuple[TrainedModel, int]:
    """Return the model with its pseudonyms replaced by these names, and how many labels got a name. Secret rows are
    turned, and the key of keyed terms is put in, so that the model can predict."""
    locked = isinstance(model.text, KeyedVocabularyText) and model.text.is_locked
    if isinstance(model.text, KeyedVocabularyText) and locked:
        model = replace(model, text=model.text.unlocked(terms_key(hasher)))
    name_of = dict(zip(pseudonyms(hasher, names), names, strict=True))
    labels_named = sum(label in name_of for label in model.label_names)
    if not labels_named and not locked:  # names that parties share are there already
        raise FedalcError(
            "none of these names belongs to a label of the model: check the key, the run id, the algorithm and the "
            "names"
        )
    labels = tuple(name_of.get(label, label) for label in model.label_names)
    if model.secret_rows:
        rows = turned(model.model.W, hasher)
        model = replace(model, model=replace(model.model, W=rows), secret_rows=False)
    return replace(model, label_names=labels), labels_named
