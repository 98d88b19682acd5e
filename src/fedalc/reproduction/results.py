"""The results of a table's runs, in one JSON file from which table, figures and page can be made again."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedalc.core.atomic_files import write_text
from fedalc.errors import FedalcError
from fedalc.report.curves import curve_records, watched_metric
from fedalc.report.summary import Statistic, number_at
from fedalc.reproduction.plan import Ended, Job, Plan
from fedalc.reproduction.table_spec import ORACLE_FOLDER, PRECISIONS, Metric, Row

POINTS = 100  # per curve: more are not visible
COSTS = ("rounds", "rounds_run", "seconds", "bytes_up", "bytes_down")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Result(_Part):
    """One finished run."""

    seed: int
    metrics: dict[str, float]
    cost: dict[str, float]
    collapse: dict[str, float] = {}


class Curve(_Part):
    """The first finished seed's training loss, and its precision as `metric` names it. None: not evaluated."""

    metric: str | None
    rounds: list[int]
    precision: list[float | None]
    loss: list[float | None]


class Cell(_Part):
    results: list[Result] = []
    missing: dict[int, str] = {}  # why a seed has no result
    curve: Curve | None = None

    def statistic(self, metric: str) -> Statistic | None:
        """Return mean and deviation, or None unless every finished seed has the value."""
        values = [result.metrics[metric] for result in self.results if metric in result.metrics]
        if not values or len(values) < len(self.results):
            return None
        return Statistic(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


class Line(_Part):
    """A row of the table, with its cell for each preset that has one."""

    name: str
    method: str
    cell: str = ""  # the file's name, if not the method's
    lambda_: float | None = Field(default=None, alias="lambda")
    published: tuple[float, ...] | None = None
    centralised: bool = False
    footnote: str = ""
    cells: dict[str, Cell] = {}

    @property
    def label(self) -> str:
        """Return a name that no other row has."""
        return self.cell or self.method if self.lambda_ is None else f"{self.method}, λ = {self.lambda_:g}"


class Fit(_Part):
    """Least-squares fit of log loss = a + b·round over the second half of the rounds; `factor` = exp(b) per round."""

    factor: float
    start: float  # the line's loss at `first`
    first: int
    last: int
    explained: float  # R²: 1 is a straight line


class Outcome(_Part):
    table: str
    title: str
    paper: str
    dataset: str
    command: str
    seeds: list[int]
    metrics: tuple[Metric, ...] = PRECISIONS
    presets: list[str]
    figures: list[str]
    notes: list[str]
    left_out: dict[str, str] = {}
    versions: list[dict[str, str]] = []  # several if the runs used different versions
    clients: list[tuple[int, int]] = []  # (place, instances) of clients sorted by size, thinned out
    median: float | None = None  # of all clients
    lines: list[Line]
    convergence: dict[str, Fit] = {}  # preset paper, by method and λ


def collect(plan: Plan, command: str, ended: Ended | None = None, sizes: np.ndarray | None = None) -> Outcome:
    """Read the run folders. `ended`: how the runs of this call ended; `sizes`: instances per client."""
    table, ended = plan.table, ended or Ended()
    lines = [_line(plan, row, ended) for row in table.rows]
    versions: list[dict[str, str]] = []
    for job in plan.jobs:
        found = (job.result() or {}).get("versions")
        if isinstance(found, Mapping) and found and found not in versions:
            versions.append({name: str(number) for name, number in found.items()})
    outcome = Outcome(
        table=table.name,
        title=table.title,
        paper=table.paper,
        dataset=plan.jobs[0].settings.dataset if plan.jobs else table.dataset,
        command=command,
        seeds=list(plan.seeds),
        metrics=table.metrics,
        presets=list(plan.presets),
        figures=list(table.figures),
        notes=[*plan.settings_in_words(), *plan.differences_in_words(), *table.notes],
        left_out=plan.left_out,
        versions=versions,
        clients=[] if sizes is None else _thinned_sizes(sizes),
        median=None if sizes is None or not sizes.any() else float(np.median(sizes[sizes > 0])),
        lines=lines,
    )
    for line in lines:
        curve = line.cells["paper"].curve if "paper" in line.cells else None
        fit = None if curve is None or line.centralised else fit_line(curve)
        if fit is not None:
            outcome.convergence[line.label] = fit
    return outcome


def _line(plan: Plan, row: Row, ended: Ended) -> Line:
    presets = plan.presets if row.centralised else [preset for preset in plan.presets if preset in row.presets]
    cells = {preset: _cell(plan, row, preset, ended) for preset in presets}
    return Line(
        name=row.name,
        method=row.method,
        cell=row.cell,
        **{"lambda": row.lambda_},
        published=row.published,
        centralised=row.centralised,
        footnote=row.footnote,
        cells=cells,
    )


def _cell(plan: Plan, row: Row, preset: str, ended: Ended) -> Cell:
    cell, home = Cell(), ORACLE_FOLDER if row.centralised else preset
    for seed in plan.seeds:
        name = f"{home}/{row.stem}-s{seed}"
        job = next((job for job in plan.of(preset, row) if job.settings.seed == seed), None)
        result = job.result() if job else None
        if result is not None and job is not None:
            cell.results.append(_small(result))
            cell.curve = cell.curve or _curve(job)
        elif name in plan.strange:
            cell.missing[seed] = f"other settings: {plan.strange[name]}"
        elif job is None:
            left_out = plan.left_out.get(f"{home}/{row.stem}")
            cell.missing[seed] = f"left out: {left_out}" if left_out else "not run"
        elif name in ended.elsewhere:
            cell.missing[seed] = "another process runs it"
        elif name in ended.failed or job.state == "failed":
            cell.missing[seed] = f"failed: {ended.failed.get(name) or job.failure()}"
        else:
            cell.missing[seed] = "not run" if job.state == "new" else "not finished"
    return cell


def _small(result: Mapping[str, Any]) -> Result:
    return Result(
        seed=result["seed"],
        metrics={name: round(value, 4) for name, value in _numbers(result, "metrics").items()},
        cost={key: _digits(value) for key, value in _numbers(result).items() if key in COSTS},
        collapse={key: _digits(value) for key, value in _numbers(result, "collapse").items()},
    )


def _numbers(result: Mapping[str, Any], *path: str) -> dict[str, float]:
    """Return the finite numbers at `path`. An oracle has no collapse and sends no bytes."""
    for key in path:
        result = result.get(key) or {}
    found = {key: number_at(result, key) for key in result}
    return {key: value for key, value in found.items() if value is not None and math.isfinite(value)}


def _curve(job: Job) -> Curve | None:
    records = curve_records(job.history())
    if not records:
        return None
    if len(records) > POINTS:
        records = [records[i] for i in np.linspace(0, len(records) - 1, POINTS).round().astype(int)]
    metric = watched_metric(records)
    return Curve(
        metric=metric,
        rounds=[int(record["round"]) for record in records],
        precision=[None if metric is None else _finite(number_at(record, "metrics", metric)) for record in records],
        loss=[_finite(number_at(record, "loss")) for record in records],
    )


def fit_line(curve: Curve) -> Fit | None:
    """Return the fit, or None with fewer than three positive losses."""
    points = [(r, x) for r, x in zip(curve.rounds, curve.loss, strict=True) if x is not None and x > 0]
    points = [(r, x) for r, x in points if r >= curve.rounds[-1] / 2]
    if len(points) < 3:
        return None
    rounds, logs = np.array([r for r, _ in points], float), np.log([x for _, x in points])
    slope, start = np.polyfit(rounds - rounds[0], logs, 1)
    spread = ((logs - logs.mean()) ** 2).sum()
    rest = ((logs - start - slope * (rounds - rounds[0])) ** 2).sum()
    return Fit(
        factor=round(math.exp(slope), 6),
        start=_digits(math.exp(start)),
        first=points[0][0],
        last=points[-1][0],
        explained=1.0 if spread == 0 else round(float(1 - rest / spread), 4),
    )


def _thinned_sizes(sizes: np.ndarray) -> list[tuple[int, int]]:
    """Return (rank, size) from large to small, at ranks evenly spaced on a log scale, with both ends."""
    held = np.sort(sizes[sizes > 0])[::-1]
    if not len(held):
        return []
    places = np.unique(np.geomspace(1, len(held), 400).round().astype(int))
    return [(int(place), int(held[place - 1])) for place in places]


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else _digits(value)


def _digits(value: float) -> float:
    """Round to four significant digits; whole numbers stay whole."""
    return int(value) if value.is_integer() else float(f"{value:.4g}")


def write_json(outcome: Outcome, path: Path) -> None:
    """Write the outcome with one line per list of numbers: small, and easy to diff."""
    text = json.dumps(outcome.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[[\s\d.,eE+\-nul]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    write_text(path, text + "\n")


def read_json(path: Path) -> Outcome:
    try:
        return Outcome.model_validate_json(path.read_bytes())
    except ValueError as error:  # also pydantic's
        raise FedalcError(f"{path}: not a valid table.json: {str(error).splitlines()[0]}") from None
