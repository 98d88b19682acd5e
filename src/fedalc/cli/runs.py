"""`fedalc runs`: list, sort and filter runs, delete them, and remove what they no longer need."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedalc.errors import FedalcError, Locked

if TYPE_CHECKING:
    from fedalc.report.plain_tables import PlainColumn
    from fedalc.runs.listing import RunEntry

app = typer.Typer(help="List, sort, filter, delete and clean up runs.", invoke_without_command=True)

Folders = Annotated[
    list[Path] | None, typer.Option("--folder", help="folder with run folders; may be repeated (default: runs)")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="only runs with dataset=bibtex, 'P@1>60', status!=finished, 'server.ridge<=1', name~demo (contains); "
        "may be repeated",
    ),
]
Sort = Annotated[str, typer.Option(help="a column, a metric or a setting: when, size, P@1, server.ridge, …")]
Reverse = Annotated[bool, typer.Option("--reverse", help="the other way round")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
METRICS = ("P@1", "P@3", "P@5", "mAP")
COLUMNS = ("name", "status", "dataset", "method", "rounds", "when", "size")


@app.callback()
def _without_a_subcommand(
    context: typer.Context,
    folder: Folders = None,
    where: Where = None,
    sort: Sort = "when",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    if context.invoked_subcommand is None:
        list_runs(folder, where, sort, reverse, as_json)
    elif folder or where or sort != "when" or reverse or as_json:
        raise FedalcError(f"give the options after the command: fedalc runs {context.invoked_subcommand} …")


@app.command("list")
def list_runs(
    folder: Folders = None,
    where: Where = None,
    sort: Sort = "when",
    reverse: Reverse = False,
    as_json: Json = False,
) -> None:
    """List runs, the newest first: how they stand, their metrics and their size."""
    from fedalc.runs.query import in_order, matching, parse

    conditions = [parse(text) for text in where or ()]
    runs = in_order(matching(_all_runs(folder), conditions), sort, reverse)
    if as_json:
        typer.echo(json.dumps([run.to_dict() for run in runs], indent=1))
        return
    console = Console(highlight=False)
    if not runs:
        places = ", ".join(str(path) for path in folder or [Path("runs")])
        console.print(f"no runs in {places}" + (" for which this holds" if conditions else ""), markup=False)
        return
    _show(console, runs, [sort, *(condition.key for condition in conditions)])


def _all_runs(folders: Sequence[Path] | None) -> list[RunEntry]:
    from fedalc.runs.listing import find_runs

    for folder in folders or ():
        if not folder.is_dir():
            raise FedalcError(f"{folder}: there is no such folder")
    return [run for folder in folders or [Path("runs")] if folder.is_dir() for run in find_runs(folder)]


def _show(console: Console, runs: Sequence[RunEntry], asked: Sequence[str]) -> None:
    from fedalc.report.plain_tables import PlainColumn, plain_table

    metrics = [name for name in METRICS if any(name in run.metrics for run in runs)]
    more = [key for key in dict.fromkeys(asked) if key not in (*COLUMNS, *metrics)]
    columns = [
        PlainColumn("name", [run.name for run in runs], wraps=True),
        PlainColumn("status", [_status(run) for run in runs], wraps=True),
        PlainColumn("dataset", [_written(run.value("dataset")) for run in runs], leave_out=1, wraps=True),
        PlainColumn("method", [_written(run.value("method")) for run in runs], leave_out=1),
        *(_metric_column(name, runs) for name in metrics),
        *(PlainColumn(key, [_written(run.value(key)) for run in runs], right=True) for key in more),
        PlainColumn("rounds", [_rounds(run) for run in runs], right=True, leave_out=4),
        PlainColumn("when", [f"{run.when:%Y-%m-%d %H:%M}" for run in runs], leave_out=3),
        PlainColumn("size", [_size(run.size) for run in runs], right=True, leave_out=2),
    ]
    console.print(plain_table(columns, console.width))
    total = sum(run.size for run in runs)
    console.print(f"{len(runs)} run{'s' * (len(runs) != 1)}, {_size(total)}")
    for run in runs:
        if run.status == "damaged":
            console.print(Text(f"{run.name}: {run.detail}"), soft_wrap=True)


def _status(run: RunEntry) -> str:
    return f"{run.status}, {run.detail}" if run.status in ("interrupted", "running") else run.status


def _metric_column(name: str, runs: Sequence[RunEntry]) -> PlainColumn:
    from fedalc.report.plain_tables import PlainColumn

    cells = [_percent(run.metrics.get(name)) for run in runs]
    return PlainColumn(name, cells, right=True, leave_out=0 if name == METRICS[0] else 5)


def _rounds(run: RunEntry) -> str:
    return _written(run.value("rounds")) if run.result else "–"


def _percent(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "–"


def _written(value: Any) -> str:
    from fedalc.report.summary import text

    return f"{value:g}" if isinstance(value, float) else text(value)


def _size(size: int) -> str:
    from fedalc.report.tables import human_bytes

    return human_bytes(size)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="runs, as listed or as paths; comparisons and sweeps too")],
    folder: Folders = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Delete runs. Files in their folders that no run wrote stay."""
    from fedalc.runs.listing import size_of
    from fedalc.runs.removal import deletable
    from fedalc.runs.removal import delete as delete_runs

    targets = list(dict.fromkeys(_find(name, folder) for name in names))
    runs = list(dict.fromkeys(run for target in targets for run in deletable(target)))
    what = f"{len(runs)} run{'s' * (len(runs) != 1)} ({_size(sum(map(size_of, targets)))})"
    if not yes:
        if not sys.stdin.isatty():
            raise FedalcError(f"this would delete {what}: give --yes, as there is nobody to ask")
        for run in runs:
            typer.echo(run)
        typer.confirm(f"Delete {what}?", abort=True)
    removed = delete_runs(targets)
    typer.echo(f"deleted {len(runs)} run{'s' * (len(runs) != 1)}, {_size(removed.size)}")
    for path in removed.kept:
        typer.echo(f"kept {path}: no run wrote it")


def _find(name: str, folders: Sequence[Path] | None) -> Path:
    """Return the folder of a run, given by its name in the list or by its path."""
    places = [folder / name for folder in folders or [Path("runs")]]
    there = [place for place in places if place.is_dir()]
    if len(there) > 1:
        raise FedalcError(f"{name}: is in several folders: {', '.join(map(str, there))}; give the path")
    path = there[0] if there else Path(name)
    if not path.is_dir():
        raise FedalcError(f"{name}: there is no such run (fedalc runs lists them)")
    if path.resolve() in [folder.resolve() for folder in folders or [Path("runs")]]:
        raise FedalcError(f"{path}: is the folder of all runs; name the runs to delete")
    return path


@app.command()
def clean(
    folder: Folders = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
) -> None:
    """Remove checkpoints of finished runs, and files that killed processes left half-written."""
    from fedalc.runs.removal import clean as clean_run

    total, cleaned = 0, 0
    for run in _all_runs(folder):
        try:
            size = clean_run(run.folder, dry_run)
        except Locked:
            typer.echo(f"left alone {run.name}: a process is writing to it")
            continue
        if size:
            total, cleaned = total + size, cleaned + 1
            typer.echo(f"{_size(size):>9}  {run.name}")
    verb = "would remove" if dry_run else "removed"
    typer.echo(f"{verb} {_size(total)} from {cleaned} run{'s' * (cleaned != 1)}")
