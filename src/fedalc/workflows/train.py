"""`train`, which fills a run folder, and `load_run`, which reads a finished one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.nn import Module

from fedalc.config.experiment import Experiment
from fedalc.config.neighbour_search import check_affordable
from fedalc.config.resolve import default_choice, experiment, for_labels
from fedalc.config.unused import names_of, note_without_effect
from fedalc.core import distributed
from fedalc.core.arguments import as_path
from fedalc.core.atomic_files import WriteFailed, remove_folder
from fedalc.core.devices import check_device
from fedalc.core.interrupt import Interrupt
from fedalc.core.peak_memory import peak_mb, reset_peak
from fedalc.core.progress_events import watching
from fedalc.core.registry import ORACLES
from fedalc.data import Dataset, ImageOptions, Images, Split, load_dataset
from fedalc.errors import ConfigError, FedalcError, Interrupted
from fedalc.models.encoders import register_module
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
    read_settings,
)
from fedalc.runs.result import Result, read_result, write_result
from fedalc.training.base import AnyTraining, listening
from fedalc.training.callbacks import Callback, checked_callbacks, part_watcher
from fedalc.training.selection import Training
from fedalc.workflows.load_model import load_model
from fedalc.workflows.preflight import check_kind, check_memory, check_processes
from fedalc.workflows.tune import settled


@dataclass(frozen=True)
class Run:
    """A finished run. `result` is what result.json holds (docs/run-folder.md)."""

    settings: Experiment
    result: Mapping[str, Any]
    model: TrainedModel | TrainedOracle
    folder: Path | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test set, in percent."""
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
    tune: bool | None = None,
    **keys: Any,
) -> Run:
    """Train one model and evaluate it on the test set once.

    Give the settings as an `Experiment`, or as keywords (`dataset="bibtex", method="fedaws", encoder={"name": "mlp"}`).
    `dataset` is a name, a folder, or a `Dataset` you have built yourself (which may also be given as `data`). With
    `folder`, the run is written there as it proceeds, and can be resumed after an interruption. `callbacks` are objects
    of classes that extend `fedalc.Callback`. `epsilon_budget` refuses a run with differential privacy if it and all
    earlier runs on this data would spend more than this ε.

    Without a method and other settings, fedalc searches for the best settings of its exact methods on held-out records
    (docs/tuning.md). `tune=False` takes fixed ones instead, and `tune=True` searches with a method that you name.
    """
    if settings is not None and not isinstance(settings, Experiment):
        raise ConfigError(f"expected an Experiment, found {settings!r:.60}; settings are keywords: train(dataset=…)")
    if settings is not None and keys:
        raise ConfigError(f"give an Experiment or keywords, not both (found {', '.join(keys)})")
    callbacks, folder = checked_callbacks(callbacks), None if folder is None else as_path(folder, "folder")
    if resume and folder is None:
        raise ConfigError("there is nothing to resume without the folder of a run", "folder")
    data = own_data(keys, data)
    register_own_encoder(keys)
    given = names_of(keys)
    if data is not None:
        describe(keys, data)
    if settings is None:
        settings = experiment(keys, defaults=default_choice(keys, tune=tune))
        note_without_effect([settings], given)
    if folder is not None and resume and (folder / "result.json").exists() and not (folder / "report.html").exists():
        if distributed.started_as().rank == 0:
            write_report(folder, data_dir)  # only the report is missing
        return load_run(folder)
    return _train(settings, folder, resume, overwrite, data, data_dir, callbacks, epsilon_budget)[0]


def train_on(data: Dataset, settings: Experiment, callbacks: Sequence[Callback] = ()) -> Run:
    """Train on data without a test set, and write nothing: for estimators. Ctrl-C raises KeyboardInterrupt, so that a
    caller who goes on after other errors (as scikit-learn's searches do) stops as well."""
    try:
        run, stop = _train(settings, None, False, False, data, None, callbacks, needs_test=False)
    except Interrupted:
        stop = True
    if stop:
        raise KeyboardInterrupt
    return run


def own_data(keys: dict[str, Any], data: Dataset | None = None) -> Dataset | None:
    """Return the dataset that the caller built, given as `data` or `dataset`; None if `dataset` is a name or folder.

    A path in `keys` becomes a string, as settings need it.
    """
    if data is not None and not isinstance(data, Dataset):
        raise ConfigError(f"expected a fedalc.Dataset, found {data!r:.60}; names and folders are for dataset=", "data")
    given = keys.get("dataset")
    if isinstance(given, os.PathLike):
        keys["dataset"] = os.fspath(given)
    if not isinstance(given, Dataset):
        return data
    if data is not None:
        raise ConfigError("give one of dataset and data, not both", "data")
    del keys["dataset"]
    return given


def register_own_encoder(keys: dict[str, Any]) -> None:
    """Let `encoder` be a torch.nn.Module: register it, and put the settings that ask for it in its place."""
    if isinstance(encoder := keys.get("encoder"), Module):
        keys["encoder"] = register_module(encoder)


def describe(keys: dict[str, Any], data: Dataset) -> None:
    """Add the settings that follow from the data: its name, its parties and the size of its pictures."""
    keys.setdefault("dataset", data.name)
    if data.train.parties is not None:
        keys.setdefault("clients", "parties")
    images = keys.get("images", {})
    if isinstance(data.train.features, Images) and isinstance(images, Mapping):
        keys["images"] = {"size": data.train.features.size, **images}


def _train(
    settings: Experiment,
    folder: Path | None,
    resume: bool,
    overwrite: bool,
    data: Dataset | None,
    data_dir: Path | str | None,
    callbacks: Sequence[Callback],
    epsilon_budget: float | None = None,
    needs_test: bool = True,
) -> tuple[Run, bool]:
    """Return the run, and whether the user asked to stop too late to interrupt it. `needs_test`: warn if there is no
    test data."""
    check_processes(settings)
    with distributed.joined(settings.device), watching(part_watcher(callbacks)):
        check_device(settings.device)
        reset_peak()
        if folder is not None and distributed.is_first():
            check_folder(folder, settings, resume, overwrite)
        if data is None:
            # Several processes wait until the first one has read the pictures.
            options = image_options(settings, callbacks, wait=distributed.here().count > 1)
            with distributed.in_turn():
                data = load_dataset(settings.dataset, data_dir, images=options)
        if needs_test and not len(data.test):
            warnings.warn(f"{data.name} has no test data, so the result has no metrics", stacklevel=4)
        if settings.clients != "parties" or settings.method in ORACLES:
            data = replace(data, train=data.train.in_one_place)
        settings, tuning, resume = settled(settings, data, folder, resume, overwrite, callbacks)
        settings = for_labels(settings, data.label_count)
        check_kind(settings, data)
        check_memory(settings, data)
        check_affordable(settings, data.label_count)
        training: AnyTraining
        if settings.method in ORACLES:
            training = OracleTraining(settings, data, folder, callbacks)
        else:
            training = Training(settings, data, folder, callbacks, epsilon_budget)
        training.tuning = tuning
        training.prepare()  # refuses what cannot be trained, before anything is written
        training.check_budget(resume)
        return fill_folder(training, resume, overwrite)


def fill_folder(
    training: AnyTraining, resume: bool, overwrite: bool, interrupt: Interrupt | None = None
) -> tuple[Run, bool]:
    """Run a prepared training, test its model and save both in its folder, if it has one. Return the run, and whether
    the user asked to stop. Listens to `interrupt`, or to a new one."""
    settings, folder = training.settings, training.folder
    output = folder if training.writes else None  # of several processes, only the first one writes
    with listening(interrupt) as interrupt, only_writer(output) if output else nullcontext():
        interrupt.on_asked = partial(_tell_stopping, training.callbacks)
        if output is not None:
            check_folder(output, settings, resume, overwrite)  # again: another process may have written since
            clear_leftovers(output)
        try:
            if folder is not None and resume:
                training.resume()
            elif output is not None:
                open_folder(output, settings)
            for callback in training.callbacks:
                callback.started(settings)
            trained, result = training.finish(interrupt)
            result.peak_memory_mb = distributed.maximum(peak_mb())
            if output is not None:
                _save(output, settings, trained, result, training.dataset.test)
        except WriteFailed as error:
            if folder is None or not (folder / "config.toml").exists():
                raise  # there is no run yet that could be resumed
            raise FedalcError(
                f"{error}. What was saved before is intact: resume the run afterwards (--resume {folder})"
            ) from error
    run = Run(settings, result.to_dict(), trained, folder)
    for callback in training.callbacks:
        callback.finished(run.result)
    return run, interrupt.asked


def _tell_stopping(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback.stopping()


def _save(
    folder: Path, settings: Experiment, trained: TrainedModel | TrainedOracle, result: Result, test: Split
) -> None:
    """Write the model, the report and, last, result.json: it marks the run as finished, so all other files are there
    by then. A report that cannot be drawn is an error only after the result is saved."""
    remove_folder(folder / "model.old")  # left by a save that a power cut interrupted
    trained.save(folder / "model")
    drawing_error = None
    try:
        _write_sheet(folder, settings, trained, test)
        _write_page(folder, result.to_dict())
    except WriteFailed:
        raise  # the user can make room and resume
    except Exception as error:
        drawing_error = error
    remove_folder(folder / "checkpoint.old")
    write_result(folder, result)
    if drawing_error is not None:
        raise drawing_error


def _write_sheet(folder: Path, settings: Experiment, trained: TrainedModel | TrainedOracle, test: Split) -> None:
    from fedalc.report.contact_sheet import write_test_sheet

    if isinstance(trained, TrainedModel) and isinstance(test.features, Images) and len(test):
        write_test_sheet(folder / SHEET, trained, test, settings.seed)


def _write_page(folder: Path, result: Mapping[str, Any] | None = None) -> Path:
    from fedalc.report.page import write_page

    return write_page(folder, result)


def write_report(folder: Path | str, data_dir: Path | str | None = None) -> Path:
    """Write the report of a finished run again. The contact sheet of a run on pictures is kept; if it is missing, it
    is drawn again from the test set."""
    folder = Path(folder)
    with only_writer(folder):
        run = load_run(folder)
        clear_leftovers(folder)
        if run.settings.encoder.is_image and not (folder / SHEET).exists():
            data = load_dataset(run.settings.dataset, data_dir, images=image_options(run.settings))
            _write_sheet(folder, run.settings, run.model, data.test)
        return _write_page(folder)


def train_or_continue(
    settings: Experiment,
    folder: Path,
    data: Dataset,
    callbacks: Sequence[Callback] = (),
    epsilon_budget: float | None = None,
) -> Run:
    """Return the run of these settings in this folder: loaded if finished, resumed if interrupted, else trained.

    If the user asked to stop too late to interrupt this run, raise `Interrupted` after it is finished, so that the
    caller starts no further run.
    """
    settings = for_labels(settings, data.label_count)
    while True:
        begun = (folder / "config.toml").exists()
        if begun and read_settings(folder) != settings:
            raise ConfigError(
                f"{folder} was made with other settings; give another folder, or replace it (--overwrite)"
            )
        if begun and (folder / "result.json").exists():
            return load_run(folder)
        with suppress(Taken):  # another process began a run here in the meantime: look again
            run, stop = _train(settings, folder, begun, False, data, None, callbacks, epsilon_budget)
            if stop:
                raise Interrupted(f"after the run in {folder} was finished")
            return run


def load_run(folder: Path | str) -> Run:
    """Load a finished run from its folder."""
    folder = as_path(folder, "folder")
    settings = read_settings(folder)
    if not (folder / "result.json").exists():
        raise FedalcError(f"{folder}: this run has not finished; resume it with: fedalc train --resume {folder}")
    return Run(settings, read_result(folder), load_model(folder / "model"), folder)


def image_options(settings: Experiment, callbacks: Sequence[Callback] = (), wait: bool = True) -> ImageOptions:
    """Return the options for reading pictures. Without `wait`, training starts while they are still being read."""

    def progress(done: int, pictures: int) -> None:
        for callback in callbacks:
            callback.reading(done, pictures)

    images = settings.images
    return ImageOptions(images.size, images.difficult, images.broken, wait=wait, progress=progress)
