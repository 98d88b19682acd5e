"""`fedalc data …`: what datasets there are, how to get them, and whether a copy is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedalc.errors import DataError

app = typer.Typer(help="Datasets: list, info, check, fetch.", no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(help="a dataset's name")]
DataDir = Annotated[Path | None, typer.Option(help="where datasets live (default: $FEDALC_DATA, then ./data)")]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """The datasets known by name, and which of them are here."""
    from fedalc.data.catalog import ENTRIES
    from fedalc.data.load import data_root, dataset_dir

    table = Table(Column("name", no_wrap=True), "train", "test", "features", "labels", "per instance", "here")
    for entry in ENTRIES:
        s = entry.statistics
        here = "embedded" if entry.name == "demo" else "yes" if _is_here(dataset_dir(entry, data_dir)) else "no"
        numbers = [f"{n:,}" for n in (s.train, s.test, s.features, s.labels)] if s else ["-"] * 4
        table.add_row(entry.name, *numbers, f"{s.labels_per_instance:.2f}" if s else "-", here)
    console = Console()
    console.print(table)
    console.print(f"looked in {data_root(data_dir)}; how to get one: fedalc data info NAME", highlight=False)


def _is_here(folder: Path) -> bool:
    from fedalc.data.load import find_split_files

    try:
        return folder.is_dir() and bool(find_split_files(folder))
    except DataError:
        return False


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
    from fedalc.data import load_dataset
    from fedalc.data.catalog import entry as find
    from fedalc.data.check import check as compare
    from fedalc.data.check import check_files
    from fedalc.data.load import dataset_dir

    entry = find(name)
    dataset = load_dataset(entry.name, data_dir)
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
