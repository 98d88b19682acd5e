"""`train`, which fills a run folder, and `load_run`, which reads a finished one."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.config.neighbour_search import check_affordable
from fedalc.config.resolve import experiment
from fedalc.config.unused import names_of, note_without_effect
from fedalc.core import distributed
from fedalc.core.arguments import as_path
from fedalc.core.atomic_files import WriteFailed, remove_folder, write_text
from fedalc.core.devices import check_device
from fedalc.core.interrupt import Interrupt
from fedalc.core.progress_events import watching
from fedalc.core.registry import ORACLES
from fedalc.data import Dataset, ImageOptions, Images, Split, load_dataset
from fedalc.data.catalog.datasets import is_generated
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.models.trained import TrainedModel
from fedalc.oracles import TrainedOracle
from fedalc.oracles.training import OracleTraining
from fedalc.runs.folder import (
    SHEET,
    Taken,
    check_folder,
    clear_leftovers,
    only_writer,
    open_folder,
    read_result,
    read_settings,
)
from fedalc.training.base import Callback, checked_callbacks, listening, telling
from fedalc.training.selection import Training
from fedalc.workflows.load_model import load_model
from fedalc.workflows.preflight import check_kind, check_memory, check_processes


@dataclass(frozen=True)
class Run:
    """A finished run."""

    settings: Experiment
    result: Mapping[str, Any]
    model: TrainedModel | TrainedOracle
    folder: Path | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """On the test set, in percent."""
        return dict(self.result["metrics"])


def train(
    settings: Experiment | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    data: Dataset | None = None,
    data_dir: Path | str | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    epsilon_budget: float | None = None,
    **keys: Any,
) -> Run:
    """Train one model and look at the test set once.

    Settings come as an `Experiment`, or as keywords (`dataset="bibtex", method="fedaws", encoder={"name": "mlp"}`).
    `dataset` is a name, a folder, or a `Dataset` you have built yourself (which may also be given as `data`). With
    `folder`, everything is written there as it happens and an interrupted run can be resumed. `callbacks` are objects
    of classes that extend `fedalc.Callback`. `epsilon_budget` refuses a run with differential privacy if all runs on
    this data, together with it, would spend more.
    """
    if settings is not None and not isinstance(settings, Experiment):
        raise ConfigError(f"expected an Experiment, found {settings!r:.60}; settings are keywords: train(dataset=…)")
    if settings is not None and keys:
        raise ConfigError(f"give an Experiment or keywords, not both (found {', '.join(keys)})")
    followers, place = checked_callbacks(callbacks), None if folder is None else as_path(folder, "folder")
    if resume and place is None:
        raise ConfigError("there is nothing to resume without the folder of a run", "folder")
    data = own_data(keys, data)
    asked = names_of(keys)
    if data is not None:
        describe(keys, data)
    if settings is None:
        settings = experiment(keys)
        note_without_effect([settings], asked)
    if place is not None and resume and (place / "result.json").exists() and not (place / "report.html").exists():
        if distributed.started_as().rank == 0:
            write_report(place, data_dir)  # it was lost; nothing else is left to do
        return load_run(place)
    return _train(settings, place, resume, overwrite, data, data_dir, followers, epsilon_budget)[0]


def own_data(keys: dict[str, Any], data: Dataset | None = None) -> Dataset | None:
    """The dataset that a caller has built, given as `data` or as `dataset`; None where `dataset` is a name or folder.

    A folder's path becomes a text in `keys`, as settings have it.
    """
    if data is not None and not isinstance(data, Dataset):
        raise ConfigError(f"expected a fedalc.Dataset, found {data!r:.60}; names and folders are for dataset=", "data")
    given = keys.get("dataset")
    if isinstance(given, os.PathLike):
        keys["dataset"] = os.fspath(given)
    if not isinstance(given, Dataset):
        return data
    if data is not None:
        raise ConfigError("there are two: give one of dataset and data", "data")
    del keys["dataset"]
    return given


def describe(keys: dict[str, Any], data: Dataset) -> None:
    """Add to the settings what follows from the data."""
    keys.setdefault("dataset", data.name)
    images = keys.get("images", {})
    if isinstance(data.train.features, Images) and isinstance(images, Mapping):
        keys["images"] = {"size": data.train.features.size, **images}


def _train(
    settings: Experiment,
    place: Path | None,
    resume: bool,
    overwrite: bool,
    data: Dataset | None,
    data_dir: Path | str | None,
    callbacks: Sequence[Callback],
    epsilon_budget: float | None = None,
) -> tuple[Run, bool]:
    """The run, and whether somebody has asked to stop when its training was over: it is tested and saved then too."""
    check_processes(settings)
    with distributed.joined(settings.device), watching(telling(callbacks)):
        check_device(settings.device)
        _forget_peak_memory()
        if place is not None and distributed.is_first():
            check_folder(place, settings, resume, overwrite)
        if data is None:
            options = image_options(
                settings, callbacks, wait=distributed.here().count > 1
            )  # until the first has read them
            with distributed.in_turn():
                data = load_dataset(settings.dataset, data_dir, images=options)
        if not len(data.test):
            warnings.warn(f"{data.name} has no test data, so the result has no metrics", stacklevel=4)
        check_kind(settings, data)
        check_memory(settings, data)
        check_affordable(settings, data.label_count)
        kind = OracleTraining if settings.method in ORACLES else Training
        training = kind(settings, data, place, callbacks)  # refuses what cannot be trained before anything is written
        if isinstance(training, Training):
            training.epsilon_budget = epsilon_budget
            training.check_budget(resume)
        return fill_folder(training, place, resume, overwrite)


def fill_folder(
    training: Training | OracleTraining,
    place: Path | None,
    resume: bool,
    overwrite: bool,
    interrupt: Interrupt | None = None,
) -> tuple[Run, bool]:
    """Train, test and save. Nothing is saved where there is no place, nor by another process than the first. Listens to
    `interrupt`, or to one of its own."""
    settings, writes = training.settings, training.writes
    with listening(interrupt) as interrupt, only_writer(place) if place and writes else nullcontext():
        interrupt.on_asked = partial(_tell_stopping, training.callbacks)
        if place is not None and writes:
            check_folder(place, settings, resume, overwrite)  # again: another process may have been here since
            clear_leftovers(place)
        try:
            if place is not None and resume:
                training.resume()
            elif place is not None and writes:
                open_folder(place, settings)
            trained, own = training.finish(interrupt)
            result = _result(training, trained.held, own)
            if place is not None and writes:
                _save(place, settings, trained, result, training.dataset.test)
        except WriteFailed as error:
            if place is None or not (place / "config.toml").exists():
                raise  # nothing has begun that could be resumed
            raise FedalcError(
                f"{error}. What was saved before is intact: resume the run afterwards (--resume {place})"
            ) from error
    return Run(settings, result, trained, place), interrupt.asked


def _tell_stopping(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.stopping()


def _save(
    place: Path,
    settings: Experiment,
    trained: TrainedModel | TrainedOracle,
    result: Mapping[str, Any],
    test: Split,
) -> None:
    """What a finished run has. result.json, which says that it is finished, comes last: nothing is missing or left over
    where it is. But a report that cannot be drawn is no reason to lose a result."""
    remove_folder(place / "model.old")  # of a save that a power cut interrupted
    trained.save(place / "model")
    undrawn = None
    try:
        _write_sheet(place, settings, trained, test)
        _write_page(place, result)
    except WriteFailed:
        raise  # make room and resume
    except Exception as error:
        undrawn = error
    remove_folder(place / "checkpoint.old")
    write_text(place / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    if undrawn is not None:
        raise undrawn


def _write_sheet(place: Path, settings: Experiment, trained: TrainedModel | TrainedOracle, test: Split) -> None:
    from fedalc.report.contact_sheet import write_test_sheet

    if isinstance(trained, TrainedModel) and isinstance(test.features, Images) and len(test):
        write_test_sheet(place / SHEET, trained, test, settings.seed)


def _write_page(place: Path, result: Mapping[str, Any] | None = None) -> Path:
    from fedalc.report.page import write_page

    return write_page(place, result)


def write_report(folder: Path | str, data_dir: Path | str | None = None) -> Path:
    """Make the report of a finished run anew, from its folder. The contact sheet of a run on pictures is kept; if it
    is missing, it is made again from the test set."""
    place = Path(folder)
    with only_writer(place):
        run = load_run(place)
        clear_leftovers(place)
        if run.settings.encoder.is_image and not (place / SHEET).exists():
            data = load_dataset(run.settings.dataset, data_dir, images=image_options(run.settings))
            _write_sheet(place, run.settings, run.model, data.test)
        return _write_page(place)


def train_or_continue(
    settings: Experiment,
    folder: Path,
    data: Dataset,
    callbacks: Sequence[Callback] = (),
    epsilon_budget: float | None = None,
) -> Run:
    """The run of these settings in this folder: loaded if it is finished, resumed if it was begun, else trained.

    A wish to stop that came too late for this run is for those after it: `Interrupted`, with the run finished.
    """
    while True:
        begun = (folder / "config.toml").exists()
        if begun and read_settings(folder) != settings:
            raise ConfigError(
                f"{folder} was made with other settings; give another folder, or replace it (--overwrite)"
            )
        if begun and (folder / "result.json").exists():
            return load_run(folder)
        with suppress(Taken):  # since we looked: look again
            run, stop = _train(settings, folder, begun, False, data, None, callbacks, epsilon_budget)
            if stop:
                raise Interrupted(f"after the run in {folder} was finished")
            return run


def load_run(folder: Path | str) -> Run:
    """A finished run, from its folder."""
    place = as_path(folder, "folder")
    settings = read_settings(place)
    if not (place / "result.json").exists():
        raise FedalcError(f"{place}: this run has not finished; go on with: fedalc train --resume {place}")
    return Run(settings, read_result(place), load_model(place / "model"), place)


def image_options(settings: Experiment, callbacks: Sequence[Callback] = (), wait: bool = True) -> ImageOptions:
    """As the settings say. A training need not wait until all pictures are read: it waits for those it needs."""

    def progress(done: int, pictures: int) -> None:
        for callback in callbacks:
            callback.reading(done, pictures)

    i = settings.images
    return ImageOptions(i.size, i.difficult, i.broken, wait=wait, progress=progress)


def _result(training: Training | OracleTraining, held: np.ndarray, own: Mapping[str, Any]) -> dict[str, Any]:
    """`own`: what a federated training and an oracle's find out in different ways."""
    settings, cost = training.settings, training.cost()
    return {
        "dataset": training.dataset.name,
        **({"generated": True} if is_generated(training.dataset.name) else {}),
        "method": settings.method,
        "centralised": training.centralised,
        "engine": own["engine"],
        "aggregation": own.get("aggregation"),  # how parties' changes are combined
        "processes": distributed.here().count,
        "preset": settings.preset,
        "rounds": training.kept_round,
        "seed": settings.seed,
        "metrics": own["metrics"],
        "selection": training.chosen,
        "collapse": own["collapse"],
        "clients": own["clients"],
        "users": own.get("users"),  # how many, where each has clients of its own
        "parties": own.get("parties"),  # how many, where they are machines of their own
        "labels": len(held),
        "labels_without_client": int((~held).sum()),
        "rounds_run": cost["rounds_run"],
        "seconds": cost["seconds"],
        "seconds_per_round": cost["seconds"] / max(cost["rounds_run"], 1),
        "peak_memory_mb": distributed.maximum(_peak_memory_mb()),  # of one process
        "bytes_up": cost["bytes_up"],
        "bytes_down": cost["bytes_down"],
        "collection": own["collection"],
        "privacy": own["privacy"],
        "versions": versions() | ({"flwr": version("flwr")} if own.get("parties") else {}),
    }


def versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("fedalc", "torch", "numpy", "scipy")}
    return {"python": platform.python_version(), **packages}


def _forget_peak_memory() -> None:
    """Start the process's peak anew, where the system can: otherwise a second run would report the first one's."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_mb() -> float:
    """The process's peak since then, in MiB."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
