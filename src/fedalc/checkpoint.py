"""Saving tensors and facts so that a run can go on where it stopped, or a model be used later. No pickle anywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedalc.errors import FedalcError

TENSORS, FACTS = "tensors.safetensors", "facts.json"


def save_folder(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts as one folder that appears whole, taking the place of an older one."""
    part, old = folder.with_name(folder.name + ".part"), folder.with_name(folder.name + ".old")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, part / TENSORS)
    (part / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if folder.exists():  # otherwise a crash has left only the older one, and it must outlive the next line
        shutil.rmtree(old, ignore_errors=True)
        folder.replace(old)
    part.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_folder` wrote. If it was interrupted between its two moves, the older folder is the one to take."""
    facts = load_facts(folder)
    folder = _whole(folder)
    try:
        return load_file(folder / TENSORS), facts
    except (SafetensorError, OSError) as error:
        raise FedalcError(f"{folder}: damaged, cannot be read: {error}") from None


def load_facts(folder: Path) -> dict[str, Any]:
    """The facts alone: they say what the tensors are of."""
    folder = _whole(folder)
    for name in (TENSORS, FACTS):
        if not (folder / name).is_file():
            raise FedalcError(f"{folder}: not a saved model or checkpoint ({name} is missing)")
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise FedalcError(f"{folder}: damaged, cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise FedalcError(f"{folder}: damaged, {FACTS} holds no table")
    return facts


def _whole(folder: Path) -> Path:
    old = folder.with_name(folder.name + ".old")
    return old if not folder.exists() and old.exists() else folder
