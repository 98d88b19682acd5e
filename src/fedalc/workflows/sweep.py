"""Try many settings of one method and keep the best by validation data: a grid, or random draws.

Each trial trains on data without the test set, so that nothing can be chosen by it. The best settings are trained once
more as the user would train them, refit included, and only that run is tested.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.config.unused import names_of, note_without_effect
from fedalc.core.arguments import as_path
from fedalc.core.atomic_files import WriteFailed, write_text
from fedalc.data import Dataset
from fedalc.errors import ConfigError, FedalcError, Interrupted, Locked
from fedalc.evaluation.metrics import find_metric
from fedalc.runs.folder import OtherSettings
from fedalc.training.base import Callback, checked_callbacks
from fedalc.workflows.inputs import as_features, describe, load_data, own_data, register_own_encoder
from fedalc.workflows.run import Run
from fedalc.workflows.search_space import Point, Space, point_name
from fedalc.workflows.train import begun_with, image_options, train_or_continue

BEST = "best"  # folder of the run with the best settings
Follow = Callable[[str], Sequence[Callback]]


@dataclass(frozen=True)
class Trial:
    """One point and how well it did on validation data; `value` is None if its training failed (`problem` says why)."""

    settings: Mapping[str, Any]
    folder: Path
    value: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    round: int | None = None
    seconds: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": dict(self.settings),
            "folder": self.folder.name,
            "value": self.value,
            "metrics": dict(self.metrics),
            "round": self.round,
            "seconds": self.seconds,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `trials`: the best first, by `metric` on validation data. `run`: the best settings, trained
    with all that the settings ask for and tested once."""

    folder: Path
    metric: str
    names: tuple[str, ...]
    trials: tuple[Trial, ...]
    run: Run

    @property
    def best(self) -> Mapping[str, Any]:
        """The best values of the settings that were tried."""
        return self.trials[0].settings


def sweep(
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    random: int | None = None,
    ranges: Mapping[str, Any] | None = None,
    folder: Path | str,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data_dir: Path | str | None = None,
    callbacks: Follow | Sequence[Callback] | Callback = (),
    epsilon_budget: float | None = None,
    **keys: Any,
) -> Sweep:
    """Train one method with many settings into `folder`, and the best by `selection.metric` on validation data once
    more, into `folder`/best. Write a table, a plot and the best settings (best.toml, for --config).

    `grid`: values by the name of a setting; all combinations are tried: `{"server.ridge": [0.1, 1, 10]}`. `random`: try
    this many draws instead, from `ranges`, such as `{"server.ridge": (0.01, 10, "log")}` or "0.01:10:log", and from the
    values of `grid`. Settings of all trials are keywords, as in `train`.

    Call it again to continue: finished trials are kept, an interrupted one is resumed, and a larger grid or more draws
    add trials. A training that fails is listed as failed, and the others go on. `callbacks`: for all trials, or a
    function that returns them for a title.
    """
    target, follow = as_path(folder, "folder"), _follow(callbacks)
    user_data = own_data(keys)
    register_own_encoder(keys)
    if user_data is not None:
        describe(keys, user_data)
    base = experiment(keys, file=file, overrides=overrides)
    space = Space.of(grid or {}, ranges or {})
    points = space.points(random, base.seed)
    plan = [_settings(point, keys, file, overrides) for point in points]
    note_without_effect(plan, [*names_of(keys, overrides), *space.names])
    _check(plan)
    followers = follow(_title(1, plan, points[0]))
    data = None if user_data is None else as_features(plan[0], user_data)
    if data is None:
        data = load_data(plan[0], data_dir, image_options(plan[0], followers, wait=False))
    if plan[0].selection.validation == 0 and data.validation is None:
        raise ConfigError("a sweep chooses on validation data: leave some of train for it", "selection.validation")
    folders = [target / point_name(point) for point in points]
    if overwrite:
        for old in [*folders, target / BEST]:
            if (old / "config.toml").exists():
                shutil.rmtree(old)
    metric = plan[0].selection.metric
    untested = replace(data, test=data.train.rows(np.array([], dtype=np.int64)))
    trials: list[Trial] = []
    _write(target, metric, space.names, trials, None)
    for number, (point, settings, place) in enumerate(zip(points, plan, folders, strict=True), 1):
        followers = followers if number == 1 else follow(_title(number, plan, point))
        trials.append(_trial(point, settings, place, untested, followers, epsilon_budget))
        _write(target, metric, space.names, _ordered(trials, metric), None)
    trials = _ordered(trials, metric)
    if trials[0].value is None:
        raise FedalcError(f"no trial has finished; the first: {trials[0].problem}")
    chosen = experiment(keys, file=file, overrides=[*overrides, *_overrides(trials[0].settings)])
    run = _train_best(chosen, target / BEST, data, follow("best"), epsilon_budget)
    _write(target, metric, space.names, trials, run)
    return Sweep(target, metric, space.names, tuple(trials), run)


def _follow(callbacks: Any) -> Follow:
    if callable(callbacks) and not isinstance(callbacks, Callback):
        return callbacks
    same = checked_callbacks(callbacks)
    return lambda title: same


def _title(number: int, plan: Sequence[Experiment], point: Point) -> str:
    return f"{number}/{len(plan)}"


def _overrides(point: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value) if not isinstance(value, str) else value}" for name, value in point.items()]


def _settings(point: Point, keys: Mapping[str, Any], file: Path | None, overrides: Sequence[str]) -> Experiment:
    """Return the settings of a trial. It keeps the model of its best round: only the best trial is refitted."""
    try:
        settings = experiment(keys, file=file, overrides=[*overrides, *_overrides(point), "selection.refit=false"])
    except ConfigError as error:
        values = ", ".join(f"{name}={value}" for name, value in point.items())
        raise ConfigError(f"{error} (with {values})") from None
    return settings


def _check(plan: Sequence[Experiment]) -> None:
    if any(settings.tuning.search for settings in plan):
        raise ConfigError("the search chooses settings by itself; leave it out of a sweep", "tuning.search")
    if any(image_options(settings) != image_options(plan[0]) for settings in plan):
        raise ConfigError("all trials of a sweep need the same pictures", "images")
    if any((settings.text, settings.table) != (plan[0].text, plan[0].table) for settings in plan):
        raise ConfigError("all trials of a sweep need the same features and records", "text and table")


def _trial(
    point: Point,
    settings: Experiment,
    folder: Path,
    data: Dataset,
    callbacks: Sequence[Callback],
    epsilon_budget: float | None,
) -> Trial:
    try:
        run = train_or_continue(settings, folder, data, callbacks, epsilon_budget, needs_test=False)
    except (Interrupted, Locked, OtherSettings, WriteFailed):
        raise
    except FedalcError as error:  # such as a training that diverged
        return Trial(point, folder, None, problem=str(error))
    found = run.result.get("selection") or {}
    if "value" not in found:
        return Trial(point, folder, None, problem="the run has no validation metrics")
    metrics = {name.removeprefix("validation "): value for name, value in found["metrics"].items()}
    return Trial(point, folder, found["value"], metrics, found.get("round"), run.result["seconds"])


def _train_best(
    settings: Experiment, folder: Path, data: Dataset, callbacks: Sequence[Callback], epsilon_budget: float | None
) -> Run:
    """Train the best settings. If an earlier sweep of this folder had others for the best, its run is replaced."""
    if (folder / "config.toml").exists() and begun_with(settings, folder, data) is None:
        shutil.rmtree(folder)
    return train_or_continue(settings, folder, data, callbacks, epsilon_budget)


def _ordered(trials: Iterable[Trial], metric: str) -> list[Trial]:
    """Return the best trial first, and those without a value last."""
    sign = -1 if find_metric(metric).larger_is_better else 1
    return sorted(trials, key=lambda trial: (trial.value is None, sign * (trial.value or 0.0)))


def _write(folder: Path, metric: str, names: Sequence[str], trials: Sequence[Trial], run: Run | None) -> None:
    """Write sweep.json, and at the end the table, the plot and the best settings."""
    tried = [trial.to_dict() for trial in trials]
    found = {
        "metric": metric,
        "judged_on": "validation data",
        "settings": list(names),
        "trials": tried,
        "test": None if run is None else run.metrics,
    }
    write_text(folder / "sweep.json", json.dumps(found, indent=1) + "\n")
    if run is None:
        return
    from fedalc.report.sweep_figures import markdown_of_sweep, plot_sweep

    write_text(folder / "best.toml", run.settings.to_toml())
    write_text(folder / "table.md", markdown_of_sweep(metric, names, tried, run.metrics))
    plot_sweep(metric, names, tried, folder / "sweep.png", find_metric(metric).larger_is_better)
