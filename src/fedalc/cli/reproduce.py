"""`fedalc reproduce`: run a table of the paper again, in parallel, with the published figures beside ours."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedalc.cli.options import DataDir, absolute_dataset, listed, listed_seeds
from fedalc.errors import ConfigError, DataError, Interrupted

if TYPE_CHECKING:
    from fedalc.reproduction.plan import Ended, Plan


def reproduce(
    table: Annotated[str | None, typer.Argument(help="name or folder of a table; without it, list the tables")] = None,
    presets: Annotated[str | None, typer.Option(help="columns to run, comma-separated (default: all)")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="cells to run, names or patterns: 'fedalc*', 'paper/*', 'oracles/*'")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="seeds, comma-separated (default: the table's)")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="parallel runs (default: one per core; 1 on a GPU)")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="threads per run (default: cores / jobs)")] = None,
    rounds: Annotated[int | None, typer.Option(help="communication rounds, for all cells")] = None,
    dataset: Annotated[str | None, typer.Option(help="name or folder of another dataset, for all cells")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, for all cells: key=value")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …, for all cells")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="folder for runs and tables")] = Path("runs/reproduce"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs and stop")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="only write the table of finished runs")] = False,
) -> None:
    """Run a table of the paper and show the published figures beside ours. Run the same command to continue."""
    from fedalc.reproduction.data import absent_data
    from fedalc.reproduction.plan import make_plan, refuse_strange
    from fedalc.reproduction.table_spec import find_folder, is_communication, read_table

    console = Console()
    if table is None:
        _list_tables(console)
        return
    folder = find_folder(table)
    if is_communication(folder):
        if dry_run:
            console.print(f"would run a few rounds with a ResNet-50 and write the tables to {out / folder.name}")
            return
        _count_bytes(console, folder, out)
        return
    chosen = read_table(folder)
    columns = chosen.columns if presets is None else listed(presets, "--presets")
    for preset in columns:
        if preset not in chosen.columns:
            raise ConfigError(f"unknown preset {preset!r}; this table has {', '.join(chosen.columns)}", "--presets")
    keys = {"rounds": rounds, "device": device, "dataset": None if dataset is None else absolute_dataset(dataset)}
    plan = make_plan(
        chosen,
        out,
        presets=columns,
        seeds=None if seeds is None else listed_seeds(seeds),
        only=[pattern for text in only or () for pattern in listed(text, "--only")],
        keys={key: value for key, value in keys.items() if value is not None},
        overrides=set_ or (),
    )
    if report_only and not plan.folder.is_dir():
        raise ConfigError(f"{plan.folder}: no such folder, nothing to report", "--out")
    if not (report_only or plan.asked or plan.strange):
        reasons = Counter(why for name, why in plan.left_out.items() if plan.wants(*name.split("/")))
        raise ConfigError(f"none of these cells can be run: {reasons.most_common(1)[0][0]}")
    if dry_run:
        _print_plan(console, plan)
    absent = None if report_only else absent_data(plan, data_dir)
    if absent is not None:
        raise DataError(absent)
    if dry_run:
        return
    command = _command(table, presets, seeds, rounds, dataset, set_, device)
    ended = None
    if not report_only:
        refuse_strange(plan)
        plan.folder.mkdir(parents=True, exist_ok=True)  # fails now, before any run, if it cannot be written
        ended = _run(console, plan, jobs, threads, data_dir)
    _report(console, plan, command, ended, data_dir)
    if ended is not None and ended.stopped:
        finished = sum(job.state == "done" for job in plan.asked)
        raise Interrupted(f"with {finished} of {len(plan.asked)} runs finished; run the same command to continue")
    if ended is not None and ended.failed:
        raise typer.Exit(1)


def _run(console: Console, plan: Plan, jobs: int | None, threads: int | None, data_dir: Path | None) -> Ended:
    from fedalc.reproduction.plan import Ended
    from fedalc.reproduction.pool import run_jobs, usable_cores
    from fedalc.reproduction.watch import make_watcher

    waiting = [job for job in plan.asked if job.state != "done"]
    kept = len(plan.asked) - len(waiting)
    if kept:
        console.print(f"{kept} of {len(plan.asked)} runs are already finished", highlight=False)
    if not waiting:
        return Ended()
    on_device = any(job.settings.device != "cpu" for job in waiting)
    workers = min(jobs or (1 if on_device else usable_cores()), len(waiting))
    watcher = make_watcher(console, waiting, workers)
    try:
        return run_jobs(waiting, workers, threads or max(1, usable_cores() // workers), data_dir, watcher)
    finally:
        watcher.close()


def _report(console: Console, plan: Plan, command: str, ended: Ended | None, data_dir: Path | None) -> None:
    """Write table, figures and page from the run folders, and print the table."""
    from fedalc.reproduction import page
    from fedalc.reproduction import table_text as text
    from fedalc.reproduction.data import client_sizes
    from fedalc.reproduction.writing import write_outcome

    found = write_outcome(plan, command, ended, client_sizes(plan, data_dir))
    console.print(text.rich_table(found))
    for remark in text.remarks(found):
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    if ended is not None and ended.elsewhere:
        console.print(f"another process runs: {', '.join(ended.elsewhere)}", highlight=False, soft_wrap=True)
    console.print(
        f"table: {plan.folder / 'table.md'}    page: {plan.folder / page.NAME}", highlight=False, soft_wrap=True
    )


def _print_plan(console: Console, plan: Plan) -> None:
    from rich.table import Column, Table

    from fedalc.reproduction.table_spec import SWEPT

    title = f"{plan.table.title}: {plan.folder}"
    table = Table(Column("cell", no_wrap=True), "method", "rounds", "λ", "seeds", title=title)
    for column in table.columns:
        column.overflow = "fold"
    cells: dict[tuple[str, str], list[Any]] = {}
    for job in plan.asked:
        cells.setdefault((job.preset, job.cell), []).append(job)
    for (preset, cell), found in cells.items():
        settings = found[0].settings
        strength = f"{settings.regularizer.lambda_:g}" if settings.method in SWEPT else ""
        seeds: dict[str, list[str]] = {}
        for job in found:
            seeds.setdefault(job.state, []).append(str(job.settings.seed))
        states = "; ".join(f"{' '.join(numbers)} {state}" for state, numbers in seeds.items())
        table.add_row(f"{preset}/{cell}", settings.method, str(settings.rounds), strength, states)
    console.print(table)
    for names, words in ((plan.left_out, "left out"), (plan.strange, "made with other settings")):
        for why in dict.fromkeys(names.values()):
            which = ", ".join(name for name in names if names[name] == why)
            console.print(f"{which}: {words}: {why}", highlight=False, markup=False, soft_wrap=True)
    total, done = len(plan.asked), sum(job.state == "done" for job in plan.asked)
    console.print(f"{total} runs, {done} of them finished", highlight=False)


def _count_bytes(console: Console, folder: Path, out: Path) -> None:
    from fedalc.reproduction.communication.table import communication, rich_tables
    from fedalc.reproduction.writing import alone_in

    place = out / folder.resolve().name
    console.print("running a few rounds with a ResNet-50 to count their bytes: about a minute", highlight=False)
    with alone_in(place):
        counted = communication(folder, place)
    for table in rich_tables(counted):
        console.print(table)
    console.print(f"table: {place / 'table.md'}    figure: {place / 'bytes.png'}", highlight=False, soft_wrap=True)


def _list_tables(console: Console) -> None:
    from fedalc.reproduction.table_spec import find_folder, is_communication, read_table, table_folders

    folders = table_folders()
    if not folders:
        find_folder("any")  # raises, and explains
    for folder in folders:
        if is_communication(folder):
            console.print(f"{folder.name:14} bytes between server and clients, counted in a few small rounds")
            continue
        table = read_table(folder)
        seeds = ", ".join(map(str, table.seeds))
        console.print(
            f"{table.name:14} {table.title}: {len(table.rows)} rows on {table.dataset}, seeds {seeds}", highlight=False
        )
    console.print("run a table: fedalc reproduce TABLE; list its runs first: --dry-run", highlight=False)


def _command(table: str, *given: Any) -> str:
    """Return the command with the options that change the table: not those on processes or output."""
    options: list[str] = []
    names = ("--presets", "--seeds", "--rounds", "--dataset", "--set", "--device")
    for option, value in zip(names, given, strict=True):
        for one in value if isinstance(value, list) else [value]:
            options += [] if one is None else [option, str(one)]
    return shlex.join(["fedalc", "reproduce", table, *options])
