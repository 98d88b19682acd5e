"""`train`, which fills a run folder, and `load_run`, which reads a finished one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.config.neighbour_search import check_affordable
from fedalc.config.resolve import default_choice, experiment, for_data, for_labels
from fedalc.config.unused import names_of, note_without_effect
from fedalc.core import distributed
from fedalc.core.arguments import as_flag, as_path, as_positive
from fedalc.core.atomic_files import WriteFailed, remove_folder
from fedalc.core.devices import check_device
from fedalc.core.interrupt import Interrupt
from fedalc.core.peak_memory import peak_mb, reset_peak
from fedalc.core.progress_events import watching
from fedalc.core.registry import ORACLES
from fedalc.data import Dataset, ImageOptions, Images, Split
from fedalc.data.load import has_difficult_objects
from fedalc.errors import OVERWRITE, ConfigError, FedalcError, Interrupted, resuming
from fedalc.models.trained import TrainedModel
from fedalc.oracles import TrainedOracle
from fedalc.oracles.training import OracleTraining
from fedalc.runs.folder import (
    SHEET,
    OtherSettings,
    Taken,
    check_folder,
    clear_leftovers,
    only_writer,
    open_folder,
    other_data,
    read_settings,
)
from fedalc.runs.result import Result, read_result, write_result
from fedalc.training.base import AnyTraining, listening
from fedalc.training.callbacks import Callback, checked_callbacks, part_watcher
from fedalc.training.selection import Training
from fedalc.workflows.inputs import (
    NOT_GIVEN,
    as_features,
    describe,
    given_data,
    load_data,
    own_data,
    register_own_encoder,
)
from fedalc.workflows.load_model import load_model
from fedalc.workflows.preflight import (
    check_document_counts,
    check_kind,
    check_memory,
    check_processes,
    check_records,
)
from fedalc.workflows.progress_bars import progress_shown
from fedalc.workflows.run import Run
from fedalc.workflows.tune import settled


def train(
    first: Any = NOT_GIVEN,
    /,
    labels: Any = None,
    *,
    test: Any = None,
    settings: Experiment | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    data: Dataset | None = None,
    data_dir: Path | str | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    epsilon_budget: float | None = None,
    tune: bool | None = None,
    verbose: bool | None = None,
    **keys: Any,
) -> Run:
    """Train one model and evaluate it on the test set once.

    First comes the data: `train(X, Y)` with records × features (or texts) and their labels, a data frame or Hugging
    Face dataset with both, a `Dataset`, a name of the catalog, or a path; `dataset=` takes the last three as well.
    `test` is (X, Y) or a frame to test on; without it, a fifth of data in memory is held out (`table={"test_share":
    0.1}`). Settings are keywords (`method="fedaws",
    encoder={"name": "mlp"}`), or all of them one `Experiment`, the first argument. With `folder`, the run is written
    there as it proceeds, and can be resumed after an interruption. `callbacks` are objects of classes that extend
    `fedalc.Callback`. `epsilon_budget` refuses a run with differential privacy if it and all earlier runs on this data
    would spend more than this ε. `verbose`: show progress; by default on a terminal and in a notebook.

    Without a method and other settings, fedalc searches for the best settings of its exact methods on held-out records
    (docs/tuning.md). `tune=False` takes fixed ones instead, and `tune=True` searches with a method that you name.
    """
    if isinstance(first, Experiment):
        if settings is not None:
            raise ConfigError("give one Experiment, not two", "settings")
        first, settings = NOT_GIVEN, first
    if settings is not None and not isinstance(settings, Experiment):
        raise ConfigError(f"expected an Experiment, found {settings!r:.60}; settings are keywords: train(dataset=…)")
    if settings is not None and keys:
        raise ConfigError(f"give an Experiment or keywords, not both (found {', '.join(keys)})")
    if settings is not None and tune not in (None, settings.tuning.search):
        raise ConfigError("an Experiment says itself whether to search: tuning.search", "tune")
    callbacks, folder = checked_callbacks(callbacks), None if folder is None else as_path(folder, "folder")
    resume, overwrite = as_flag(resume, "resume"), as_flag(overwrite, "overwrite")
    tune = None if tune is None else as_flag(tune, "tune")
    epsilon_budget = None if epsilon_budget is None else as_positive(epsilon_budget, "epsilon_budget")
    if resume and folder is None:
        raise ConfigError("there is nothing to resume without the folder of a run", "folder")
    data = own_data(keys, given_data(first, labels, test, keys, data))
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
    title = "fedalc" if settings.tuning.search else settings.method
    with progress_shown(verbose, title) as shown:
        return _train(settings, folder, resume, overwrite, data, data_dir, (*shown, *callbacks), epsilon_budget)[0]


def train_on(data: Dataset, settings: Experiment, verbose: bool) -> Run:
    """Train on data without a test set, and write nothing: for estimators. Ctrl-C raises KeyboardInterrupt, so that a
    caller who goes on after other errors (as scikit-learn's searches do) stops as well."""
    try:
        with progress_shown(verbose, settings.method) as shown:
            run, stop = _train(settings, None, False, False, data, None, shown, needs_test=False)
    except Interrupted:
        stop = True
    if stop:
        raise KeyboardInterrupt
    return run


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
        if folder is not None and resume:
            settings = settings.model_copy(update={"table": settings.table.completed(read_settings(folder).table)})
        taken = None if folder is None else _taken(folder, settings, resume, overwrite)
        if data is None:
            # Several processes wait until the first one has read the pictures.
            options = image_options(settings, callbacks, wait=distributed.here().count > 1)
            with distributed.in_turn():
                data = load_data(settings, data_dir, options)
            for callback in callbacks:
                callback.loaded(data)
        data = as_features(settings, data)
        settings = for_data(settings, data)
        if needs_test and not len(data.test):
            warnings.warn(f"{data.name} has no test data, so the result has no metrics", stacklevel=3)
        check_document_counts(settings, data)
        if taken is not None:
            check_kind(for_labels(settings, data.label_count), data)
            raise taken
        data = _as_held(data, settings)
        settings, tuning, resume = settled(settings, data, folder, resume, overwrite, callbacks)
        settings = for_labels(settings, data.label_count)
        check_kind(settings, data)
        check_memory(settings, data)
        check_records(settings, data)
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


def _as_held(data: Dataset, settings: Experiment) -> Dataset:
    """Return the data with each record once, unless the clients are parties that may share records."""
    if settings.clients == "parties" and settings.method not in ORACLES:
        return data
    return replace(data, train=data.train.in_one_place)


def _taken(folder: Path, settings: Experiment, resume: bool, overwrite: bool) -> Taken | None:
    """Check the run's folder. If it holds a run on other data, return that as an error to raise after this data was
    read: a mistake in it is more worth knowing."""
    if not distributed.is_first():
        return None
    try:
        check_folder(folder, settings, resume, overwrite)
    except Taken as error:
        if resume or _same_data(settings, folder):
            raise
        return error
    return None


def _same_data(settings: Experiment, folder: Path) -> bool:
    """Return whether the run in a folder has read this data, in the same way."""
    try:
        before = read_settings(folder)
    except FedalcError:  # of another version, or damaged
        return False
    return before.dataset == settings.dataset and settings.table.completed(before.table) == before.table


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
                if output is not None:
                    callback.placed(output)
                callback.started(settings)
            trained, result = training.finish(interrupt)
            result.peak_memory_mb = distributed.maximum(peak_mb())
            if output is not None:
                _save(output, settings, trained, result, training.dataset.test)
        except WriteFailed as error:
            if folder is None or not (folder / "config.toml").exists():
                raise  # there is no run yet that could be resumed
            raise FedalcError(
                f"{error}. What was saved before is intact: resume the run afterwards ({resuming(folder)})"
            ) from error
    run = Run(settings, result.to_dict(), trained, folder, tuple(training.records))
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

    shown = isinstance(test.features, Images) or test.pictures is not None
    if isinstance(trained, TrainedModel) and shown and len(test):
        write_test_sheet(folder / SHEET, trained, test, settings.seed)


def _write_page(folder: Path, result: Mapping[str, Any] | None = None) -> Path:
    from fedalc.report.error_curves import write_error_curves
    from fedalc.report.page import write_page

    write_error_curves(folder, read_result(folder) if result is None else result)
    return write_page(folder, result)


def write_report(folder: Path | str, data_dir: Path | str | None = None) -> Path:
    """Write the report of a finished run again. The contact sheet of a run on pictures is kept; if it is missing, it
    is drawn again from the test set."""
    folder = Path(folder)
    read_settings(folder)  # refuses what is not a run folder, before a lock is written there
    with only_writer(folder):
        run = load_run(folder)
        clear_leftovers(folder)
        encoder = run.settings.encoder
        if (encoder.is_image or encoder.frozen) and not (folder / SHEET).exists():
            data = load_data(run.settings, data_dir, image_options(run.settings))
            _write_sheet(folder, run.settings, run.model, data.test)
        return _write_page(folder)


def train_or_continue(
    settings: Experiment,
    folder: Path | None,
    data: Dataset,
    callbacks: Sequence[Callback] = (),
    epsilon_budget: float | None = None,
    needs_test: bool = True,
) -> Run:
    """Return the run of these settings in this folder: loaded if finished, resumed if interrupted, else trained.
    Without a folder, train and write nothing.

    If the user asked to stop too late to interrupt this run, raise `Interrupted` after it is finished, so that the
    caller starts no further run.
    """
    settings = for_labels(for_data(settings, data), data.label_count)
    while True:
        begun = folder is not None and (folder / "config.toml").exists()
        if folder is not None and begun:
            before = begun_with(settings, folder, data)
            if before is None:
                made = other_data(folder, settings) or " with other settings"
                raise OtherSettings(f"{folder} was made{made}; give another folder, or replace it ({OVERWRITE})")
            settings = before
        if folder is not None and begun and (folder / "result.json").exists():
            return load_run(folder)
        with suppress(Taken):  # another process began a run here in the meantime: look again
            run, stop = _train(settings, folder, begun, False, data, None, callbacks, epsilon_budget, needs_test)
            if stop:
                what = "this run" if folder is None else f"the run in {folder}"
                raise Interrupted(f"after {what} was finished")
            return run


def begun_with(settings: Experiment, folder: Path, data: Dataset) -> Experiment | None:
    """Return the settings of the run in a folder, if a training with these settings on this data began it."""
    settings, before = for_labels(for_data(settings, data), data.label_count), read_settings(folder)
    if not has_difficult_objects(settings.dataset):  # the default was another in earlier versions, without effect here
        images = settings.images.model_copy(update={"difficult": before.images.difficult})
        settings = settings.model_copy(update={"images": images})
    if before != settings and not settings.tuning.search:
        with warnings.catch_warnings():  # that run has told them
            warnings.simplefilter("ignore")
            settings = settled(settings, _as_held(data, settings), None, False, False, ())[0]
        settings = for_labels(settings, data.label_count)
    return before if before == settings else None


def load_run(folder: Path | str) -> Run:
    """Load a finished run from its folder."""
    folder = as_path(folder, "folder")
    settings = read_settings(folder)
    if not (folder / "result.json").exists():
        raise FedalcError(f"{folder}: this run has not finished; resume it ({resuming(folder)})")
    return Run(settings, read_result(folder), load_model(folder / "model", allow_secret_rows=True), folder)


def image_options(settings: Experiment, callbacks: Sequence[Callback] = (), wait: bool = True) -> ImageOptions:
    """Return the options for reading pictures. Without `wait`, training starts while they are still being read, unless
    it is on their features."""

    def progress(done: int, pictures: int) -> None:
        for callback in callbacks:
            callback.reading(done, pictures)

    images = settings.images
    frozen = settings.encoder.frozen
    fit = images.fit if frozen else "crop"
    return ImageOptions(images.size, images.difficult, images.broken, fit, wait or frozen, progress)
