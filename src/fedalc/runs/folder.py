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

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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
from fedalc.core.safe_parsing import read_json_object
from fedalc.errors import ConfigError, FedalcError, Locked
from fedalc.runs import history

LOCK = ".lock"  # there only while a process writes to the folder
SHEET = "contact-sheet.png"  # of runs on pictures
CENSUS, PARTIES_LOG = "census", "parties.jsonl"  # of runs with real parties
BEFORE = {"server": {"aggregation": "mean"}}  # what earlier versions did, where their config.toml does not say
FILES = ("config.toml", "history.jsonl", "result.json", "report.html", "privacy.json", SHEET, PARTIES_LOG)
FOLDERS = ("model", "model.old", "checkpoint", "checkpoint.old", CENSUS)
LEFTOVER = re.compile(rf"({'|'.join(map(re.escape, FILES + FOLDERS))})(\..*)?{re.escape(PART)}")
LOCK_ATTEMPTS = 100  # an attempt fails only if another process removes the folder at that moment


class Taken(FedalcError):
    """There is a run in this folder already, begun or finished."""


def read_settings(folder: Path) -> Experiment:
    if not (folder / "config.toml").exists():
        raise FedalcError(f"{folder}: not a run folder (it has no config.toml)")
    return experiment(file=folder / "config.toml", defaults=BEFORE)


_KINDS: dict[str, type] = {
    **dict.fromkeys(("dataset", "method", "preset", "engine"), str),
    **dict.fromkeys(("rounds", "seed", "clients", "labels", "labels_without_client"), int),
    **dict.fromkeys(("metrics", "versions", "selection", "collapse", "collection", "privacy"), dict),
}
"""Of what a result's values are, where there are any."""


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run has found: result.json. Values that others rely on are there, and of the right kind."""
    result = read_partial_result(folder)
    if result.get("metrics") is None:
        raise _damaged(folder, "it has no `metrics`")
    return result


def read_partial_result(folder: Path) -> dict[str, Any]:
    """The same, where any value may be missing: of an older version, or made by hand."""
    try:
        result = read_json_object(folder / "result.json", _made_again(folder))
    except FileNotFoundError:
        raise FedalcError(f"{folder}: no result.json: this run has not finished") from None
    for key, kind in _KINDS.items():
        if result.get(key) is not None and type(result[key]) is not kind:
            raise _damaged(folder, f"`{key}` is not what it should be")
    chosen = result.get("selection") or {}
    if not isinstance(chosen.get("metrics", {}), dict):
        raise _damaged(folder, "`selection.metrics` is not what it should be")
    if not all(type(value) in (int, float) for value in (result.get("metrics") or {}).values()):
        raise _damaged(folder, "`metrics` are not numbers")
    return result


def _damaged(folder: Path, what: str) -> FedalcError:
    return FedalcError(f"{folder / 'result.json'}: damaged: {what}; {_made_again(folder)}")


def _made_again(folder: Path) -> str:
    return f"remove the file and make it again with: fedalc train --resume {folder}"


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
                with suppress(OSError):  # it has files, as it should
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
            continue  # the process before us has just removed its folder
        except OSError as error:
            raise WriteFailed(folder, error) from None
    raise FedalcError(f"{folder}: cannot be written: the folder does not stay there")
