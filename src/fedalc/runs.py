"""The run folder, and `train`, which fills one. Its layout is a contract: others read it.

config.toml    the full resolved settings: running it again gives the same result
history.jsonl  one line per evaluated round
result.json    metrics in percent, how collapsed W is, cost, versions
model/         what is needed to predict
checkpoint/    what is needed to resume
report.html    curves and tables
contact-sheet.png   of pictures: some of the test set, with their labels and those predicted
census/, parties.jsonl   with real parties (engine flower): who takes part, and who was left out when and why
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from fedalc import distributed, history
from fedalc.config import Experiment
from fedalc.data import Dataset, ImageOptions, Images, Split, load_dataset
from fedalc.data.catalog import is_generated
from fedalc.effects import given, note_without_effect
from fedalc.encoders import encoder_shape, picture_bytes
from fedalc.errors import ConfigError, FedalcError, Interrupted, Locked
from fedalc.files import write_text
from fedalc.interrupt import Interrupt
from fedalc.methods import METHODS
from fedalc.neighbours import check_search
from fedalc.oracles import ORACLES, TrainedOracle
from fedalc.oracles.training import OracleTraining
from fedalc.resolution import experiment
from fedalc.sharding import shard_of
from fedalc.trained import TrainedModel, load_model
from fedalc.training import Callback, Training, listening
from fedalc.watched import watching

LOCK = ".lock"  # there only while a process writes to the folder
SHEET = "contact-sheet.png"  # of runs on pictures
CENSUS, PARTIES_LOG = "census", "parties.jsonl"  # of runs with real parties
LOCK_ATTEMPTS = 100  # each but the last fails only where another process comes and goes in the same moment


class Taken(FedalcError):
    """There is a run in this folder already, begun or finished."""


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
    callbacks: Sequence[Callback] = (),
    **keys: Any,
) -> Run:
    """Train one model and look at the test set once.

    Settings come as an `Experiment`, or as keywords (`dataset="bibtex", method="fedaws", encoder={"name": "mlp"}`).
    With `folder`, everything is written there as it happens and an interrupted run can be resumed. `data` takes a
    dataset you have built yourself.
    """
    if settings is not None and keys:
        raise ConfigError(f"give an Experiment or keywords, not both (found {', '.join(keys)})")
    asked = given(keys)
    if data is not None:
        keys.setdefault("dataset", data.name)
        if isinstance(data.train.features, Images):
            keys["images"] = {"size": data.train.features.size, **keys.get("images", {})}
    if settings is None:
        settings = experiment(keys)
        note_without_effect([settings], asked)
    place = None if folder is None else Path(folder)
    return _train(settings, place, resume, overwrite, data, data_dir, callbacks)[0]


def _train(
    settings: Experiment,
    place: Path | None,
    resume: bool,
    overwrite: bool,
    data: Dataset | None,
    data_dir: Path | str | None,
    callbacks: Sequence[Callback],
) -> tuple[Run, bool]:
    """The run, and whether somebody has asked to stop when its training was over: it is tested and saved then too."""
    with distributed.joined(settings):
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
        check_kind(settings, data)
        check_memory(settings, data)
        check_search(settings, data.label_count)
        kind = OracleTraining if settings.method in ORACLES else Training
        training = kind(settings, data, place, callbacks)  # refuses what cannot be trained before anything is written
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
        if place is not None and writes:
            check_folder(place, settings, resume, overwrite)  # again: another process may have been here since
        if place is not None and resume:
            training.resume()
        elif place is not None and writes:
            open_folder(place, settings)
        with watching(training.tell_part):
            trained, own = training.finish(interrupt)
        result = _result(training, trained.held, own)
        if place is not None and writes:
            trained.save(place / "model")
            write_text(place / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
            _write_report(place, settings, trained, training.dataset.test)
    return Run(settings, result, trained, place), interrupt.asked


def _write_report(place: Path, settings: Experiment, trained: TrainedModel | TrainedOracle, test: Split) -> None:
    from fedalc.report.contact_sheet import write_test_sheet
    from fedalc.report.page import write_page

    if isinstance(trained, TrainedModel) and isinstance(test.features, Images) and len(test):
        write_test_sheet(place / SHEET, trained, test, settings.seed)
    write_page(place)


def train_or_continue(settings: Experiment, folder: Path, data: Dataset, callbacks: Sequence[Callback] = ()) -> Run:
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
            run, stop = _train(settings, folder, begun, False, data, None, callbacks)
            if stop:
                raise Interrupted(f"after the run in {folder} was finished")
            return run


def load_run(folder: Path | str) -> Run:
    """A finished run, from its folder."""
    place = Path(folder)
    settings = read_settings(place)
    if not (place / "result.json").exists():
        raise FedalcError(f"{place}: this run has not finished; go on with: fedalc train --resume {place}")
    result = json.loads((place / "result.json").read_text(encoding="utf-8"))
    return Run(settings, result, load_model(place / "model"), place)


def read_settings(folder: Path) -> Experiment:
    if not (folder / "config.toml").exists():
        raise FedalcError(f"{folder}: not a run folder (it has no config.toml)")
    return experiment(file=folder / "config.toml")


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
    return path.name == LOCK or (path.name.startswith("config.toml.") and path.suffix == ".part")


def open_folder(folder: Path, settings: Experiment) -> None:
    try:
        for old in ("history.jsonl", "result.json", "report.html", SHEET, PARTIES_LOG):
            (folder / old).unlink(missing_ok=True)
        for old in ("model", "checkpoint", "checkpoint.old", CENSUS):
            shutil.rmtree(folder / old, ignore_errors=True)
        write_text(folder / "config.toml", settings.to_toml())
        history.rewrite(folder / "history.jsonl", [])
    except OSError as error:
        raise FedalcError(f"{folder}: cannot be written: {error.strerror or error}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep a second process out of the folder. The system lets go of the lock when this one ends, however it ends.

    A folder that was made for it and in which nothing was written is taken away again.
    """
    made, lock = _lock(folder)
    with lock:
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # there is something in it, as there should be
                    folder.rmdir()


def _lock(folder: Path) -> tuple[bool, TextIO]:
    """Whether the folder is new, and the locked file. It must still be there under its name once it is locked: the
    one before us may have taken it away between our opening and our locking, and a third put another in its place.
    """
    made = False
    for _ in range(LOCK_ATTEMPTS):
        try:
            made = not folder.exists() or made
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue  # the one before us has just taken its folder away
        except OSError as error:
            raise FedalcError(f"{folder}: cannot be written: {error.strerror or error}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise Locked(f"{folder}: another process is writing to this run") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), (folder / LOCK).stat()):
                return made, lock
        lock.close()
    raise FedalcError(f"{folder}: cannot be written: {LOCK} does not stay there")


def image_options(settings: Experiment, callbacks: Sequence[Callback] = (), wait: bool = True) -> ImageOptions:
    """As the settings say. A training need not wait until all pictures are read: it waits for those it needs."""

    def progress(done: int, pictures: int) -> None:
        for callback in callbacks:
            callback.reading(done, pictures)

    i = settings.images
    return ImageOptions(i.size, i.difficult, i.broken, wait=wait, progress=progress)


def check_kind(settings: Experiment, data: Dataset) -> None:
    """Whether the settings are for what the dataset has, text or pictures, and of what size."""
    features = data.train.features
    refuse_other_kind(settings, data.name, isinstance(features, Images))
    if isinstance(features, Images) and features.size != settings.images.size:
        raise ConfigError(
            f"is {settings.images.size}, and the pictures of {data.name} have {features.size} pixels a side",
            "images.size",
        )


def refuse_other_kind(settings: Experiment, dataset: str, pictures: bool) -> None:
    """Pictures want an encoder of pictures, and the other way round."""
    if pictures and settings.method in ORACLES:
        raise ConfigError(f"{settings.method} is for sparse features, and {dataset} has pictures", "method")
    if pictures != settings.encoder.is_image and settings.method not in ORACLES:
        has = "pictures: use resnet18, resnet50 or resnet-small" if pictures else "no pictures: use linear or mlp"
        raise ConfigError(f"{settings.encoder.name} does not fit: {dataset} has {has}", "encoder.name")


def check_memory(settings: Experiment, data: Dataset) -> None:
    """Refuse a model that cannot fit, rather than be killed by the system for it."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // distributed.here().local_count
    if settings.method in ORACLES:
        needed = ORACLES[settings.method].memory(settings, data)
        if needed > has:
            raise ConfigError(
                f"{settings.method} on {data.feature_count} features and {data.label_count} labels needs "
                f"{needed / 1e9:.0f} GB, this machine has {has / 1e9:.0f}; choose another method",
                "method",
            )
        return
    shape = encoder_shape(data.feature_count, settings.encoder)
    theta = sum(parameter.numel() for parameter in shape.parameters())
    sub_models = METHODS[settings.method].sub_models(settings)
    number = 8 if settings.dtype == "float64" else 4
    copies = 10 if settings.server.optimizer == "cg" else 6  # gradient, optimiser, average and a copy
    shard = shard_of(settings, data.label_count)
    rows = data.label_count if shard is None else shard.own.stop - shard.own.start
    needed = number * sub_models * (copies * theta + 4 * rows * settings.encoder.dim)
    if METHODS[settings.method].one_round:
        needed += data.feature_count**2 * (number + 28)  # the sum, and a solution in double precision
    if settings.device == "cpu" and needed > has:
        field, hint = ("method", "; fedalc-exact needs less") if METHODS[settings.method].one_round else ("encoder", "")
        raise ConfigError(
            f"training needs {needed / 1e9:.0f} GB for the model, this machine has {has / 1e9:.0f}{hint}", field
        )
    # Not all that layers put out is kept for the way back: about half.
    pictures = sub_models * settings.block_rows * picture_bytes(shape, settings.images.size) // 2
    if settings.device == "cpu" and needed + pictures > has:
        raise ConfigError(
            f"{settings.block_rows} pictures at a time need {pictures / 1e9:.0f} GB, this machine has {has / 1e9:.0f}; "
            "fewer need less",
            "block_rows",
        )


def check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"cannot use {device!r}: {first}", "device") from None


def _result(training: Training | OracleTraining, held: np.ndarray, own: Mapping[str, Any]) -> dict[str, Any]:
    """`own`: what a federated training and an oracle's find out in different ways."""
    settings, cost = training.settings, training.cost()
    return {
        "dataset": training.dataset.name,
        **({"generated": True} if is_generated(training.dataset.name) else {}),
        "method": settings.method,
        "centralised": training.centralised,
        "engine": own["engine"],
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
