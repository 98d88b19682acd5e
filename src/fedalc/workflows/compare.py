"""Methods side by side, on the same data and seeds: each with the preset's settings for all and for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.config.resolve import experiment
from fedalc.config.unused import acting, names_of, note_without_effect
from fedalc.core.arguments import as_path
from fedalc.core.atomic_files import write_text
from fedalc.core.registry import METHODS, ORACLES
from fedalc.data import load_dataset
from fedalc.errors import ConfigError
from fedalc.models.trained import TrainedModel
from fedalc.runs import history
from fedalc.training.base import Callback, checked_callbacks
from fedalc.workflows.train import Run, describe, image_options, own_data, train_or_continue


@dataclass
class Comparison:
    """All runs, in the order of `methods`, then seeds."""

    runs: list[Run] = field(default_factory=list)
    folder: Path | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # methods that the settings do not allow, and why

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """Each run's result, with the settings that act on it: tables say by these what differs between rows."""
        return [{**run.result, "settings": acting(run.settings)} for run in self.runs]

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """Per method, the history of its first seed. An oracle has no rounds, so no curve."""
        found: dict[str, list[dict[str, Any]]] = {}
        for run in self.runs:
            if run.folder is not None and run.settings.method not in ORACLES:
                found.setdefault(run.settings.method, history.read(run.folder / "history.jsonl"))
        return found

    def embeddings(self) -> dict[str, np.ndarray]:
        """Per method, the class embeddings of its first seed."""
        found: dict[str, np.ndarray] = {}
        for run in self.runs:
            if isinstance(run.model, TrainedModel):
                found.setdefault(run.settings.method, run.model.model.W[run.model.held].cpu().numpy())
        return found


def compare(
    methods: Sequence[str] | None = None,
    *,
    seeds: Iterable[int] = (0,),
    folder: Path | str,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data_dir: Path | str | None = None,
    callbacks: Callable[[str, int], Sequence[Callback]] | Sequence[Callback] | Callback = (),
    epsilon_budget: float | None = None,
    **keys: Any,
) -> Comparison:
    """Train every method with every seed into `folder`/<method>-s<seed>, and write table, curves and page there.

    Runs that are finished are kept, a run that was interrupted goes on: call it again to continue. Settings other than
    those the folder was made with are an error. Without `methods`, all federated ones that these settings allow are
    taken; the others are in `left_out`, with the reason. The oracles take part only when named. `dataset` is a name, a
    folder, or a `Dataset` you have built yourself. `callbacks` are those of all runs, or a function that gives them for
    a method and seed. `epsilon_budget`: as in `train`, for each run in turn.
    """
    place, seeds, methods = as_path(folder, "folder"), _seeds(seeds), _methods(methods)
    follow = _follow(callbacks)
    own = own_data(keys)
    asked = names_of(keys, overrides)
    if own is not None:
        describe(keys, own)
    left_out: dict[str, str] = {}
    if methods is None:
        left_out = _refused(keys, file, overrides)
        methods = [method for method in METHODS if method not in left_out]
    for method in methods:
        if method not in METHODS and method not in ORACLES:
            raise ConfigError(f"unknown method {method!r}; there are {', '.join([*METHODS, *ORACLES])}", "methods")
    plan = [
        experiment({**keys, "method": method, "seed": seed}, file=file, overrides=overrides)
        for method in dict.fromkeys(methods)
        for seed in dict.fromkeys(seeds)
    ]
    if {(s.method, s.seed) for s in plan} != {(m, s) for m in methods for s in seeds}:
        raise ConfigError("a comparison sets method and seed itself: use methods and seeds (--methods, --seeds)")
    if any(image_options(settings) != image_options(plan[0]) for settings in plan):
        raise ConfigError("all methods of a comparison are shown the same pictures: say it for all of them", "images")
    note_without_effect(plan, asked)
    comparison = Comparison(folder=place, left_out=left_out)
    followers = follow(plan[0].method, plan[0].seed)
    options = image_options(plan[0], followers, wait=False)
    data = own if own is not None else load_dataset(plan[0].dataset, data_dir, images=options)
    folders = [place / f"{settings.method}-s{settings.seed}" for settings in plan]
    if overwrite:
        for folder_ in folders:
            if (folder_ / "config.toml").exists():
                shutil.rmtree(folder_)
    for settings, run_folder in zip(plan, folders, strict=True):
        followers = followers if settings is plan[0] else follow(settings.method, settings.seed)
        comparison.runs.append(train_or_continue(settings, run_folder, data, followers, epsilon_budget))
    _write(comparison)
    return comparison


def _methods(methods: Any) -> list[str] | None:
    if isinstance(methods, str):
        raise ConfigError(f"expected a list of names, such as [{methods!r}]", "methods")
    if methods is not None and (not isinstance(methods, Iterable) or not (methods := list(methods))):
        raise ConfigError("expected names of methods, and there is none", "methods")
    return methods


def _seeds(seeds: Any) -> tuple[int, ...]:
    given = (seeds,) if isinstance(seeds, int) else seeds
    if isinstance(given, str) or not isinstance(given, Iterable) or not (given := tuple(given)):
        raise ConfigError(f"expected whole numbers, such as (0, 1, 2), found {seeds!r:.60}", "seeds")
    return given


def _follow(callbacks: Any) -> Callable[[str, int], Sequence[Callback]]:
    if callable(callbacks) and not isinstance(callbacks, Callback):
        return lambda method, seed: checked_callbacks(callbacks(method, seed))
    same = checked_callbacks(callbacks)
    return lambda method, seed: same


def _refused(keys: Mapping[str, Any], file: Path | None, overrides: Sequence[str]) -> dict[str, str]:
    """The methods that cannot be run with these settings, and why. What none of them allows is an error."""
    refused: dict[str, ConfigError] = {}
    for method in METHODS:
        try:
            experiment({**keys, "method": method}, file=file, overrides=overrides)
        except ConfigError as error:
            refused[method] = error
    if len(refused) == len(METHODS):
        raise next(iter(refused.values()))
    return {method: str(error) for method, error in refused.items()}


def _write(comparison: Comparison) -> None:
    from fedalc.report import page, plots, tables

    assert comparison.folder is not None
    results = [dict(result) for result in comparison.results]
    histories = comparison.histories()
    write_text(comparison.folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_text(comparison.folder / "table.md", tables.markdown_table(results))
    plots.learning_curves(histories, comparison.folder / "curves.png")
    plots.precision_for_bytes(histories, comparison.folder / "bytes.png")
    plots.comparison_bars(results, comparison.folder / "precision.png")
    plots.cosine_heatmap(comparison.embeddings(), comparison.folder / "cosines.png")
    page.write_comparison_page(comparison.folder, results, histories)
