"""`fedalc data …`: list datasets, say how to get them, and check a copy."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedalc.cli.options import DataDir, Set, TableOptions, with_options
from fedalc.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedalc.data.catalog.datasets import Entry
    from fedalc.data.check import Check
    from fedalc.data.dataset import Dataset

app = typer.Typer(help="Datasets: list, info, check, fetch, generate.", no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(help="a dataset's name")]
NameOrFolder = Annotated[str, typer.Argument(help="a dataset's name, or your own file or folder")]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the datasets that fedalc knows by name, and whether their files are here."""
    from fedalc.data.catalog.datasets import ENTRIES
    from fedalc.data.catalog.locate import data_root, presence
    from fedalc.data.formats import formats
    from fedalc.report.plain_tables import PlainColumn, plain_table

    rows = [(entry.name, *_numbers(entry), presence(entry, data_dir)) for entry in ENTRIES]
    cells = [list(column) for column in zip(*rows, strict=True)]
    headings = {"name": 0, "train": 0, "test": 2, "features": 1, "labels": 0, "per instance": 3, "here": 0}
    columns = [
        PlainColumn(heading, column, right=heading not in ("name", "here"), leave_out=leave_out)
        for (heading, leave_out), column in zip(headings.items(), cells, strict=True)
    ]
    console = Console()
    console.print(plain_table(columns, console.width))
    console.print(f"looked in {data_root(data_dir)}; to get one: fedalc data info NAME", highlight=False)
    console.print("packed: there is an archive; fedalc has not looked inside", highlight=False)
    console.print("generated: synthetic data with the sizes of a real dataset", highlight=False)
    known = ", ".join(f"{each.name} ({each.help or 'registered'})" for each in reversed(list(formats())))
    console.print(f"formats for your own folders: {known}", highlight=False, markup=False)


def _numbers(entry: Entry) -> list[str]:
    s, p = entry.statistics, entry.images
    if s is not None:
        features = "text" if s.features is None else f"{s.features:,}"
        return [f"{s.train:,}", f"{s.test:,}", features, f"{s.labels:,}", f"{s.labels_per_instance:.2f}"]
    if p is not None:
        average = "-" if p.labels_per_instance is None else f"{p.labels_per_instance:.2f}"
        return [f"{p.train:,}", f"{p.test:,}", "images", f"{p.labels:,}", average]
    return ["-"] * 5


@app.command()
def info(name: NameOrFolder, data_dir: DataDir = None) -> None:
    """Show what a dataset is, where to get it and where its files go; or what your own folder holds."""
    from fedalc.data.catalog.datasets import entry as find
    from fedalc.data.catalog.locate import dataset_dir

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if _is_folder(name):
        _print_folder(Path(name), console)
        return
    entry = find(name)
    console.print(f"{entry.name}: {entry.title}")
    s = entry.statistics
    if s:
        about = "about " if entry.like else ""
        console.print(
            f"  {s.train:,} train, {s.test:,} test"
            + (f", {s.validation:,} validation" if s.validation else "")
            + (", raw text" if s.features is None else f", {s.features:,} features")
            + f", {s.labels:,} labels, {s.instances_per_label} instances per label, "
            f"{s.labels_per_instance} labels per instance"
            + (f", {about}{s.features_per_instance:g} features per instance" if s.features_per_instance else "")
        )
    p = entry.images
    if p:
        console.print(
            f"  {p.train:,} train, {p.test:,} test"
            + (f", {p.validation:,} validation" if p.validation else "")
            + f", pictures, {p.labels:,} labels"
            + (f", {p.labels_per_instance} labels per instance" if p.labels_per_instance else "")
            + f"; in {dataset_dir(entry, data_dir)}"
        )
    if entry.users:
        console.print(f'  from {entry.users:,} users, who can be the clients: clients = "users"')
    if entry.note:
        console.print(f"  {entry.note}")
    if entry.files:
        packed = "" if entry.is_single_file else " (plain, .gz or .bz2)"
        console.print(f"  files: {', '.join(entry.files)}{packed} in {dataset_dir(entry, data_dir)}")
    for file, digest in entry.sha256.items():
        console.print(f"  SHA-256 of {file}, uncompressed: {digest}")
    if entry.page:
        console.print(f"  page: {entry.page}")
    if entry.downloads:
        console.print(f"  get it with: fedalc data fetch {entry.name}")
    if entry.how_to_get:
        console.print(f"  {'or by hand: ' if entry.downloads else ''}{entry.how_to_get}")


def _is_folder(name: str) -> bool:
    """Return whether this is a user's file or folder. A name in the catalog means the catalog's dataset; a path never
    does."""
    from fedalc.data.catalog.datasets import is_known

    return not is_known(name) and (Path(name).exists() or len(Path(name).parts) > 1)


def _print_folder(folder: Path, console: Console) -> None:
    from fedalc.data.formats import errors_named
    from fedalc.data.load import file_format, format_of
    from fedalc.data.parties import party_folders

    if not folder.exists():
        raise DataError("no such file or folder", folder)
    if folder.is_dir() and (parties := party_folders(folder)):
        first, *more = [f"a folder per party: {', '.join(parties)}"]
    else:
        data_format = format_of(folder) if folder.is_dir() else file_format(folder)
        with errors_named(data_format, folder):
            first, *more = data_format.describe(folder) if folder.is_dir() else [data_format.title]
    console.print(f"{folder}: {first}")
    for line in more:
        console.print(f"  {line}")
    console.print(f"  read all of it with: fedalc data check {shlex.quote(str(folder))}")
    console.print(f"  train on it with: fedalc train --dataset {shlex.quote(str(folder))}")


@app.command()
@with_options
def check(
    name: NameOrFolder,
    table: TableOptions,
    data_dir: DataDir = None,
    set_: Set = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="list all labels with their number of records, not only the most and least")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """Read a dataset, count what is in it, and say what to look at: duplicates, empty records, labels that cannot be
    learned. A known dataset is compared with its published numbers too.

    Exits with 1 if it differs from the published numbers, or if pictures are broken or in two splits.

    Examples: fedalc data check bibtex; fedalc data check my-folder --json
    """
    from rich.progress import Progress

    from fedalc.cli.data_check import as_json, print_findings, print_labels
    from fedalc.config.resolve import experiment
    from fedalc.data import ImageOptions, load_dataset
    from fedalc.data.catalog.datasets import entry as find
    from fedalc.data.catalog.locate import dataset_dir
    from fedalc.data.check import check as compare
    from fedalc.data.check import check_files
    from fedalc.data.load import has_pictures
    from fedalc.workflows.progress_bars import print_notes

    settings = experiment(table.settings(), overrides=set_ or ())
    is_folder = _is_folder(name)
    dataset_name = name if is_folder else find(name).name
    notes: list[str] = []
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("pictures", total=None, visible=has_pictures(dataset_name))

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        # Broken pictures are listed, and left out of the counts.
        options = ImageOptions(broken="skip", progress=show, tell=notes.append)
        dataset = load_dataset(dataset_name, data_dir, images=options, table=settings.table, text=settings.text)
    entry = None if is_folder else find(name)
    checks = [] if entry is None else check_files(dataset_dir(entry, data_dir), entry) + compare(dataset, entry)
    if json:
        typer.echo(as_json(dataset, notes, checks, labels))
    else:
        for note in notes:
            console.print(note)
        print_notes(console, dataset)
        if checks:
            _print_checks(checks)
        else:
            _print_counts(dataset)
        print_labels(console, dataset, labels)
        print_findings(console, dataset, name)
    if (notes and is_folder) or not all(line.ok for line in checks):
        raise typer.Exit(1)


def _print_checks(checks: Sequence[Check]) -> None:
    what, expected, found = (Column(name, overflow="fold") for name in ("what", "expected", "found"))
    table = Table(what, expected, found, "")
    for line in checks:
        table.add_row(line.what, str(line.expected), str(line.found), "ok" if line.ok else "differs")
    Console().print(table)


def _print_counts(dataset: Dataset) -> None:
    from fedalc.data.check import count

    table = Table(*(Column(name, overflow="fold") for name in ("what", "found")))
    for what, found in count(dataset):
        table.add_row(what, found)
    Console().print(table)


@app.command()
def fetch(name: Name, data_dir: DataDir = None) -> None:
    """Download a dataset (VOC, COCO). For the others, says where to get the files and where to put them."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from fedalc.data.catalog.datasets import entry as find
    from fedalc.data.catalog.fetch import fetch as download

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        folder = download(find(name), data_dir, show)
    console.print(f"{name} is in {folder}", highlight=False)


@app.command()
def generate(
    name: Annotated[str, typer.Argument(help="a generated problem: amazoncat-shaped, or amazoncat-shaped-100th, …")],
    folder: Annotated[Path, typer.Argument(help="folder for train.txt and test.txt")],
) -> None:
    """Write a generated problem as files in the Extreme Classification Repository's format."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from fedalc.data.synthetic.shapes import write_shaped

    console = Console(highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done)

        write_shaped(name, folder, progress=show)
    console.print(f"{folder}: {name}, generated: made up, not the real data")
