"""Compare methods on the same data and seeds, each with the preset's settings for it."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.config.resolve import checked_overrides, experiment
from fedalc.config.unused import acting, names_of, note_without_effect
from fedalc.core.arguments import as_flag, as_path
from fedalc.core.atomic_files import write_text
from fedalc.core.frames import frame
from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import ConfigError
from fedalc.models.trained import TrainedModel
from fedalc.training.base import Callback, checked_callbacks
from fedalc.workflows.inputs import (
    NOT_GIVEN,
    as_features,
    describe,
    given_data,
    load_data,
    own_data,
    register_own_encoder,
)
from fedalc.workflows.progress_bars import progress_shown
from fedalc.workflows.run import Run
from fedalc.workflows.train import image_options, train_or_continue


@dataclass(repr=False)
class Comparison:
    """All runs, ordered by method, then by seed."""

    runs: list[Run] = field(default_factory=list)
    folder: Path | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # methods that the settings do not allow: the reason
    names: Sequence[str] = ()  # of the runs in tables and plots, if not their methods

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """The result of each run, with the settings that affect it. Tables use these to show differences."""
        results = [{**run.result, "settings": acting(run.settings)} for run in self.runs]
        if not self.names:
            return list(results)
        return [{**result, "name": name} for result, name in zip(results, self.names, strict=True)]

    def _named(self) -> Iterator[tuple[str, Run]]:
        names = self.names or [run.settings.method for run in self.runs]
        return zip(names, self.runs, strict=True)

    @property
    def table(self) -> Any:
        """A pandas frame with a row for each run: method, seed, the metrics on the test set in percent, and cost."""
        return frame(
            {"method": run.settings.method, "seed": run.settings.seed, **run.metrics, **cost(run.result)}
            for run in self.runs
        )

    def __repr__(self) -> str:
        runs = "".join(f"\n  {run!r}" for run in self.runs)
        return f"<fedalc.Comparison of {len(self.runs)} runs{runs}>"

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs) if find_spec("pandas") is None else self.table.to_html()

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """Return the history of the first seed, by method. Oracles have no rounds, and so no curve."""
        histories: dict[str, list[dict[str, Any]]] = {}
        for name, run in self._named():
            if run.settings.method not in ORACLES:
                histories.setdefault(name, run.records)
        return histories

    def embeddings(self) -> dict[str, np.ndarray]:
        """Return the class embeddings of the first seed, by method."""
        embeddings: dict[str, np.ndarray] = {}
        for name, run in self._named():
            if isinstance(run.model, TrainedModel):
                embeddings.setdefault(name, run.model.model.W[run.model.held].cpu().numpy())
        return embeddings


def cost(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a table that say what a run took."""
    return {name: result.get(name) for name in ("rounds", "seconds", "bytes_up", "bytes_down")}


def compare(
    methods: Sequence[str] | None = None,
    data: Any = NOT_GIVEN,
    labels: Any = None,
    *,
    test: Any = None,
    seeds: Iterable[int] = (0,),
    folder: Path | str | None = None,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data_dir: Path | str | None = None,
    callbacks: Callable[[str, int], Sequence[Callback]] | Sequence[Callback] | Callback = (),
    epsilon_budget: float | None = None,
    verbose: bool | None = None,
    **keys: Any,
) -> Comparison:
    """Train every method with every seed on the same data, and return the runs with a table.

    With `folder`, the runs go to `folder`/<method>-s<seed>, and a table, curves and a page to `folder`. Call it again
    to continue: finished runs are kept, and an interrupted run is resumed. Settings that differ from those of the
    folder are an error.

    `methods`: default is all federated methods that these settings allow; `left_out` has the others with the reason.
    Oracles take part only if you name them. `data`, `labels` and `test`: as in `train`, or give `dataset`.
    `callbacks`: for all runs, or a function that returns them for a method and a seed. `epsilon_budget`: as in `train`,
    for each run in turn. `verbose`: as in `train`.
    """
    target, seeds, methods = None if folder is None else as_path(folder, "folder"), _seeds(seeds), _methods(methods)
    overrides, twice = checked_overrides(overrides), [name for name in ("method", "seed") if name in keys]
    if twice:
        raise ConfigError(f"a comparison sets it itself: give {twice[0]}s, a list", twice[0])
    if as_flag(overwrite, "overwrite") and target is None:
        raise ConfigError("there is nothing to overwrite without a folder", "folder")
    follow = _follow(callbacks)
    user_data = own_data(keys, given_data(data, labels, test, keys, None, "compare(methods, "))
    register_own_encoder(keys)
    user_settings = names_of(keys, overrides)
    if user_data is not None:
        describe(keys, user_data)
    left_out: dict[str, str] = {}
    if methods is None:
        left_out = _refused(keys, file, overrides)
        methods = [method for method in METHODS if method not in left_out]
    for method in methods:
        if problem := METHODS.problem(method):
            raise ConfigError(problem, "methods")
    plan = [
        experiment({**keys, "method": method, "seed": seed}, file=file, overrides=overrides)
        for method in dict.fromkeys(methods)
        for seed in dict.fromkeys(seeds)
    ]
    if {(s.method, s.seed) for s in plan} != {(m, s) for m in methods for s in seeds}:
        raise ConfigError("a comparison sets method and seed itself: use methods and seeds (--methods, --seeds)")
    if any(image_options(settings) != image_options(plan[0]) for settings in plan):
        raise ConfigError("all methods of a comparison need the same pictures: set this for all methods", "images")
    weights = [(settings.encoder.frozen, settings.encoder.pretrained, settings.images) for settings in plan]
    if any(weights[0][0] or frozen for frozen, _, _ in weights) and len(set(weights)) > 1:
        raise ConfigError("all methods of a comparison need the same features: set this for all", "encoder.pretrained")
    for section in ("table", "text"):
        if any(getattr(settings, section) != getattr(plan[0], section) for settings in plan):
            raise ConfigError("all methods of a comparison need the same data: set this for all methods", section)
    note_without_effect(plan, user_settings)
    comparison = Comparison(folder=target, left_out=left_out)
    followers = follow(plan[0].method, plan[0].seed)
    options = image_options(plan[0], followers, wait=False)
    shared = None if user_data is None else as_features(plan[0], user_data)
    if shared is None:
        first = plan[0]
        shared = load_data(first, data_dir, options)
        for follower in followers:
            follower.loaded(shared)
    folders = [None if target is None else target / f"{settings.method}-s{settings.seed}" for settings in plan]
    if overwrite:
        _remove(folders)
    for settings, run_folder in zip(plan, folders, strict=True):
        followers = followers if settings is plan[0] else follow(settings.method, settings.seed)
        with progress_shown(verbose, f"{settings.method:14} seed {settings.seed}") as shown:
            run = train_or_continue(settings, run_folder, shared, (*shown, *followers), epsilon_budget)
        comparison.runs.append(run)
    if target is not None:
        write_comparison(comparison)
    return comparison


def _remove(folders: Iterable[Path | None]) -> None:
    """Remove earlier runs, and nothing else."""
    for folder in folders:
        if folder is not None and (folder / "config.toml").exists():
            shutil.rmtree(folder)


def _methods(methods: Any) -> list[str] | None:
    if isinstance(methods, str):
        raise ConfigError(f"expected a list of names, such as [{methods!r}]", "methods")
    if methods is not None and (not isinstance(methods, Iterable) or not (methods := list(methods))):
        raise ConfigError("expected at least one method name", "methods")
    return methods


def _seeds(seeds: Any) -> tuple[int, ...]:
    given = (seeds,) if isinstance(seeds, int) else seeds
    if isinstance(given, str) or not isinstance(given, Iterable) or not (given := tuple(given)):
        raise ConfigError(f"expected whole numbers, such as (0, 1, 2), found {seeds!r:.60}", "seeds")
    return given


def _follow(callbacks: Any) -> Callable[[str, int], Sequence[Callback]]:
    if callable(callbacks) and not isinstance(callbacks, Callback):
        try:
            inspect.signature(callbacks).bind("fedalc", 0)
        except TypeError as error:
            raise ConfigError(f"the function takes a method and a seed, but: {error}", "callbacks") from None
        except ValueError:  # of a function written in C
            pass
        return lambda method, seed: checked_callbacks(callbacks(method, seed))
    same = checked_callbacks(callbacks)
    return lambda method, seed: same


def _refused(keys: Mapping[str, Any], file: Path | None, overrides: Sequence[str]) -> dict[str, str]:
    """Return the methods that do not allow these settings, with the reason. Raise if no method allows them."""
    refused: dict[str, ConfigError] = {}
    for method in METHODS:
        try:
            experiment({**keys, "method": method}, file=file, overrides=overrides)
        except ConfigError as error:
            refused[method] = error
    if len(refused) == len(METHODS):
        raise next(iter(refused.values()))
    return {method: str(error) for method, error in refused.items()}


def write_comparison(comparison: Comparison) -> None:
    """Write the table, the plots and the page of a comparison into its folder."""
    from fedalc.report import error_curves, page, plots, tables

    assert comparison.folder is not None
    results = [dict(result) for result in comparison.results]
    histories = comparison.histories()
    write_text(comparison.folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_text(comparison.folder / "table.md", tables.markdown_table(results))
    plots.learning_curves(histories, comparison.folder / "curves.png")
    plots.precision_for_bytes(histories, comparison.folder / "bytes.png")
    plots.comparison_bars(results, comparison.folder / "precision.png")
    plots.cosine_heatmap(comparison.embeddings(), comparison.folder / "cosines.png")
    error_curves.write_comparison_curves(comparison.folder, results)
    page.write_comparison_page(comparison.folder, results, histories)
