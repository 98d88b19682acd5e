"""The checkpoint of a run: the newest state and the one before it, in checkpoint/ and checkpoint.old/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedalc.config.experiment import Experiment, flat
from fedalc.core import distributed
from fedalc.core.atomic_files import previous, remove_folder, sync_file
from fedalc.core.tensor_folder import Damaged, load_folder, save_folder
from fedalc.errors import OVERWRITE, ConfigError
from fedalc.runs.folder import PARTIES_LOG

# Settings that may change while a run is stopped: where and how it computes. (The data has a fingerprint of its own.)
MAY_CHANGE = ("name", "dataset", "device", "memory_budget", "shard_rows")


@dataclass(frozen=True)
class Saved:
    """A state as it was saved. `fell_back`: it is not the newest one, which is damaged."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    fell_back: bool


def exists(folder: Path) -> bool:
    return _newest(folder).exists() or previous(_newest(folder)).exists()


def save(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write a checkpoint and keep the one before it."""
    if (folder / PARTIES_LOG).exists():
        sync_file(folder / PARTIES_LOG)
    save_folder(_newest(folder), tensors, facts, keep_previous=True)


def load(folder: Path, may_fall_back: Callable[[dict[str, Any]], bool], note: Callable[[str], None]) -> Saved:
    """Return the newest checkpoint. If it is damaged in any process, return the one before it and `note` that;
    `may_fall_back` says of the older one's facts whether the run may resume from it."""
    newest = _newest(folder)
    damage, loaded = None, None
    try:
        loaded = load_folder(newest)
    except Damaged as error:
        damage = error
    if not distributed.any_of(loaded is None):
        assert loaded is not None
        return Saved(*loaded, fell_back=False)
    damage = damage or Damaged(f"{newest}: damaged, as another process of this run found")
    if not newest.exists() or not previous(newest).exists():
        raise Damaged(f"{damage}; there is no other checkpoint: start the run again ({OVERWRITE})")
    try:
        tensors, facts = load_folder(previous(newest))
    except Damaged as error:
        raise Damaged(f"{damage}; {error}; start the run again ({OVERWRITE})") from None
    if not may_fall_back(facts):
        raise Damaged(
            f"{damage}; the checkpoint before it is intact, but resuming from it would draw noise again and spend "
            f"more than the ε this run promises; start it again ({OVERWRITE})"
        )
    note(f"{damage}; resuming from the checkpoint before it and running the rounds since then again")
    return Saved(tensors, facts, fell_back=True)


def misfit(folder: Path, error: Exception) -> Damaged:
    """Return the error for a state that cannot be restored."""
    return Damaged(f"{_newest(folder)}: damaged, it does not fit the run: {error}")


def remove_newest(folder: Path) -> None:
    """Remove a damaged checkpoint: the next save must not keep it as the one before."""
    remove_folder(_newest(folder))


def check_settings(folder: Path, saved: Any, settings: Experiment, note: Callable[[str], None]) -> None:
    """Refuse a config.toml that was edited since the checkpoint was saved. Checkpoints of older versions hold no
    settings, and a setting that only one of the two versions knows is not an edit."""
    if not isinstance(saved, dict):
        return
    before, now = flat(saved), flat(settings.to_dict())
    changed = [key for key in before.keys() & now.keys() if before[key] != now[key]]
    if "device" in changed:
        note(f"this run began on {before['device']} and resumes on {now['device']}: the last digits may differ")
    if edited := sorted(set(changed) - set(MAY_CHANGE)):
        raise ConfigError(
            f"{folder}: config.toml was edited since this run began: "
            + ", ".join(f"{key} was {before[key]!r} and is {now[key]!r}" for key in edited)
            + "; undo the edit, or start another run with the new settings"
        )


def records_until(records: list[dict[str, Any]], phase: str, done: int) -> list[dict[str, Any]]:
    """Return the records up to round `done` of `phase`. The end of a phase is always saved, so earlier phases are
    complete; the history holds a later phase if the newest checkpoint was damaged."""
    order = ("select", "refit")
    later = order[order.index(phase) + 1 :] if phase in order else ()
    return [r for r in records if r["phase"] not in later and (r["phase"] != phase or r["round"] <= done)]


def _newest(folder: Path) -> Path:
    return folder / "checkpoint"
