"""Finds the runs in a folder and tells how each stands. Reads their files without loading a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fedalc.config.experiment import flat
from fedalc.core.safe_parsing import Unreadable, parse_json, parse_toml
from fedalc.errors import FedalcError, Locked
from fedalc.runs import history
from fedalc.runs.folder import LOCK, TUNING, only_writer
from fedalc.runs.result import NAME, read_partial_result

DEEPEST = 6  # folders within folders: runs/NAME/METHOD-sSEED has two
SIMPLE = (str, int, float, bool)

Status = Literal["finished", "interrupted", "running", "damaged"]


@dataclass(frozen=True)
class RunEntry:
    """A run folder. `detail` says how far an unfinished run came, or what is wrong with a damaged one."""

    name: str
    folder: Path
    status: Status
    detail: str
    settings: Mapping[str, Any]  # by full name, as in config.toml
    result: Mapping[str, Any]
    when: datetime  # of the last change
    size: int  # bytes on disk
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """Return a column, a metric, a field of result.json or a setting. None if the run has none of this name."""
        return self.fields.get(key)

    @property
    def fields(self) -> dict[str, Any]:
        """All values by name. Settings come first: the result's `rounds` and `dataset` replace them."""
        plain = {key: value for key, value in self.result.items() if isinstance(value, SIMPLE)}
        own = {"name": self.name, "status": self.status, "when": f"{self.when:%Y-%m-%d %H:%M}", "size": self.size}
        dataset = {"dataset": Path(str(self.settings.get("dataset", ""))).name}
        return {**self.settings, **dataset, **plain, **self.metrics, **own}

    def to_dict(self) -> dict[str, Any]:
        """Return the run for JSON."""
        fields = self.fields
        names = ("dataset", "method", "preset", "seed", "engine", "rounds", "seconds", "bytes_up", "bytes_down")
        return {
            "name": self.name,
            "folder": str(self.folder),
            "status": self.status,
            "detail": self.detail,
            **{name: fields.get(name) for name in names},
            "metrics": dict(self.metrics),
            "when": self.when.astimezone().isoformat(timespec="seconds"),
            "size": self.size,
        }


def find_runs(root: Path) -> list[RunEntry]:
    """Return all runs below a folder, those of comparisons and sweeps included. Links are not followed."""
    return [read_entry(folder, root) for folder in run_folders(root)]


def run_folders(root: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yield the run folders below `root`, or `root` itself if it is one."""
    if is_run(root):
        yield root
        return
    try:
        inner = sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    except PermissionError:
        return
    for folder in inner if deepest else ():
        if not folder.name.startswith("."):
            yield from run_folders(folder, deepest - 1)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run: config.toml, and something that training wrote beside it."""
    return (folder / "config.toml").is_file() and any(
        (folder / name).exists() for name in (NAME, "history.jsonl", "checkpoint", "checkpoint.old", TUNING)
    )


def read_entry(folder: Path, root: Path, unlocked: bool = False) -> RunEntry:
    """Return how the run in a folder stands. A damaged one is an entry too. `unlocked`: no other process writes to it,
    as this one holds its lock."""
    settings, result, problem = _settings(folder), dict[str, Any](), ""
    if settings is None:
        settings, problem = {}, "config.toml cannot be read"
    if (folder / NAME).exists():
        try:
            result = read_partial_result(folder)
        except FedalcError as error:
            problem = problem or str(error).removeprefix(f"{folder / NAME}: ")
        else:
            problem = problem or ("" if (folder / "model").is_dir() else "the model is missing")
    running = not unlocked and (folder / LOCK).exists() and _is_locked(folder)
    status, detail = _status(folder, settings, bool(result), problem, running)
    found = result.get("metrics")
    return RunEntry(
        name=folder.relative_to(root).as_posix() if folder != root else folder.name,
        folder=folder,
        status=status,
        detail=detail,
        settings=settings,
        result=result,
        when=_last_change(folder),
        size=size_of(folder),
        metrics=found if isinstance(found, dict) else {},
    )


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder. Links count as themselves."""
    total = 0
    with suppress(OSError):
        total += path.lstat().st_size if not path.is_dir() or path.is_symlink() else 0
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):  # removed meanwhile
                total += (Path(folder) / name).lstat().st_size
    return total


def _settings(folder: Path) -> dict[str, Any] | None:
    with suppress(Unreadable, OSError):
        return flat(parse_toml((folder / "config.toml").read_bytes()))
    return None


def _status(
    folder: Path, settings: Mapping[str, Any], finished: bool, problem: str, running: bool
) -> tuple[Status, str]:
    if running:
        return "running", _reached(folder, settings)
    if problem:
        return "damaged", problem
    return ("finished", "") if finished else ("interrupted", _reached(folder, settings))


def _is_locked(folder: Path) -> bool:
    try:
        with only_writer(folder):
            return False
    except Locked:
        return True
    except FedalcError:  # a folder that we may not write to
        return False


def _reached(folder: Path, settings: Mapping[str, Any]) -> str:
    """Say how far an unfinished run came, from its checkpoint or else its history."""
    phase, reached, rounds = "", None, settings.get("rounds")
    try:
        facts = parse_json((folder / "checkpoint" / "facts.json").read_bytes())
        phase, reached, rounds = facts["phase"], facts["federated"]["round"], facts["rounds"]
    except (OSError, Unreadable, KeyError, TypeError):
        with suppress(FedalcError):
            records = history.read(folder / "history.jsonl")
            phase, reached = (records[-1]["phase"], records[-1]["round"]) if records else ("", None)
    if reached is not None:
        return f"round {reached} of {rounds}" + (" of the refit" if phase == "refit" else "")
    tried = _lines(folder / TUNING)
    return f"{tried} settings tried" if tried else "before the first checkpoint"


def _lines(path: Path) -> int:
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def _last_change(folder: Path) -> datetime:
    """Return when training last wrote to the folder. A report that was made again does not count."""
    times = []
    for name in (NAME, "history.jsonl", "checkpoint", TUNING, "config.toml"):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
            if name == NAME:
                break
    return datetime.fromtimestamp(max(times, default=0.0))
