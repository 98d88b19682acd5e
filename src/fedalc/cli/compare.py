"""`fedalc compare`: several methods side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedalc.cli.messages import note_absent_labels, with_resume_hint
from fedalc.cli.options import Dataset, TrainingOptions, listed, listed_seeds, short_name, with_options
from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import ConfigError, FedalcError, Interrupted

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment


@with_options
def compare(
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"comma-separated (default: all of these that the settings allow: {', '.join(METHODS)}; "
            f"centralised, only if you name them: {', '.join(ORACLES)})"
        ),
    ] = None,
    dataset: Dataset = None,
    *,
    options: TrainingOptions,
    seeds: Annotated[str, typer.Option(help="comma-separated: 0,1,2")] = "0",
    name: Annotated[str | None, typer.Option(help="name of the folder (default: compare-dataset-preset)")] = None,
    out: Annotated[Path, typer.Option(help="folder for the comparison's folder")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace runs that are finished")] = False,
) -> None:
    """Train several methods and compare them: table, curves and page. Run it again to continue."""
    asked = options.settings(dataset=dataset)
    several = METHODS if methods is None else listed(methods, "--methods")
    settings = _settings_of_one(asked, options.config, options.overrides, several)
    folder = out / (name or f"compare-{short_name(settings.dataset)}-{settings.preset}")
    from fedalc.report.tables import rich_table
    from fedalc.training.callbacks import Callback, make_callbacks
    from fedalc.workflows.compare import compare as run_comparison  # loads torch: as in train
    from fedalc.workflows.progress_bars import LiveProgress, PlainProgress, make_progress

    console = Console()
    open_bars: list[LiveProgress | PlainProgress] = []

    def follow(method: str, seed: int) -> list[Callback]:
        close_bars()
        open_bars.extend(make_progress(console, f"{method:14} seed {seed}", options.quiet))
        return [*open_bars, *make_callbacks(options.callback, options.track)]

    def close_bars() -> None:
        while open_bars:
            open_bars.pop().close()

    try:
        comparison = run_comparison(
            None if methods is None else listed(methods, "--methods"),
            seeds=listed_seeds(seeds),
            folder=folder,
            file=options.config,
            overrides=options.overrides,
            overwrite=overwrite,
            data_dir=options.data_dir,
            callbacks=follow,
            epsilon_budget=options.epsilon_budget,
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
