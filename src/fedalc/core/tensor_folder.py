"""Saving tensors and facts so that a run can go on where it stopped, or a model be used later. No pickle anywhere.

SHA256SUMS has the digest of each file in the folder, in the form that `sha256sum -c SHA256SUMS` checks. Folders of
older versions have none, and are read without.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedalc.core.atomic_files import failures_named, make_folder, previous, replace_folder, sync_file, temporary
from fedalc.errors import FedalcError

TENSORS, FACTS, SUMS = "tensors.safetensors", "facts.json", "SHA256SUMS"
OTHER_SUM = f"a file has another checksum than {SUMS} says"


class Damaged(FedalcError):
    """A saved folder that is not what was written: something is missing, unreadable, or has another checksum."""


def save_folder(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any], keep_previous: bool = False) -> None:
    """Write tensors and facts as one folder. It is on the disk, whole, before it takes the place of an older one,
    which goes, or is kept as `folder`.old.
    """
    part = temporary(folder)
    with failures_named(folder):
        try:
            make_folder(part)
            _save_tensors(part / TENSORS, tensors)
            (part / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
            (part / SUMS).write_text(_sums(part), encoding="ascii")
            for name in (TENSORS, FACTS, SUMS):
                sync_file(part / name)
            replace_folder(part, folder, keep_previous)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def load_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_folder` wrote, or `Damaged`. If it was interrupted between its two renames, the older folder is it."""
    facts = load_facts(folder)
    folder = _whole(folder)
    try:
        if (folder / SUMS).exists() and (folder / SUMS).read_bytes() != _sums(folder).encode():
            raise Damaged(f"{folder}: damaged, {OTHER_SUM}")
        return load_file(folder / TENSORS), facts
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{folder}: damaged, cannot be read: {error}") from None


def load_facts(folder: Path) -> dict[str, Any]:
    """The facts alone: they say what the tensors are of."""
    folder = _whole(folder)
    for name in (TENSORS, FACTS):
        if not (folder / name).is_file():
            raise Damaged(f"{folder}: not a saved model or checkpoint ({name} is missing)")
    try:
        if (folder / SUMS).exists() and not (folder / SUMS).read_bytes().startswith(_sum(folder / FACTS).encode()):
            raise Damaged(f"{folder}: damaged, {OTHER_SUM}")
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise Damaged(f"{folder}: damaged, cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise Damaged(f"{folder}: damaged, {FACTS} holds no table")
    return facts


def _sums(folder: Path) -> str:
    """The whole of SHA256SUMS, as it has to be: so a change in any byte of any of the files shows."""
    return _sum(folder / FACTS) + _sum(folder / TENSORS)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"


def _whole(folder: Path) -> Path:
    old = previous(folder)
    return old if not folder.exists() and old.exists() else folder
