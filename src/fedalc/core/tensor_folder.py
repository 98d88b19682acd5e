"""Save tensors and facts in a folder, for checkpoints and models. No pickle.

SHA256SUMS has the digest of each file in the folder, in the form that `sha256sum -c SHA256SUMS` checks. Folders of
older versions have no SHA256SUMS and are read without the check.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from fedalc.core.atomic_files import failures_named, make_folder, previous, replace_folder, sync_file, temporary
from fedalc.errors import FedalcError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

TENSORS, FACTS, SUMS = "tensors.safetensors", "facts.json", "SHA256SUMS"
OTHER_SUM = f"a file does not match its checksum in {SUMS}"


class Damaged(FedalcError):
    """A saved folder has changed: a file is missing, unreadable, or does not match its checksum."""


def save_folder(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any], keep_previous: bool = False) -> None:
    """Write tensors and facts to a folder atomically: it is complete on disk before it replaces an older one.

    The older folder is deleted, or with `keep_previous` kept as `folder`.old.
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
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def load_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load what `save_folder` wrote, or raise `Damaged`. After an interrupted save this is the older folder."""
    from safetensors.torch import load_file

    return _load(folder, load_file)


def load_arrays(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Load the same as numpy arrays, without importing torch."""
    from safetensors.numpy import load_file

    return _load(folder, load_file)


def _load(folder: Path, load_file: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    facts = load_facts(folder)
    folder = _whole(folder)
    try:
        if (folder / SUMS).exists() and (folder / SUMS).read_bytes() != _sums(folder).encode():
            raise Damaged(f"{folder}: damaged, {OTHER_SUM}")
        return load_file(folder / TENSORS), facts
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{folder}: damaged, cannot be read: {error}") from None


def load_facts(folder: Path) -> dict[str, Any]:
    """Load only the facts, which describe the tensors."""
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
        raise Damaged(f"{folder}: damaged, {FACTS} is not a JSON object")
    return facts


def _sums(folder: Path) -> str:
    """Return the exact content of SHA256SUMS. Comparing it detects a change in any byte of any file."""
    return _sum(folder / FACTS) + _sum(folder / TENSORS)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"


def _whole(folder: Path) -> Path:
    old = previous(folder)
    return old if not folder.exists() and old.exists() else folder
