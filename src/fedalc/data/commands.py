"""`fedalc data …`: what datasets there are, how to get them, and whether a copy is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedalc.errors import DataError

if TYPE_CHECKING:
    from fedalc.data.catalog import Entry

app = typer.Typer(help="Datasets: list, info, check, fetch.", no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(help="a dataset's name")]
DataDir = Annotated[Path | None, typer.Option(help="where datasets live (default: $FEDALC_DATA, then ./data)")]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """The datasets known by name, and which of them are here."""
    from fedalc.data.catalog import ENTRIES
    from fedalc.data.load import data_root, presence

    table = Table(
        Column("name", no_wrap=True),
        "train",
        "test",
        "features",
        "labels",
        "per instance",
        Column("here", no_wrap=True),
    )
    for entry in ENTRIES:
        table.add_row(entry.name, *_numbers(entry), presence(entry, data_dir))
    console = Console()
    console.print(table)
    console.print(f"looked in {data_root(data_dir)}; how to get one: fedalc data info NAME", highlight=False)
    console.print("packed: there is an archive, which has not been looked into", highlight=False)


def _numbers(entry: Entry) -> list[str]:
    s, p = entry.statistics, entry.images
    if s is not None:
        return [f"{n:,}" for n in (s.train, s.test, s.features, s.labels)] + [f"{s.labels_per_instance:.2f}"]
    if p is not None:
        average = "-" if p.labels_per_instance is None else f"{p.labels_per_instance:.2f}"
        return [f"{p.train:,}", f"{p.test:,}", "images", f"{p.labels:,}", average]
    return ["-"] * 5


@app.command()
def info(name: Name, data_dir: DataDir = None) -> None:
    """What a dataset is, where to get it, and where its files go."""
    from fedalc.data.catalog import entry as find
    from fedalc.data.load import dataset_dir

    entry = find(name)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{entry.name}: {entry.title}")
    s = entry.statistics
    if s:
        console.print(
            f"  {s.train:,} train, {s.test:,} test"
            + (f", {s.validation:,} validation" if s.validation else "")
            + f", {s.features:,} features, {s.labels:,} labels, {s.instances_per_label} instances per label, "
            f"{s.labels_per_instance} labels per instance"
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
        console.print(f'  of {entry.users:,} users, who can be the clients: clients = "users"')
    if entry.note:
        console.print(f"  {entry.note}")
    if entry.files:
        console.print(f"  files: {', '.join(entry.files)} (plain, .gz or .bz2) in {dataset_dir(entry, data_dir)}")
    for file, digest in entry.sha256.items():
        console.print(f"  SHA-256 of {file}, uncompressed: {digest}")
    if entry.page:
        console.print(f"  page: {entry.page}")
    if entry.downloads:
        console.print(f"  get it with: fedalc data fetch {entry.name}")
    elif entry.how_to_get:
        console.print(f"  {entry.how_to_get}")


@app.command()
def check(name: Name, data_dir: DataDir = None) -> None:
    """Read a dataset and compare it with what it should be. Exits with 1 where it differs."""
    from rich.progress import Progress

    from fedalc.data import ImageOptions, load_dataset
    from fedalc.data.catalog import entry as find
    from fedalc.data.check import check as compare
    from fedalc.data.check import check_files
    from fedalc.data.load import dataset_dir

    entry = find(name)
    console = Console(highlight=False, soft_wrap=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("pictures", total=None, visible=entry.images is not None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        # What is broken is listed, and missing in the counts.
        options = ImageOptions(broken="skip", progress=show, tell=console.print)
        dataset = load_dataset(entry.name, data_dir, images=options)
    checks = check_files(dataset_dir(entry, data_dir), entry) + compare(dataset, entry)
    if not checks:
        raise DataError(f"{entry.name}: there is nothing to check it against")
    table = Table("what", Column("expected", overflow="fold"), Column("found", overflow="fold"), "")
    for line in checks:
        table.add_row(line.what, str(line.expected), str(line.found), "ok" if line.ok else "differs")
    Console().print(table)
    if not all(line.ok for line in checks):
        raise typer.Exit(1)


@app.command()
def fetch(name: Name, data_dir: DataDir = None) -> None:
    """Download a dataset where that needs no browser; says how to place the files by hand where it does."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from fedalc.data.catalog import entry as find
    from fedalc.data.fetch import fetch as download

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
