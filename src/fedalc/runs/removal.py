"""Deletes runs and cleans up after them. Removes only what a run, comparison or sweep wrote: other files stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from fedalc.core.atomic_files import remove_folder, sync_folder
from fedalc.errors import FedalcError
from fedalc.runs.folder import FILES, FOLDERS, LEFTOVER, MLFLOW_ARTIFACTS, MLFLOW_DATABASE, only_writer
from fedalc.runs.listing import is_run, read_entry, run_folders, size_of

#: What `fedalc compare` and `fedalc sweep` write beside the folders of their runs.
OF_SEVERAL = (
    "results.json", "table.md", "report.html", "curves.png", "bytes.png", "precision.png", "cosines.png",
    "sweep.json", "sweep.png", "best.toml", MLFLOW_DATABASE, MLFLOW_ARTIFACTS,
)  # fmt: skip
NOT_NEEDED = ("checkpoint", "checkpoint.old", "model.old")  # once a run is finished


@dataclass(frozen=True)
class Removed:
    """Bytes that were freed, and the files that stay because no run wrote them."""

    size: int
    kept: tuple[Path, ...] = ()


def deletable(folder: Path) -> list[Path]:
    """Return the runs that deleting this folder deletes: itself, or those of a comparison or sweep. Refuse others."""
    if folder.is_symlink():
        raise FedalcError(f"{folder}: is a link; give the folder that it points to")
    if not folder.is_dir():
        raise FedalcError(f"{folder}: there is no such run (fedalc runs lists them)")
    if is_run(folder):
        return [folder]
    if any((folder / name).exists() for name in ("results.json", "sweep.json")):
        return list(run_folders(folder))
    runs = next(run_folders(folder), None)
    hint = f"; it contains runs: name them, such as {runs}" if runs else ""
    raise FedalcError(f"{folder}: is not a run{hint}")


def delete(folders: Sequence[Path]) -> Removed:
    """Delete runs, and comparisons and sweeps with their runs. Refuse a folder that is none, and raise `Locked` if a
    process writes to one of the runs: then nothing is removed."""
    runs = list(dict.fromkeys(run for folder in folders for run in deletable(folder)))
    size = 0
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(only_writer(run))
        for run in runs:
            size += _empty(run)
    for folder in folders:
        if folder not in runs:
            size += sum(_remove(folder / name) for name in OF_SEVERAL)
    kept = [path for folder in [*runs, *folders] for path in _close(folder)]
    return Removed(size, tuple(dict.fromkeys(path for path in kept if path not in runs)))


def _empty(run: Path) -> int:
    """Remove a run's files. config.toml goes last: a folder that is half deleted is still a run, and can be deleted."""
    names = [*FOLDERS, *sorted(set(FILES) - {"config.toml"}), *_leftovers(run), "config.toml"]
    size = sum(_remove(run / name) for name in names)
    sync_folder(run)
    return size


def _close(folder: Path) -> list[Path]:
    """Remove an empty folder. Return what is in one that is not empty."""
    with suppress(FileNotFoundError):
        if kept := list(folder.iterdir()):
            return kept
        folder.rmdir()
    return []


def clean(run: Path, dry_run: bool = False) -> int:
    """Remove what a run no longer needs, and return its bytes: checkpoints of a finished run, and files that a killed
    process left half-written. Raise `Locked` if a process writes to the run."""
    with only_writer(run):
        finished = read_entry(run, run.parent, unlocked=True).status == "finished"
        names = [*_leftovers(run), *(NOT_NEEDED if finished else ())]
        return sum(size_of(run / name) if dry_run else _remove(run / name) for name in names)


def _leftovers(folder: Path) -> Iterator[str]:
    return (path.name for path in sorted(folder.iterdir()) if LEFTOVER.fullmatch(path.name))


def _remove(path: Path) -> int:
    """Remove a file or folder and return its bytes; 0 if there is none."""
    if not path.exists() and not path.is_symlink():
        return 0
    size = size_of(path)
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink()
    return size
