"""The run folder: what is in it, and who may write to it. Its layout is a contract: others read it.

config.toml    the full resolved settings: running it again gives the same result
history.jsonl  one line per evaluated round
result.json    metrics in percent, how collapsed W is, cost, versions
model/         what is needed to predict
checkpoint/    what is needed to resume; checkpoint.old/, until the run is finished: the one before
privacy.json   with differential privacy: under which id the run is in the privacy ledger
report.html    curves and tables
contact-sheet.png   of pictures: some of the test set, with their labels and those predicted
census/, parties.jsonl   with real parties (engine flower): who takes part, and who was left out when and why
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

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
from fedalc.errors import ConfigError, FedalcError, Locked
from fedalc.runs import history

LOCK = ".lock"  # there only while a process writes to the folder
SHEET = "contact-sheet.png"  # of runs on pictures
CENSUS, PARTIES_LOG = "census", "parties.jsonl"  # of runs with real parties
BEFORE = {"server": {"aggregation": "mean"}}  # what earlier versions did, where their config.toml does not say
FILES = ("config.toml", "history.jsonl", "result.json", "report.html", "privacy.json", SHEET, PARTIES_LOG)
FOLDERS = ("model", "model.old", "checkpoint", "checkpoint.old", CENSUS)
LEFTOVER = re.compile(rf"({'|'.join(map(re.escape, FILES + FOLDERS))})(\..*)?{re.escape(PART)}")
LOCK_ATTEMPTS = 100  # each but the last fails only where another process comes and goes in the same moment


class Taken(FedalcError):
    """There is a run in this folder already, begun or finished."""


def read_settings(folder: Path) -> Experiment:
    if not (folder / "config.toml").exists():
        raise FedalcError(f"{folder}: not a run folder (it has no config.toml)")
    return experiment(file=folder / "config.toml", defaults=BEFORE)


def check_folder(folder: Path, settings: Experiment, resume: bool, overwrite: bool) -> None:
    """Refuse to write over somebody's work, or to resume with other settings than it began with."""
    if resume:
        if read_settings(folder) != settings:
            raise ConfigError(f"{folder} began with other settings than these; a resumed run keeps its own")
        if (folder / "result.json").exists():
            raise Taken(f"{folder}: this run is finished; nothing to resume")
    elif folder.exists() and not folder.is_dir():
        raise FedalcError(f"{folder}: is a file, and a run needs a folder")
    elif folder.exists() and not all(map(_is_litter, folder.iterdir())):
        if not (folder / "config.toml").exists():
            raise FedalcError(f"{folder}: has files in it that are not a run's; choose another place")
        if not overwrite:
            raise Taken(
                f"{folder}: there is a run here already; resume it (--resume {folder}), replace it (--overwrite) "
                "or give this one another --name"
            )


def _is_litter(path: Path) -> bool:
    """What a process leaves that was killed before there was a run."""
    return path.name == LOCK or LEFTOVER.fullmatch(path.name) is not None


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed process had not finished writing. Only for who has the lock."""
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def open_folder(folder: Path, settings: Experiment) -> None:
    """Begin a run here, and forget an earlier one: first that it was finished, then the rest. So a crash meanwhile
    leaves a run that can be resumed, the old one or the new one."""
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
def only_writer(folder: Path, busy: str = "another process is writing to this run") -> Iterator[TextIO]:
    """Keep a second process out of the folder: it is told that it is `busy`. The system lets go of the lock when this
    one ends, however it ends, and every process to which it has handed on the open lock file.

    A folder that was made for it and in which nothing was written is taken away again.
    """
    made, lock = _lock(folder, busy)
    with lock:
        try:
            yield lock
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # there is something in it, as there should be
                    folder.rmdir()


def _lock(folder: Path, busy: str) -> tuple[bool, TextIO]:
    """Whether the folder is new, and the locked file. It must still be there under its name once it is locked: the
    one before us may have taken it away between our opening and our locking, and a third put another in its place.
    """
    made = False
    for _ in range(LOCK_ATTEMPTS):
        try:
            made = not folder.exists() or made
            make_folder(folder)
            lock = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue  # the one before us has just taken its folder away
        except OSError as error:
            raise WriteFailed(folder, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise Locked(f"{folder}: {busy}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), (folder / LOCK).stat()):
                return made, lock
        lock.close()
    raise FedalcError(f"{folder}: cannot be written: {LOCK} does not stay there")
