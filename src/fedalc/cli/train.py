"""`fedalc train`: one method, into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedalc.cli.messages import note_absent_labels, with_resume_hint
from fedalc.cli.options import (
    Callbacks,
    Collection,
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
    TextEncoder,
    Track,
    collection_settings,
    given,
    short_name,
    table_settings,
)
from fedalc.core.distributed import started_as
from fedalc.errors import FedalcError, Interrupted


def train(
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
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    memory_budget: MemoryBudget = None,
    config: Config = None,
    set_: Set = None,
    data_dir: DataDir = None,
    collection: Collection = None,
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
    epsilon_budget: EpsilonBudget = None,
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
    callback: Callbacks = None,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Train one method, test it once and write a run folder."""
    from fedalc.config.resolve import default_choice, experiment
    from fedalc.config.unused import names_of, note_without_effect
    from fedalc.runs.folder import SHEET, read_settings

    asked = given(
        dataset=dataset, method=method, preset=preset, engine=engine, encoder=encoder, rounds=rounds, seed=seed,
        text_encoder=text_encoder, device=device, memory_budget=memory_budget, name=name,
    )  # fmt: skip
    asked |= table_settings(text_column, label_column, label_separator, test, test_share)
    asked |= collection_settings(collection, correlations, key)
    if epsilon is not None:
        asked["privacy"] = {"epsilon": epsilon}
    if resume is not None:
        if asked or config or set_ or tune is not None:
            raise FedalcError("--resume takes its settings from the run folder: give no other settings")
        settings, folder = read_settings(resume), resume
    else:
        defaults = default_choice(asked, config, set_ or (), tune)
        settings = experiment(asked, file=config, overrides=set_ or (), defaults=defaults)
        note_without_effect([settings], names_of(asked, set_ or ()))
        kind = "tuned" if settings.tuning.search else f"{settings.method}-{settings.preset}"
        folder = out / (settings.name or f"{short_name(settings.dataset)}-{kind}-s{settings.seed}")
    # These load torch, which takes seconds. A mistyped setting is refused before that.
    from fedalc.report.tables import rich_table
    from fedalc.training.callbacks import make_callbacks
    from fedalc.workflows.progress_bars import make_progress
    from fedalc.workflows.train import train as run_training

    first = started_as().rank == 0  # of several processes, the one that prints
    console = Console(quiet=not first)
    trackers = make_callbacks(callback, track) if first else []
    title = "fedalc" if settings.tuning.search else settings.method
    followers = make_progress(console, title, quiet or not first)
    try:
        run = run_training(
            settings,
            folder=folder,
            resume=resume is not None,
            overwrite=overwrite,
            data_dir=data_dir,
            callbacks=[*followers, *trackers],
            epsilon_budget=epsilon_budget,
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
    if run.result.get("kept") and not quiet:
        console.print(f"{title}: {run.result['kept']}", highlight=False, markup=False, soft_wrap=True)
    console.print(rich_table([dict(run.result)]))
    pictures = f"    pictures: {folder / SHEET}" if (folder / SHEET).exists() else ""
    places = f"run folder: {folder}    report: {folder / 'report.html'}{pictures}"
    console.print(places, highlight=False, markup=False, soft_wrap=True)
