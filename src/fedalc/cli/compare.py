"""`fedalc compare`: several methods side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Preset,
    Quiet,
    Rounds,
    Set,
    TestFile,
    TestShare,
    TextColumn,
    TextEncoder,
    Track,
    collection_settings,
    given,
    listed,
    listed_seeds,
    short_name,
    table_settings,
)
from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import ConfigError, FedalcError, Interrupted

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment


def compare(
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"comma-separated (default: all of these that the settings allow: {', '.join(METHODS)}; "
            f"centralised, only if you name them: {', '.join(ORACLES)})"
        ),
    ] = None,
    dataset: Dataset = None,
    test: TestFile = None,
    test_share: TestShare = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    preset: Preset = None,
    engine: Engine = None,
    encoder: Encoder = None,
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="comma-separated: 0,1,2")] = "0",
    device: Device = None,
    memory_budget: MemoryBudget = None,
    config: Config = None,
    set_: Set = None,
    data_dir: DataDir = None,
    collection: Collection = None,
    epsilon_budget: EpsilonBudget = None,
    name: Annotated[str | None, typer.Option(help="name of the folder (default: compare-dataset-preset)")] = None,
    out: Annotated[Path, typer.Option(help="folder for the comparison's folder")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace runs that are finished")] = False,
    callback: Callbacks = None,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods and compare them: table, curves and page. Run it again to continue."""
    asked = given(
        dataset=dataset, preset=preset, engine=engine, encoder=encoder, rounds=rounds, device=device,
        text_encoder=text_encoder,
        memory_budget=memory_budget,
    )  # fmt: skip
    asked |= table_settings(text_column, label_column, label_separator, test, test_share)
    asked |= collection_settings(collection)
    settings = _settings_of_one(asked, config, set_ or (), METHODS if methods is None else listed(methods, "--methods"))
    folder = out / (name or f"compare-{short_name(settings.dataset)}-{settings.preset}")
    from fedalc.report.tables import rich_table
    from fedalc.training.callbacks import Callback, make_callbacks
    from fedalc.workflows.compare import compare as run_comparison  # loads torch: as in train
    from fedalc.workflows.progress_bars import LiveProgress, PlainProgress, make_progress

    console = Console()
    open_bars: list[LiveProgress | PlainProgress] = []

    def follow(method: str, seed: int) -> list[Callback]:
        close_bars()
        open_bars.extend(make_progress(console, f"{method:14} seed {seed}", quiet))
        return [*open_bars, *make_callbacks(callback, track)]

    def close_bars() -> None:
        while open_bars:
            open_bars.pop().close()

    try:
        comparison = run_comparison(
            None if methods is None else listed(methods, "--methods"),
            seeds=listed_seeds(seeds),
            folder=folder,
            file=config,
            overrides=set_ or (),
            overwrite=overwrite,
            data_dir=data_dir,
            callbacks=follow,
            epsilon_budget=epsilon_budget,
            verbose=False,  # the callbacks show it
            **asked,
        )
    except FedalcError as error:
        again = "the same command" + (", without --overwrite" if overwrite else "")
        raise with_resume_hint(error, again) from None
    except KeyboardInterrupt:
        raise Interrupted("at once; run the same command to continue") from None
    finally:
        close_bars()
    note_absent_labels(console, comparison.results[0])
    for method, reason in comparison.left_out.items():
        console.print(f"note: {method} was left out: {reason}", highlight=False, markup=False, soft_wrap=True)
    console.print(rich_table([dict(result) for result in comparison.results]))
    pictures = f"curves: {folder / 'curves.png'}    precision by traffic: {folder / 'bytes.png'}"
    console.print(f"{pictures}    page: {folder / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def _settings_of_one(
    asked: Mapping[str, Any], config: Path | None, overrides: Sequence[str], methods: Iterable[str]
) -> Experiment:
    """Return the settings of the first method that they allow: all have the same dataset and preset."""
    from fedalc.config.resolve import experiment

    for method in methods:
        with suppress(ConfigError):
            return experiment({**asked, "method": method}, file=config, overrides=overrides)
    return experiment(asked, file=config, overrides=overrides)
