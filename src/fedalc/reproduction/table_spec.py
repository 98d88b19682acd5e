"""Table definitions: `experiments/<table>/table.toml` and one TOML file per cell.

The paper's tables are in the package, beside this file. A folder `experiments` where the command runs comes first.
"""

from __future__ import annotations

import difflib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedalc.config.schema import MethodName
from fedalc.errors import ConfigError
from fedalc.reproduction.toml_files import read_toml, validated

Column = Literal["paper", "strong", "clean"]  # a preset; clean: preset paper where the paper's own split leaks
COLUMNS: tuple[Column, ...] = ("paper", "strong")
Home = Literal["paper", "strong", "clean", "oracles"]  # the folder of a cell, and of its runs
ORACLE_FOLDER: Literal["oracles"] = "oracles"  # shown in both columns, run once
SWEPT = ("fedaws", "fedalc")  # methods with a λ
THE_TABLES = ("method", "dataset", "preset", "seed")  # given by a table's rows, columns and seeds
FILE = "table.toml"
HOMES = (Path("experiments"), Path(__file__).resolve().parent / "experiments")  # yours, then those of the package

Figure = Literal["clients", "curves-lambda", "lambda", "fixed", "convergence"]
OF_PRECISIONS = ("curves-lambda", "lambda", "fixed")  # figures of P@1, or of all `PRECISIONS`
Metric = Literal["P@1", "P@3", "P@5", "mAP"]
PRECISIONS: tuple[Metric, ...] = ("P@1", "P@3", "P@5")
Precision = Annotated[float, Field(ge=0, le=100)]
# Becomes a folder's name: no path, and no "..".
Stem = Annotated[str, Field(pattern=r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)?$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Row(_Part):
    """One row of the table. `published`: the paper's figures, one per metric, if it has any."""

    name: str
    method: MethodName
    cell: Stem = ""  # the TOML file's name, if not the method's
    lambda_: float | None = Field(default=None, alias="lambda")
    presets: tuple[Home, ...] = ()  # its columns; default: all of the table's
    published: tuple[Precision, ...] | None = None
    footnote: str = ""

    @property
    def stem(self) -> str:
        return self.cell or self.method

    @property
    def centralised(self) -> bool:
        return ORACLE_FOLDER in self.presets


class Table(_Part):
    title: str
    paper: str  # the paper's name of the dataset
    dataset: str
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] = PRECISIONS
    columns: Annotated[tuple[Column, ...], Field(min_length=1)] = COLUMNS
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[Home, dict[str, Any]] = {}  # for all cells of a preset, as [settings.paper]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    folder: Path

    @cached_property
    def name(self) -> str:
        return self.folder.resolve().name

    @field_validator("settings")
    @classmethod
    def _leave_the_table_alone(cls, settings: dict[Home, dict[str, Any]]) -> dict[Home, dict[str, Any]]:
        for preset, values in settings.items():
            for key in THE_TABLES:
                if key in values:
                    raise ValueError(f"{preset} cannot set {key}: the table's rows, columns and seeds set it")
        return settings

    @model_validator(mode="before")
    @classmethod
    def _rows_are_in_all_columns(cls, values: Any) -> Any:
        columns = values.get("columns", COLUMNS)
        rows = values.get("rows")
        if not isinstance(rows, list):
            return values
        return values | {"rows": [{"presets": columns} | row if isinstance(row, dict) else row for row in rows]}

    @model_validator(mode="after")
    def _rows_and_figures_fit(self) -> Table:
        for row in self.rows:
            if row.published is not None and len(row.published) != len(self.metrics):
                raise ValueError(f"row {row.name!r}: published needs one figure for each of {', '.join(self.metrics)}")
        of_others = [figure for figure in self.figures if figure in OF_PRECISIONS and self.metrics != PRECISIONS]
        if of_others:
            raise ValueError(f"figures: {of_others[0]} shows {', '.join(PRECISIONS)}, not this table's metrics")
        return self

    def cell_file(self, preset: str, row: Row) -> Path:
        return self.folder / preset / f"{row.stem}.toml"


def find_folder(name_or_path: str) -> Path:
    """Return the folder of a table: a name in `HOMES`, or the path of a folder with a table.toml."""
    for folder in (Path(name_or_path), *(home / name_or_path for home in HOMES)):
        if (folder / FILE).is_file():
            return folder
    known = [folder.name for folder in table_folders()]
    close = difflib.get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(f"no table is called {name_or_path!r}: {hint}there are {', '.join(known)}")


def table_folders() -> list[Path]:
    """Return the folders of all tables known by name."""
    found: dict[str, Path] = {}
    for home in HOMES:
        for file in sorted(home.glob(f"*/{FILE}")):
            found.setdefault(file.parent.name, file.parent)
    return list(found.values())


def is_communication(folder: Path) -> bool:
    """Return whether the table counts bytes instead of training models."""
    return read_toml(folder / FILE).get("kind") == "communication"


def read_table(folder: Path) -> Table:
    """Read a table and check that every cell has its file."""
    file = folder / FILE
    table = validated(Table, {**read_toml(file), "folder": folder}, file)
    for row in table.rows:
        for preset in row.presets:
            if not table.cell_file(preset, row).is_file():
                raise ConfigError(f"{file}: row {row.name!r} needs the file {table.cell_file(preset, row)}")
    return table
