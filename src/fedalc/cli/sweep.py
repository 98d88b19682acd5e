"""`fedalc sweep`: try many settings of one method, and keep the best by validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedalc.cli.messages import with_resume_hint
from fedalc.cli.options import Dataset, Method, Seed, TrainingOptions, short_name, with_options
from fedalc.errors import ConfigError, FedalcError, Interrupted

if TYPE_CHECKING:
    from fedalc.workflows.sweep import Sweep


@with_options
def sweep(
    dataset: Dataset = None,
    method: Method = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="values of a setting: --grid server.ridge=0.1,1,10; all combinations of several are tried"),
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="try this many random draws from --range and --grid")
    ] = None,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", help="numbers to draw from: --range server.ridge=0.01:10:log, or LOW:HIGH without log"),
    ] = None,
    *,
    options: TrainingOptions,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option(help="name of the folder (default: sweep-dataset-method)")] = None,
    out: Annotated[Path, typer.Option(help="folder for the sweep's folder")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="train these trials again")] = False,
) -> None:
    """Try many settings of one method and keep the best by validation data. Run it again to continue."""
    from fedalc.config.resolve import experiment
    from fedalc.workflows.search_space import Space, parse_grid, parse_range

    asked = options.settings(dataset=dataset, method=method, seed=seed)
    values, ranges = [parse_grid(text) for text in grid or ()], [parse_range(text) for text in range_ or ()]
    names = [pair[0] for pair in (*values, *ranges)]
    if twice := [one for one in names if names.count(one) > 1]:
        raise ConfigError("give all values of a setting at once: --grid NAME=A,B,C", twice[0])
    Space.of(dict(values), dict(ranges))  # refuses before torch is loaded
    settings = experiment(asked, file=options.config, overrides=options.overrides)
    folder = out / (name or f"sweep-{short_name(settings.dataset)}-{settings.method}")
    from fedalc.training.callbacks import Callback, make_callbacks
    from fedalc.workflows.progress_bars import LiveProgress, PlainProgress, make_progress
    from fedalc.workflows.sweep import sweep as run_sweep

    console = Console(highlight=False)
    open_bars: list[LiveProgress | PlainProgress] = []

    def follow(title: str) -> list[Callback]:
        close_bars()
        open_bars.extend(make_progress(console, title, options.quiet))
        return [*open_bars, *make_callbacks(options.callback, options.track)]

    def close_bars() -> None:
        while open_bars:
            open_bars.pop().close()

    try:
        done = run_sweep(
            dict(values),
            random=random,
            ranges=dict(ranges),
            folder=folder,
            file=options.config,
            overrides=options.overrides,
            overwrite=overwrite,
            data_dir=options.data_dir,
            callbacks=follow,
            epsilon_budget=options.epsilon_budget,
            **asked,
        )
    except FedalcError as error:
        raise with_resume_hint(error, "the same command" + (", without --overwrite" if overwrite else "")) from None
    except KeyboardInterrupt:
        raise Interrupted("at once; run the same command to continue") from None
    finally:
        close_bars()
    _show(console, done)


def _show(console: Console, done: Sweep) -> None:
    from fedalc.report.plain_tables import PlainColumn, plain_table
    from fedalc.report.sweep_figures import shown
    from fedalc.report.tables import fixed, human_seconds, rich_table

    trials = done.trials
    columns = [
        *(PlainColumn(name, [shown(trial.settings[name]) for trial in trials], right=True) for name in done.names),
        PlainColumn(f"validation {done.metric}", [fixed(trial.value, 2) for trial in trials], right=True),
        PlainColumn("round", [shown(trial.round) if trial.round else "–" for trial in trials], right=True, leave_out=1),
        PlainColumn("time", [human_seconds(trial.seconds) for trial in trials], right=True, leave_out=2),
    ]
    console.print(plain_table(columns, console.width))
    for trial in trials:
        if trial.value is None:
            console.print(f"failed: {trial.folder.name}: {trial.problem}", markup=False, soft_wrap=True)
    finished = sum(trial.value is not None for trial in trials)
    best = ", ".join(f"{name} {shown(value)}" for name, value in done.best.items())
    console.print(
        f"Best of {finished} by {done.metric} on validation data, which no trial trained on: {best}. No trial saw the "
        "test set; below, the best settings, trained once more and tested once:\n",
        markup=False,
        soft_wrap=True,
    )
    console.print(rich_table([dict(done.run.result)]))
    places = {"plot": "sweep.png", "table": "table.md", "model": "best", "settings (for --config)": "best.toml"}
    line = "    ".join(f"{what}: {done.folder / file}" for what, file in places.items())
    console.print(line, markup=False, soft_wrap=True)
