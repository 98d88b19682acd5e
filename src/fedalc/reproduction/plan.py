"""The runs that a table needs, and their state. Run folders: `<out>/<table>/<preset>/<cell>-s<seed>`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from fedalc.config.experiment import Experiment, flat
from fedalc.config.resolve import experiment
from fedalc.config.schema import NONE
from fedalc.config.unused import acting
from fedalc.core.safe_parsing import read_json_object
from fedalc.data.load import has_pictures
from fedalc.errors import ConfigError, FedalcError
from fedalc.report.differences import differences
from fedalc.report.summary import merge
from fedalc.reproduction.table_spec import FILE, ORACLE_FOLDER, Home, Row, Table
from fedalc.runs import history
from fedalc.workflows.preflight import refuse_other_kind

State = Literal["done", "begun", "failed", "new"]
WHERE = (
    "name",
    "device",
    "block_rows",
    "memory_budget",
    "shard_rows",
)  # how a run ran, not what
FAILURE = "failed.txt"  # in a run folder: why the run failed


@dataclass(frozen=True)
class Job:
    """One run: a cell with a seed."""

    preset: str
    cell: str
    settings: Experiment
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.preset}/{self.cell}-s{self.settings.seed}"

    @property
    def state(self) -> State:
        if (self.folder / "result.json").exists():
            return "done"
        if (self.folder / FAILURE).exists():
            return "failed"
        return "begun" if (self.folder / "config.toml").exists() else "new"

    def result(self) -> dict[str, Any] | None:
        """Return result.json, or None if the run has not finished."""
        file = self.folder / "result.json"
        try:
            found = read_json_object(file, "remove the folder")
        except FileNotFoundError:
            return None
        if isinstance(found.get("seed"), int) and isinstance(found.get("metrics"), dict):
            return found
        raise FedalcError(f"{file}: not the result of a run; remove the folder")

    def history(self) -> list[dict[str, Any]]:
        return history.read(self.folder / "history.jsonl")

    def failure(self) -> str:
        file = self.folder / FAILURE
        return file.read_text(encoding="utf-8").strip() if file.exists() else ""


@dataclass
class Ended:
    """How the jobs of this call ended, by job name."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)  # run by another process
    stopped: bool = False


@dataclass
class Plan:
    """The runs of a table, ordered by seed so that every cell gets a result early. `only` selects the runs to make."""

    table: Table
    folder: Path
    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    only: tuple[str, ...] = ()
    jobs: list[Job] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # cells that the settings rule out, and why
    strange: dict[str, str] = field(default_factory=dict)  # run folders made with other settings, and the differences

    @property
    def asked(self) -> list[Job]:
        """Return the runs to make. The table shows all of them."""
        return [job for job in self.jobs if self.wants(job.preset, job.cell)]

    def wants(self, preset: str, cell: str) -> bool:
        names = (cell, f"{preset}/{cell}")
        return not self.only or any(fnmatchcase(name, pattern) for pattern in self.only for name in names)

    def of(self, preset: str, row: Row) -> list[Job]:
        """Return the runs of a row's cell, ordered by seed."""
        home = ORACLE_FOLDER if row.centralised else preset
        return [job for job in self.jobs if (job.preset, job.cell) == (home, row.stem)]

    def settings_in_words(self) -> list[str]:
        """Return the settings that the table gives to all cells of a preset, unless the command line changed them."""
        found = []
        for preset, values in self.table.settings.items():
            runs = [flat(job.settings.to_dict()) for job in self.jobs if job.preset == preset]
            kept = [
                f"{key} = {value}"
                for key, value in flat(values).items()
                if runs and all(key in run and run[key] == (None if value == NONE else value) for run in runs)
            ]
            if kept:
                found.append(f"Preset {preset}: all cells use {', '.join(kept)}.")
        return found

    def differences_in_words(self) -> list[str]:
        """Return the settings that differ between cells of a preset, besides the method and λ."""
        found = []
        for preset in self.presets:
            cells = {job.cell: job for job in reversed(self.jobs) if job.preset == preset}  # each with its first seed
            results = [
                {"name": cell, "settings": {k: v for k, v in acting(job.settings).items() if k != "regularizer.lambda"}}
                for cell, job in reversed(cells.items())
            ]
            differ = differences(merge(results))
            if differ is not None and differ.lines:
                said = " | ".join(f"{who}: {what}" for who, what in differ.lines)
                found.append(f"Preset {preset}, settings that differ besides the method: {said}.")
        return found


def make_plan(
    table: Table,
    out: Path,
    *,
    presets: Sequence[str],
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    keys: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> Plan:
    """Resolve the settings of every cell. `keys` and `overrides` win over the cells' files."""
    chosen = tuple(dict.fromkeys(table.seeds if seeds is None else seeds))
    plan = Plan(table, out / table.name, tuple(dict.fromkeys(presets)), chosen, tuple(only))
    shown = (*plan.presets, ORACLE_FOLDER)
    cells = {(preset, row.stem): row for row in table.rows for preset in row.presets if preset in shown}
    for pattern in only:
        if not any(Plan(table, out, (), (), (pattern,)).wants(*cell) for cell in cells):
            raise ConfigError(f"no cell of {table.name} is called {pattern!r}: see --dry-run", "--only")
    for seed in chosen:
        for (preset, cell), row in cells.items():
            file = table.cell_file(preset, row)
            try:
                given = {**table.settings.get(preset, {}), **(keys or {}), "seed": seed}
                settings = experiment(given, file=file, overrides=overrides)
                refuse_other_kind(settings, settings.dataset, has_pictures(settings.dataset))
            except ConfigError as error:
                # Without the file's name, so that equal reasons are equal strings.
                plan.left_out[f"{preset}/{cell}"] = str(error).replace(f"{file}: ", "")
                continue
            if settings.seed != seed:
                raise ConfigError("a table sets the seeds; use --seeds", "--set seed")
            _check_row(table, row, preset, settings)
            _add(plan, Job(preset, cell, settings, plan.folder / preset / f"{cell}-s{seed}"))
    return plan


def _check_row(table: Table, row: Row, preset: Home, settings: Experiment) -> None:
    """Check that a cell has its row's method and λ, whatever a file or the command line says."""
    pairs: list[tuple[str, Any, Any]] = [("method", row.method, settings.method)]
    if row.lambda_ is not None:
        pairs.append(("λ", row.lambda_, settings.regularizer.lambda_))
    for what, of_row, of_cell in pairs:
        if of_row != of_cell:
            raise ConfigError(
                f"{table.cell_file(preset, row)}: {what} is {of_cell} with these settings, but {of_row} in row "
                f"{row.name!r} of {table.folder / FILE}"
            )


def _add(plan: Plan, job: Job) -> None:
    """Add a run. An existing run folder keeps its settings if they give the same result."""
    if (job.folder / "config.toml").exists():
        try:
            there = experiment(file=job.folder / "config.toml")
            differing = _differing(there, job.settings)
        except ConfigError as error:  # of another version, or damaged
            differing = str(error)
        if differing:
            plan.strange[job.name] = differing
            return
        job = Job(job.preset, job.cell, there, job.folder)
    plan.jobs.append(job)


def _differing(there: Experiment, here: Experiment) -> str:
    """Return the settings that differ in words, or "" if none matters."""
    a, b = flat(there.to_dict()), flat(here.to_dict())
    where = set(WHERE) - ({"block_rows"} if here.encoder.norm == "batch" else set())  # whose statistics are per block
    keys = [key for key in a if a[key] != b[key] and key not in where]
    shown = ", ".join(f"{key} {a[key]} there, {b[key]} here" for key in keys[:3])
    return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def refuse_strange(plan: Plan) -> None:
    """Refuse to mix runs with different settings in one table, before any run starts."""
    strange = {name: why for name, why in plan.strange.items() if plan.wants(*name.rpartition("-s")[0].split("/"))}
    if strange:
        (name, why), *rest = strange.items()
        others = f" (and {len(rest)} more)" if rest else ""
        raise ConfigError(
            f"{plan.folder / name} was made with other settings: {why}{others}; choose another --out, leave the cell "
            "out with --only, or remove the folder"
        )
