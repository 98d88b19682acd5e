"""Make reports again: of runs, of comparisons, and of any runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedalc.config.unused import acting
from fedalc.core.safe_parsing import Unreadable, parse_json
from fedalc.errors import FedalcError
from fedalc.runs.listing import is_run, run_folders
from fedalc.runs.result import NAME
from fedalc.workflows.compare import Comparison, write_comparison
from fedalc.workflows.run import Run
from fedalc.workflows.train import load_run, write_report

PAGE, RESULTS = "report.html", "results.json"


def write_reports(folders: Sequence[Path], data_dir: Path | None = None) -> Iterator[Path]:
    """Write the pages of finished runs again. A comparison's or sweep's folder stands for its runs; a comparison's own
    page follows. Yield each page as it is written."""
    for folder in folders:
        runs = _finished(folder)
        for run in runs:
            yield write_report(run, data_dir)
        if folder not in runs and (folder / RESULTS).exists():
            write_comparison(Comparison(_as_before([load_run(run) for run in runs], folder), folder))
            yield folder / PAGE


def _as_before(runs: Sequence[Run], folder: Path) -> list[Run]:
    """Return the runs of a comparison in the order of its table. One that the table lacks comes last."""
    order: list[Any] = []
    with suppress(OSError, Unreadable, AttributeError, TypeError):
        content = parse_json((folder / RESULTS).read_bytes())
        order = [(result.get("method"), result.get("seed")) for result in content]
    place = {key: number for number, key in reversed(list(enumerate(order)))}
    return sorted(runs, key=lambda run: place.get((run.settings.method, run.settings.seed), len(order)))


def compare_runs(folders: Sequence[Path], target: Path) -> Comparison:
    """Write a comparison of finished runs, whatever their methods and datasets, into the folder `target`."""
    if is_run(target) or (target.exists() and not (target / RESULTS).exists() and any(target.iterdir())):
        raise FedalcError(f"{target}: contains other files; give a new folder, or that of an earlier comparison")
    found = dict.fromkeys(run for folder in folders for run in _finished(folder))
    runs = [load_run(folder) for folder in found]
    comparison = Comparison(runs, target, names=_names(runs))
    write_comparison(comparison)
    return comparison


def _finished(folder: Path) -> list[Path]:
    """Return the finished runs that a folder is or holds. Refuse one without any."""
    if not folder.is_dir():
        raise FedalcError(f"{folder}: there is no such folder (fedalc runs lists runs)")
    if is_run(folder):
        return [folder]
    runs = [run for run in run_folders(folder) if (run / NAME).exists()]
    if not runs:
        raise FedalcError(f"{folder}: not a run folder, and no finished run is in it")
    return runs


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run: its method, and its folder's name too if runs of one method have other settings than
    the seed. Equal names are seeds of one row."""
    kinds = [(run.settings.method, str(run.result.get("dataset")), run.settings.preset) for run in runs]
    distinct = set()
    for kind in kinds:
        alike = [run for run, other in zip(runs, kinds, strict=True) if other == kind]
        seeds = {run.settings.seed for run in alike}
        if len(seeds) < len(alike) or any(acting(run.settings) != acting(alike[0].settings) for run in alike):
            distinct.add(kind)
    return [
        f"{kind[0]} ({'' if run.folder is None else run.folder.name})" if kind in distinct else kind[0]
        for run, kind in zip(runs, kinds, strict=True)
    ]
