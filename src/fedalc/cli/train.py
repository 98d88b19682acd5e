"""`fedalc train`: one method, into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedalc.cli.messages import note_absent_labels, with_resume_hint
from fedalc.cli.options import Dataset, Method, Seed, TrainingOptions, collection_settings, short_name, with_options
from fedalc.core.distributed import started_as
from fedalc.errors import FedalcError, Interrupted


@with_options
def train(
    dataset: Dataset = None,
    method: Method = None,
    *,
    options: TrainingOptions,
    seed: Seed = None,
    correlations: Annotated[
        Path | None,
        typer.Option(help="label correlations from `fedalc collect server`, instead of collecting"),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="the clients' key file, for --correlations or embeddings.secret")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="differential privacy of the label sets: add noise to their counts, for this ε")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of the run folder (default: dataset-method-preset-seed)")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for run folders")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="continue an interrupted run, given its folder")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run of the same name")] = False,
    tune: Annotated[
        bool | None,
        typer.Option(
            "--tune/--no-tune",
            help="choose loss, penalty and features on held-out records; on if you give no method and no settings",
        ),
    ] = None,
) -> None:
    """Train one method, test it once and write a run folder."""
    from fedalc.config.resolve import default_choice, experiment
    from fedalc.config.unused import names_of, note_without_effect
    from fedalc.runs.folder import SHEET, read_settings

    asked = options.settings(dataset=dataset, method=method, seed=seed, name=name)
    asked |= collection_settings(options.collection, correlations, key)
    if epsilon is not None:
        asked["privacy"] = {"epsilon": epsilon}
    if resume is not None:
        if asked or options.config or options.overrides or tune is not None:
            raise FedalcError("--resume takes its settings from the run folder: give no other settings")
        settings, folder = read_settings(resume), resume
    else:
        defaults = default_choice(asked, options.config, options.overrides, tune)
        settings = experiment(asked, file=options.config, overrides=options.overrides, defaults=defaults)
        note_without_effect([settings], names_of(asked, options.overrides))
        kind = "tuned" if settings.tuning.search else f"{settings.method}-{settings.preset}"
        folder = out / (settings.name or f"{short_name(settings.dataset)}-{kind}-s{settings.seed}")
    # These load torch, which takes seconds. A mistyped setting is refused before that.
    from fedalc.report.tables import rich_table
    from fedalc.training.callbacks import make_callbacks
    from fedalc.workflows.progress_bars import make_progress
    from fedalc.workflows.train import train as run_training

    first = started_as().rank == 0  # of several processes, the one that prints
    console = Console(quiet=not first)
    if settings.dataset == "demo" and "dataset" not in asked and resume is None and not options.quiet:
        console.print("dataset: demo, the embedded texts (yours: --dataset FILE)", highlight=False)
    trackers = make_callbacks(options.callback, options.track) if first else []
    title = "fedalc" if settings.tuning.search else settings.method
    followers = make_progress(console, title, options.quiet or not first)
    try:
        run = run_training(
            settings,
            folder=folder,
            resume=resume is not None,
            overwrite=overwrite,
            data_dir=options.data_dir,
            callbacks=[*followers, *trackers],
            epsilon_budget=options.epsilon_budget,
            verbose=False,  # the callbacks show it
        )
    except FedalcError as error:
        raise with_resume_hint(error, f"fedalc train --resume {folder}") from None
    except KeyboardInterrupt:
        if not (folder / "config.toml").exists():
            raise
        raise Interrupted(f"at once; continue with: fedalc train --resume {folder}") from None
    finally:
        for follower in followers:
            follower.close()
    note_absent_labels(console, run.result)
    if run.result.get("kept") and not options.quiet:
        console.print(f"{title}: {run.result['kept']}", highlight=False, markup=False, soft_wrap=True)
    console.print(rich_table([dict(run.result)]))
    pictures = f"    pictures: {folder / SHEET}" if (folder / SHEET).exists() else ""
    places = f"run folder: {folder}    report: {folder / 'report.html'}{pictures}"
    console.print(places, highlight=False, markup=False, soft_wrap=True)
