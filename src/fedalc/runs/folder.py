"""The run folder: its files, and the lock that lets one process write to it. docs/run-folder.md describes the files;
the layout is a contract, as others read it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import Timeout

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.core.atomic_files import (
    PART,
    WriteFailed,
    failures_named,
    make_folder,
    remove_folder,
    sync_folder,
    write_text,
)
from fedalc.core.locks import lock_file
from fedalc.errors import OTHER_FOLDER, OVERWRITE, ConfigError, FedalcError, Locked, resuming
from fedalc.runs import history

LOCK = ".lock"  # exists only while a process writes to the folder
SHEET = "contact-sheet.png"  # of runs on pictures
CENSUS, PARTIES_LOG = "census", "parties.jsonl"  # of runs with real parties
# Defaults of older versions, for a config.toml that lacks these settings.
BEFORE = {"server": {"aggregation": "mean"}, "images": {"difficult": False}}
TUNING = "tuning.jsonl"  # what a search for settings tried
TRACKING = "tracking"  # local files of trackers
MLFLOW_DATABASE, MLFLOW_ARTIFACTS = "mlflow.db", "mlflow-artifacts"  # beside run folders: of all runs together
CURVES = ("det.png", "roc.png")  # of runs of the task verification
FILES = (
    "config.toml",
    "history.jsonl",
    "result.json",
    "report.html",
    "privacy.json",
    SHEET,
    PARTIES_LOG,
    TUNING,
    *CURVES,
)
FOLDERS = ("model", "model.old", "checkpoint", "checkpoint.old", CENSUS, TRACKING)
LEFTOVER = re.compile(rf"({'|'.join(map(re.escape, FILES + FOLDERS))})(\..*)?{re.escape(PART)}")
LOCK_ATTEMPTS = 100  # an attempt fails only if another process removes the folder at that moment


class OtherSettings(ConfigError):
    """The folder holds a run with other settings."""


class Taken(FedalcError):
    """The folder already holds a run, finished or not."""


def read_settings(folder: Path) -> Experiment:
    if not (folder / "config.toml").exists():
        raise FedalcError(f"{folder}: not a run folder (it has no config.toml); `fedalc runs` lists your runs")
    return experiment(file=folder / "config.toml", defaults=BEFORE)


def check_folder(folder: Path, settings: Experiment, resume: bool, overwrite: bool) -> None:
    """Refuse to overwrite other files or another run, and to resume a run with other settings."""
    if resume:
        if read_settings(folder) != settings:
            raise ConfigError(f"{folder} began with other settings; a resumed run keeps its own")
        if (folder / "result.json").exists():
            raise Taken(f"{folder}: this run is finished; nothing to resume")
    elif folder.exists() and not folder.is_dir():
        raise FedalcError(f"{folder}: is a file; a run needs a folder")
    elif folder.exists() and not all(map(_is_litter, folder.iterdir())):
        if not (folder / "config.toml").exists():
            raise FedalcError(f"{folder}: contains files that are not a run's; choose another folder")
        if not overwrite:
            if other := other_data(folder, settings):
                raise Taken(f"{folder}: already holds a run{other}; {OTHER_FOLDER}, or replace it ({OVERWRITE})")
            finished = (folder / "result.json").exists()
            begun = "a run, which is finished;" if finished else f"a run; resume it ({resuming(folder)}),"
            raise Taken(f"{folder}: already holds {begun} replace it ({OVERWRITE}), or {OTHER_FOLDER}")


def other_data(folder: Path, settings: Experiment) -> str:
    """Return which other dataset the run in a folder is on, in words: default names of files a.csv and a.tsv are the
    same. Empty if it is the same one, or cannot be read."""
    try:
        before = read_settings(folder)
    except FedalcError:
        return ""
    return "" if before.dataset == settings.dataset else f" on other data, {before.dataset}"


def _is_litter(path: Path) -> bool:
    """Whether a process that was killed before its run began left this file."""
    return path.name == LOCK or LEFTOVER.fullmatch(path.name) is not None


def clear_leftovers(folder: Path) -> None:
    """Remove the files that a killed process was writing. The caller must hold the lock."""
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def open_folder(folder: Path, settings: Experiment) -> None:
    """Begin a run and delete an earlier one, its result.json first. A crash in between leaves a run that can be
    resumed: the old one or the new one."""
    with failures_named(folder):
        (folder / "result.json").unlink(missing_ok=True)
        sync_folder(folder)
        for old in FOLDERS:
            remove_folder(folder / old)
        for old in set(FILES) - {"config.toml"}:
            (folder / old).unlink(missing_ok=True)
        sync_folder(folder)
        write_text(folder / "config.toml", settings.to_toml())
        history.rewrite(folder / "history.jsonl", [])


@contextmanager
def only_writer(folder: Path, busy: str = "another process is writing to this run") -> Iterator[int]:
    """Hold the folder's lock and yield its descriptor. Raise `Locked`, with the message `busy`, if another process
    holds it.

    Makes the folder if necessary, and removes it again if nothing was written to it.
    """
    with ExitStack() as stack:
        made, descriptor = _lock(folder, busy, stack)
        try:
            yield descriptor
        finally:
            stack.close()
            if made:
                with suppress(OSError):  # not empty: it holds the run
                    folder.rmdir()


def _lock(folder: Path, busy: str, stack: ExitStack) -> tuple[bool, int]:
    """Return whether the folder is new, and the descriptor of the lock, which `stack` releases."""
    made = False
    for _ in range(LOCK_ATTEMPTS):
        try:
            made = not folder.exists() or made
            make_folder(folder)
            return made, stack.enter_context(lock_file(folder / LOCK, wait=False))
        except Timeout:
            raise Locked(f"{folder}: {busy}") from None
        except FileNotFoundError:
            continue  # the last owner has just removed its folder
        except OSError as error:
            raise WriteFailed(folder, error) from None
    raise FedalcError(f"{folder}: cannot be written: the folder does not stay there")
