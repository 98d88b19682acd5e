"""`fedalc reproduce`: a table of the paper again, in parallel, with the published figures beside ours."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedalc.data.catalog import entry, is_known
from fedalc.errors import ConfigError, DataError, Interrupted

if TYPE_CHECKING:
    from fedalc.reproduction.plan import Plan
    from fedalc.reproduction.runner import Ended


def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="a table's name or folder; without it, the tables there are")
    ] = None,
    presets: Annotated[str, typer.Option(help="comma-separated: the columns")] = "paper,strong",
    only: Annotated[
        list[str] | None, typer.Option(help="cells to run, by name or pattern: 'fedalc*', 'paper/*', 'oracles/*'")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="comma-separated (default: the table's)")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="runs at a time (default: one per core; on a GPU 1)")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="of each run (default: cores / jobs)")] = None,
    rounds: Annotated[int | None, typer.Option(help="communication rounds, for all cells")] = None,
    dataset: Annotated[str | None, typer.Option(help="another dataset's name or folder, for all cells")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, for all cells: key=value")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …, for all cells")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="where datasets live (default: $FEDALC_DATA, then ./data)")
    ] = None,
    out: Annotated[Path, typer.Option(help="where runs and tables go")] = Path("runs/reproduce"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be run")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="only write the table of what is there")] = False,
) -> None:
    """Run a table of the paper, cell by cell, and set the published figures beside ours. Call again to continue."""
    from fedalc.reproduction.plan import make_plan, refuse_strange
    from fedalc.reproduction.tables import PRESETS, find_folder, is_communication, read_table

    console = Console()
    if table is None:
        _list_tables(console)
        return
    folder = find_folder(table)
    if is_communication(folder):
        _count_bytes(console, folder, out)
        return
    columns = _listed(presets, "--presets")
    for preset in columns:
        if preset not in PRESETS:
            raise ConfigError(f"unknown preset {preset!r}; a table has {', '.join(PRESETS)}", "--presets")
    keys = {"rounds": rounds, "device": device, "dataset": None if dataset is None else _absolute(dataset)}
    plan = make_plan(
        read_table(folder),
        out,
        presets=columns,
        seeds=None if seeds is None else [_seed(text) for text in _listed(seeds, "--seeds")],
        only=[pattern for text in only or () for pattern in _listed(text, "--only")],
        keys={key: value for key, value in keys.items() if value is not None},
        overrides=set_ or (),
    )
    if dry_run:
        _print_plan(console, plan)
    elif not (report_only or plan.asked or plan.strange):
        reasons = Counter(why for name, why in plan.left_out.items() if plan.wants(*name.split("/")))
        raise ConfigError(f"none of these cells can be run: {reasons.most_common(1)[0][0]}")
    absent = None if report_only else _absent_data(plan, data_dir)
    if absent is not None:
        raise DataError(absent)
    if dry_run:
        return
    command = _command(table, presets, seeds, rounds, dataset, set_, device)
    ended = None
    if not report_only:
        refuse_strange(plan)
        ended = _run(console, plan, jobs, threads, data_dir)
    _report(console, plan, command, ended, data_dir)
    if ended is not None and ended.stopped:
        finished = sum(job.state == "done" for job in plan.asked)
        raise Interrupted(f"with {finished} of {len(plan.asked)} runs finished; go on with: the same command again")
    if ended is not None and ended.failed:
        raise typer.Exit(1)


def _run(console: Console, plan: Plan, jobs: int | None, threads: int | None, data_dir: Path | None) -> Ended:
    from fedalc.reproduction.runner import Ended, run_jobs, usable_cores
    from fedalc.reproduction.watch import make_watcher

    waiting = [job for job in plan.asked if job.state != "done"]
    kept = len(plan.asked) - len(waiting)
    if kept:
        console.print(f"{kept} of {len(plan.asked)} runs are finished and kept", highlight=False)
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
    """Table, figures and page from what is in the run folders now."""
    from fedalc.files import write_text
    from fedalc.reproduction import figures, outcome, page, text

    found = outcome.collect(plan, command, ended, _sizes(plan, data_dir))
    outcome.write_json(found, plan.folder / "table.json")
    write_text(plan.folder / "table.md", text.markdown(found))
    drawn = figures.write_all(found, plan.folder)
    page.write_page(found, drawn, plan.folder)
    console.print(text.rich_table(found))
    for remark in text.remarks(found):
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    if ended is not None and ended.elsewhere:
        console.print(f"left to another process: {', '.join(ended.elsewhere)}", highlight=False, soft_wrap=True)
    console.print(
        f"table: {plan.folder / 'table.md'}    page: {plan.folder / page.NAME}", highlight=False, soft_wrap=True
    )


def _sizes(plan: Plan, data_dir: Path | None) -> Any:
    """Instances of each client; None where no figure wants them or the data is not here."""
    from fedalc.data import load_dataset

    if "clients" not in plan.table.figures or not plan.jobs or _absent_data(plan, data_dir) is not None:
        return None
    return load_dataset(plan.jobs[0].settings.dataset, data_dir).train.labels.getnnz(axis=0)


def _absent_data(plan: Plan, data_dir: Path | None) -> str | None:
    """What is missing and how to get it; None if the files are there. They are not read."""
    from fedalc.data.load import dataset_dir, find_split_files

    for name in dict.fromkeys(job.settings.dataset for job in plan.jobs):
        if name == "demo":
            continue
        folder = dataset_dir(entry(name), data_dir) if is_known(name) else Path(name)
        try:
            if folder.is_dir():
                find_split_files(folder)
                continue
            why = "no such folder"
        except DataError as error:
            why = str(error)
        hint = f"; `fedalc data info {name}` says where to get it" if is_known(name) else ""
        return f"dataset {name!r} is not in {folder}: {why}{hint}"
    return None


def _print_plan(console: Console, plan: Plan) -> None:
    from rich.table import Column, Table

    title = f"{plan.table.title}: {plan.folder}"
    table = Table(Column("cell", no_wrap=True), "method", "rounds", "λ", "seeds", title=title)
    cells: dict[tuple[str, str], list[Any]] = {}
    for job in plan.asked:
        cells.setdefault((job.preset, job.cell), []).append(job)
    for (preset, cell), found in cells.items():
        settings = found[0].settings
        strength = f"{settings.regularizer.lambda_:g}" if settings.method in ("fedaws", "fedalc") else ""
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
    from fedalc.reproduction.communication import communication, read_communication, rich_tables

    place = out / folder.resolve().name
    communication(folder, place)
    for table in rich_tables(read_communication(folder)):
        console.print(table)
    console.print(f"table: {place / 'table.md'}    figure: {place / 'bytes.png'}", highlight=False, soft_wrap=True)


def _list_tables(console: Console) -> None:
    from fedalc.reproduction.tables import find_folder, is_communication, read_table, table_folders

    folders = table_folders()
    if not folders:
        find_folder("any")  # raises, and says what to do
    for folder in folders:
        if is_communication(folder):
            console.print(f"{folder.name:12} bytes between server and clients: counted, nothing is trained")
            continue
        table = read_table(folder)
        seeds = ", ".join(map(str, table.seeds))
        console.print(
            f"{table.name:12} {table.title}: {len(table.rows)} rows on {table.dataset}, seeds {seeds}", highlight=False
        )
    console.print("run one: fedalc reproduce TABLE; look at it first: --dry-run", highlight=False)


def _command(table: str, presets: str, *rest: Any) -> str:
    """What the table depends on; how it was divided among processes is left out."""
    options: list[str] = [] if presets == "paper,strong" else ["--presets", presets]
    for option, value in zip(("--seeds", "--rounds", "--dataset", "--set", "--device"), rest, strict=True):
        for one in value if isinstance(value, list) else [value]:
            options += [] if one is None else [option, str(one)]
    return shlex.join(["fedalc", "reproduce", table, *options])


def _absolute(dataset: str) -> str:
    """A folder's path in full: config.toml is read from anywhere."""
    return dataset if is_known(dataset) or not Path(dataset).is_dir() else str(Path(dataset).resolve())


def _listed(text: str, option: str) -> Sequence[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"expected a comma-separated list, found {text!r}", option)
    return parts


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{text!r} is not a whole number", "--seeds")
    return int(text)
