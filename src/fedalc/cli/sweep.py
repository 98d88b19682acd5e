"""`fedalc sweep`: try many settings of one method, and keep the best by validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedalc.cli.messages import with_resume_hint
from fedalc.cli.options import (
    Callbacks,
    Config,
    DataDir,
    Dataset,
    Device,
    Encoder,
    Engine,
    EpsilonBudget,
    LabelColumn,
    LabelSeparator,
    MemoryBudget,
    Method,
    Preset,
    Quiet,
    Rounds,
    Seed,
    Set,
    TestFile,
    TestShare,
    TextColumn,
    Track,
    given,
    short_name,
    table_settings,
)
from fedalc.errors import ConfigError, FedalcError, Interrupted

if TYPE_CHECKING:
    from fedalc.workflows.sweep import Sweep


def sweep(
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
    dataset: Dataset = None,
    test: TestFile = None,
    test_share: TestShare = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    method: Method = None,
    preset: Preset = None,
    engine: Engine = None,
    encoder: Encoder = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    memory_budget: MemoryBudget = None,
    config: Config = None,
    set_: Set = None,
    data_dir: DataDir = None,
    epsilon_budget: EpsilonBudget = None,
    name: Annotated[str | None, typer.Option(help="name of the folder (default: sweep-dataset-method)")] = None,
    out: Annotated[Path, typer.Option(help="folder for the sweep's folder")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="train these trials again")] = False,
    callback: Callbacks = None,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Try many settings of one method and keep the best by validation data. Run it again to continue."""
    from fedalc.config.resolve import experiment
    from fedalc.workflows.search_space import Space, parse_grid, parse_range

    asked = given(
        dataset=dataset, method=method, preset=preset, engine=engine, encoder=encoder, rounds=rounds, seed=seed,
        device=device, memory_budget=memory_budget,
    )  # fmt: skip
    asked |= table_settings(text_column, label_column, label_separator, test, test_share)
    values, ranges = [parse_grid(text) for text in grid or ()], [parse_range(text) for text in range_ or ()]
    names = [pair[0] for pair in (*values, *ranges)]
    if twice := [one for one in names if names.count(one) > 1]:
        raise ConfigError("give all values of a setting at once: --grid NAME=A,B,C", twice[0])
    Space.of(dict(values), dict(ranges))  # refuses before torch is loaded
    settings = experiment(asked, file=config, overrides=set_ or ())
    folder = out / (name or f"sweep-{short_name(settings.dataset)}-{settings.method}")
    from fedalc.training.callbacks import Callback, make_callbacks
    from fedalc.workflows.progress_bars import LiveProgress, PlainProgress, make_progress
    from fedalc.workflows.sweep import sweep as run_sweep

    console = Console(highlight=False)
    open_bars: list[LiveProgress | PlainProgress] = []

    def follow(title: str) -> list[Callback]:
        close_bars()
        open_bars.extend(make_progress(console, title, quiet))
        return [*open_bars, *make_callbacks(callback, track)]

    def close_bars() -> None:
        while open_bars:
            open_bars.pop().close()

    try:
        done = run_sweep(
            dict(values),
            random=random,
            ranges=dict(ranges),
            folder=folder,
            file=config,
            overrides=set_ or (),
            overwrite=overwrite,
            data_dir=data_dir,
            callbacks=follow,
            epsilon_budget=epsilon_budget,
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
