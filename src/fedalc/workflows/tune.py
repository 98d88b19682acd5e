"""The search for settings before a run: it keeps what it tried in the run folder, so that it can be resumed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import for_labels
from fedalc.config.schema import TuningSettings
from fedalc.core import distributed
from fedalc.core.atomic_files import write_text
from fedalc.core.interrupt import Interrupt
from fedalc.core.registry import ORACLES
from fedalc.data.dataset import Dataset
from fedalc.errors import NO_SEARCH, ConfigError
from fedalc.runs.folder import TUNING, check_folder, clear_leftovers, only_writer, open_folder
from fedalc.training.base import listening
from fedalc.training.callbacks import Callback
from fedalc.training.reasons import held_out as held_out_records
from fedalc.training.search_parts import Part
from fedalc.training.settings_for_data import can_solve, in_batches, with_axes
from fedalc.training.tuning import FEWEST, Search, Trial, changed, tree_fits
from fedalc.workflows.preflight import check_memory


def settled(
    settings: Experiment,
    data: Dataset,
    folder: Path | None,
    resume: bool,
    overwrite: bool,
    callbacks: Sequence[Callback],
    parts: Sequence[Part] = (),
    interrupt: Interrupt | None = None,
) -> tuple[Experiment, dict[str, Any] | None, bool]:
    """Return the settings to train with, what a search tried (as in result.json), and whether the folder is begun.
    `parts`: where a search tries settings, by default on splits of train."""
    if settings.method in ORACLES:
        return settings, None, resume
    if settings.tuning.batch is not None and not settings.tuning.search:
        return in_batches(settings, data), None, resume
    if not can_solve(settings, data) and (settings.tuning.search or settings.tuning.axes):
        has_axes = with_axes(settings, data).encoder.dim >= data.label_count
        if not settings.tuning.search or not (has_axes or tree_fits(settings, data)):
            warnings.warn(
                (f"{len(data.train):,} records with " if len(data.train) else "")  # those of parties are not here
                + f"{data.feature_count:,} features are too many for one round"
                + ("" if has_axes else f", and {data.label_count:,} labels too many for a search")
                + ": training fedalc-exact by conjugate gradients with fixed settings",
                stacklevel=5,
            )
            settings = with_axes(changed(settings, {"method": "fedalc-exact"}), data)
    labelled = int((data.train.labels.getnnz(axis=1) > 0).sum())
    if settings.tuning.search and not parts and data.validation is None and labelled < FEWEST:
        warnings.warn(f"{labelled} records with labels are too few for a search: taking fixed settings", stacklevel=5)
        settings = _over(with_axes(changed(settings, {"method": "fedalc-oneshot"}), data))
    if settings.tuning.search:
        if distributed.here().count > 1:
            raise ConfigError(f"the search runs in one process; leave it out ({NO_SEARCH})", "tuning.search")
        chosen, tuning = _searched(settings, data, folder, resume, overwrite, callbacks, parts, interrupt)
        return chosen, tuning, folder is not None
    if settings.tuning.axes:
        settings = _over(with_axes(settings, data))
    trials = read_trials(folder) if folder is not None and resume else []
    return settings, _summary(settings, trials) if trials else None, resume


def _searched(
    settings: Experiment,
    data: Dataset,
    folder: Path | None,
    resume: bool,
    overwrite: bool,
    callbacks: Sequence[Callback],
    parts: Sequence[Part],
    interrupt: Interrupt | None,
) -> tuple[Experiment, dict[str, Any]]:
    with listening(interrupt) as interrupt, nullcontext() if folder is None else only_writer(folder):
        known: list[Trial] = []
        if folder is not None:
            check_folder(folder, settings, resume, overwrite)
            clear_leftovers(folder)
            if resume:
                known = read_trials(folder)
            else:
                open_folder(folder, settings)
        for callback in callbacks:
            if folder is not None:
                callback.placed(folder)
            callback.started(settings)
        tried = list(known)
        newton = Trial(loss="squared-hinge", features={"name": "linear", "constant": 1.0}, penalty=1.0, rounds=5)
        check_memory(changed(with_axes(settings, data), newton.changes), data)
        search = Search(settings, data, interrupt, callbacks, known, partial(_keep, folder, tried), parts)
        for callback in callbacks:
            callback.log(f"choosing settings by {search.metric} on {held_out_records(search.held_out)}")
        best = search.run()
        chosen = for_labels(_over(changed(search.settings, best.changes)), data.label_count)
        if folder is not None:
            write_text(folder / "config.toml", chosen.to_toml())
        return chosen, _summary(chosen, search.trials, search.held_out)


def _over(settings: Experiment) -> Experiment:
    """Return the settings with nothing left to choose: the model is trained on all of train."""
    selection: dict[str, Any] = {"validation": 0.0}
    if settings.engine == "flower":
        selection["every"] = settings.rounds  # no ranking by parties after each round: nothing is chosen by it
    update = {"tuning": TuningSettings(), "selection": settings.selection.model_copy(update=selection)}
    return settings.model_copy(update=update)


def _keep(folder: Path | None, tried: list[Trial], trial: Trial) -> None:
    tried.append(trial)
    if folder is not None:
        write_text(folder / TUNING, "".join(f"{one.model_dump_json()}\n" for one in tried))


def read_trials(folder: Path) -> list[Trial]:
    """Return the trials of an interrupted search. If they cannot be read, it starts over."""
    try:
        lines = (folder / TUNING).read_text(encoding="utf-8").splitlines()
        return [Trial.model_validate_json(line) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, ValidationError, RecursionError):
        warnings.warn(f"{folder / TUNING}: damaged; the search starts over", stacklevel=2)
        return []


def _summary(settings: Experiment, trials: Sequence[Trial], held_out: int | None = None) -> dict[str, Any]:
    best = max(trials, key=lambda trial: trial.value)
    return {
        "metric": settings.selection.metric,
        "chosen": {
            **best.changes,
            "encoder": {"name": "linear", **best.changes["encoder"], "dim": settings.encoder.dim},
        },
        "value": best.value,
        "held_out": held_out,
        "seconds": sum(trial.seconds for trial in trials),
        "bytes_up": sum(trial.bytes_up for trial in trials),
        "bytes_down": sum(trial.bytes_down for trial in trials),
        "tried": [trial.model_dump() for trial in trials],
    }
