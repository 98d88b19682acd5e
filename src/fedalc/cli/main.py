"""The commands. They parse, call and print; what they do is elsewhere, and imported when it is needed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedalc.cli.collect import audit, collect_app, key_app
from fedalc.cli.data import app as data_app
from fedalc.cli.deploy import app as deploy_app
from fedalc.cli.options import (
    Config,
    DataDir,
    Dataset,
    Device,
    Encoder,
    Engine,
    EpsilonBudget,
    MemoryBudget,
    Preset,
    Quiet,
    Rounds,
    Set,
    given,
    label_files,
    listed,
    listed_seeds,
)
from fedalc.cli.predict import predict
from fedalc.cli.privacy import privacy
from fedalc.cli.report import report
from fedalc.cli.reproduce import reproduce
from fedalc.core.distributed import started_as
from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import FedalcError, Interrupted


def _keep_the_help_of_arguments() -> None:
    """Flower asks for typer <0.21, whose arguments lose their help with click 8.4 and later."""
    from typer.core import TyperArgument

    make = TyperArgument.__init__

    def make_with_help(self: TyperArgument, *words: Any, help: str | None = None, **options: Any) -> None:
        make(self, *words, help=help, **options)
        self.help = help

    TyperArgument.__init__ = make_with_help  # type: ignore[method-assign]


_keep_the_help_of_arguments()
app = typer.Typer(
    help="Federated learning when every client has only positive examples of its own label.\n\n"
    "Start with: fedalc compare --preset demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedalc {version('fedalc')}")
        raise typer.Exit


@app.callback()
def _several_processes(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    command = context.invoked_subcommand
    if command not in (None, "train") and started_as().count > 1:
        raise FedalcError(f"{command} runs in one process: start it without torchrun, which is for `fedalc train`")


app.add_typer(data_app, name="data")
app.add_typer(key_app, name="key")
app.add_typer(collect_app, name="collect")
app.add_typer(deploy_app, name="deploy")


@app.command()
def train(
    dataset: Dataset = None,
    method: Annotated[str | None, typer.Option(help=", ".join([*METHODS, *ORACLES]))] = None,
    preset: Preset = None,
    engine: Engine = None,
    encoder: Encoder = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="same seed and settings, same result")] = None,
    device: Device = None,
    memory_budget: MemoryBudget = None,
    config: Config = None,
    set_: Set = None,
    data_dir: DataDir = None,
    correlations: Annotated[
        Path | None, typer.Option(help="label correlations from `fedalc collect server`, instead of collecting here")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="the clients' key file that --correlations was made with")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="differential privacy of the label sets: noised counts at this ε")
    ] = None,
    epsilon_budget: EpsilonBudget = None,
    name: Annotated[
        str | None, typer.Option(help="the run folder's name (default: dataset-method-preset-seed)")
    ] = None,
    out: Annotated[Path, typer.Option(help="where run folders go")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="go on with an interrupted run, from its folder")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an earlier run of this name")] = False,
    quiet: Quiet = False,
) -> None:
    """Train one method and test it once, into a run folder."""
    from fedalc.config.resolve import experiment
    from fedalc.config.unused import names_of, note_without_effect
    from fedalc.runs.folder import SHEET, read_settings

    asked = given(
        dataset=dataset, method=method, preset=preset, engine=engine, encoder=encoder, rounds=rounds, seed=seed,
        device=device, memory_budget=memory_budget, name=name,
    )  # fmt: skip
    asked |= label_files(correlations, key)
    if epsilon is not None:
        asked["privacy"] = {"epsilon": epsilon}
    if resume is not None:
        if asked or config or set_:
            raise FedalcError("--resume takes its settings from the run folder: give it alone")
        settings, folder = read_settings(resume), resume
    else:
        settings = experiment(asked, file=config, overrides=set_ or ())
        note_without_effect([settings], names_of(asked, set_ or ()))
        dataset_name = Path(settings.dataset).resolve().name
        folder = out / (settings.name or f"{dataset_name}-{settings.method}-{settings.preset}-s{settings.seed}")
    # Here, as they load torch, for which nobody should wait who has only mistyped a setting.
    from fedalc.report.tables import rich_table
    from fedalc.workflows.progress_bars import make_progress
    from fedalc.workflows.train import train as run_training

    first = started_as().rank == 0  # of several processes: the one that shows
    console = Console(quiet=not first)
    followers = make_progress(console, settings.method, quiet or not first)
    try:
        run = run_training(
            settings,
            folder=folder,
            resume=resume is not None,
            overwrite=overwrite,
            data_dir=data_dir,
            callbacks=followers,
            epsilon_budget=epsilon_budget,
        )
    except FedalcError as error:
        raise _with_resume_hint(error, f"fedalc train --resume {folder}") from None
    except KeyboardInterrupt:
        if not (folder / "config.toml").exists():
            raise
        raise Interrupted(f"at once; go on with: fedalc train --resume {folder}") from None
    finally:
        for follower in followers:
            follower.close()
    _note_absent_labels(console, run.result)
    console.print(rich_table([dict(run.result)]))
    pictures = f"    pictures: {folder / SHEET}" if (folder / SHEET).exists() else ""
    places = f"run folder: {folder}    report: {folder / 'report.html'}{pictures}"
    console.print(places, highlight=False, markup=False, soft_wrap=True)


@app.command()
def compare(
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"comma-separated (default: all that the settings allow of {', '.join(METHODS)}; "
            f"centralised, and only when named: {', '.join(ORACLES)})"
        ),
    ] = None,
    dataset: Dataset = None,
    preset: Preset = None,
    engine: Engine = None,
    encoder: Encoder = None,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="comma-separated: 0,1,2")] = "0",
    device: Device = None,
    memory_budget: MemoryBudget = None,
    config: Config = None,
    set_: Set = None,
    data_dir: DataDir = None,
    epsilon_budget: EpsilonBudget = None,
    name: Annotated[str | None, typer.Option(help="the folder's name (default: compare-dataset-preset)")] = None,
    out: Annotated[Path, typer.Option(help="where it goes")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do runs again that are there already")] = False,
    quiet: Quiet = False,
) -> None:
    """Train several methods, each as the preset has it: a table, and curves as pictures. Call again to continue."""
    from fedalc.config.resolve import experiment

    asked = given(
        dataset=dataset, preset=preset, engine=engine, encoder=encoder, rounds=rounds, device=device,
        memory_budget=memory_budget,
    )  # fmt: skip
    settings = experiment(asked, file=config, overrides=set_ or ())
    folder = out / (name or f"compare-{Path(settings.dataset).resolve().name}-{settings.preset}")
    from fedalc.report.tables import rich_table
    from fedalc.workflows.compare import compare as run_comparison  # loads torch: as in train
    from fedalc.workflows.progress_bars import LiveProgress, PlainProgress, make_progress

    console = Console()
    open_bars: list[LiveProgress | PlainProgress] = []

    def follow(method: str, seed: int) -> list[LiveProgress | PlainProgress]:
        close_bars()
        open_bars.extend(make_progress(console, f"{method:14} seed {seed}", quiet))
        return open_bars

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
            **asked,
        )
    except FedalcError as error:
        again = "the same command again" + (", without --overwrite" if overwrite else "")
        raise _with_resume_hint(error, again) from None
    except KeyboardInterrupt:
        raise Interrupted("at once; go on with: the same command again") from None
    finally:
        close_bars()
    _note_absent_labels(console, comparison.results[0])
    for method, reason in comparison.left_out.items():
        console.print(f"note: {method} is left out: {reason}", highlight=False, markup=False, soft_wrap=True)
    console.print(rich_table([dict(result) for result in comparison.results]))
    pictures = f"curves: {folder / 'curves.png'}    precision for bytes: {folder / 'bytes.png'}"
    console.print(f"{pictures}    page: {folder / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


app.command()(predict)
app.command()(report)
app.command()(reproduce)
app.command()(audit)
app.command()(privacy)


def _with_resume_hint(error: FedalcError, command: str) -> FedalcError:
    return Interrupted(f"{error}; go on with: {command}") if isinstance(error, Interrupted) else error


def _note_absent_labels(console: Console, result: Any) -> None:
    absent = result["labels_without_client"]
    if absent:
        total = result.get("labels", absent + result["clients"])  # older results have no "labels"
        console.print(
            f"note: {absent} of {total} labels have no training instance: nobody holds them, they are never predicted"
        )


def main() -> None:
    """The console script: errors meant for a person become one line and exit code 2, an interruption 130."""
    # Threads that wait for work by spinning slow everything down on a shared machine. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.showwarning = _note(warnings.showwarning)
    try:
        app()
    except FedalcError as error:
        stopped = isinstance(error, Interrupted)
        if not (stopped and _is_another()):
            _complain(f"stopped {error}" if stopped else f"error: {error}")
        sys.exit(130 if stopped else 2)
    except SystemExit as end:
        if end.code == 130:  # what typer makes of Ctrl-C, without a word
            _complain("stopped")
        raise
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:  # no room on the disk, no right to write there, …
        _complain(f"error: {error.filename or 'output'}: {error.strerror or error}")
        sys.exit(2)
    except KeyboardInterrupt:
        _complain("stopped")
        sys.exit(130)


def _note(otherwise: Callable[..., None]) -> Callable[..., None]:
    """What warnings are shown by: those meant for a person as a line of their own, without the place in the code."""

    def show(message: Any, category: type[Warning], *where: Any, **how: Any) -> None:
        if category is not UserWarning:
            otherwise(message, category, *where, **how)
            return
        if _is_another():
            return  # the first process says the same
        Console(stderr=True).print(f"note: {message}", highlight=False, markup=False, soft_wrap=True)

    return show


def _is_another() -> bool:
    """Whether this is one of several processes and not the first."""
    return started_as().rank > 0


def _complain(line: str) -> None:
    Console(stderr=True).print(line, style="red", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
