"""What a table is: `experiments/<table>/table.toml` and one TOML file per cell, and where they are found."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedalc.errors import ConfigError

Column = Literal["paper", "strong"]
PRESETS: tuple[Column, ...] = get_args(Column)
ORACLES: Literal["oracles"] = "oracles"  # in both columns, run once
FILE = "table.toml"
HOMES = (Path("experiments"), Path(__file__).resolve().parents[3] / "experiments")  # here, or in the source checkout

Figure = Literal["clients", "curves-lambda", "lambda", "fixed", "convergence"]
Precision = Annotated[float, Field(ge=0, le=100)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Row(_Part):
    """One line of the table. `published` is the paper's P@1, P@3 and P@5, where it has them."""

    name: str
    method: str
    cell: str = ""  # the TOML file's name, if it is not the method's
    lambda_: float | None = Field(default=None, alias="lambda")
    presets: tuple[Column | Literal["oracles"], ...] = PRESETS
    published: tuple[Precision, Precision, Precision] | None = None
    footnote: str = ""
    once: bool = False  # nothing in it is random: the first seed is enough

    @property
    def stem(self) -> str:
        return self.cell or self.method

    @property
    def centralised(self) -> bool:
        return ORACLES in self.presets


class Table(_Part):
    title: str
    paper: str  # what the paper calls the dataset
    dataset: str
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = {}  # what all cells of a preset have besides, as [settings.paper]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    folder: Path

    @cached_property
    def name(self) -> str:
        return self.folder.resolve().name

    def settings_in_words(self) -> list[str]:
        """What the cells of a preset have besides what their files say."""
        return [
            f"Preset {preset}: all cells with {', '.join(f'{key} = {value}' for key, value in flat(values).items())}."
            for preset, values in self.settings.items()
        ]

    def cell_file(self, preset: str, row: Row) -> Path:
        return self.folder / preset / f"{row.stem}.toml"


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings as one level: {"server": {"ema": 0.9}} is {"server.ema": 0.9}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return found


def find_folder(name_or_path: str) -> Path:
    """By its name in one of `HOMES`, or by the path of a folder with a table.toml."""
    for folder in (Path(name_or_path), *(home / name_or_path for home in HOMES)):
        if (folder / FILE).is_file():
            return folder
    known = [folder.name for folder in table_folders()]
    if not known:
        raise ConfigError(
            f"no table is called {name_or_path!r}: there is no folder `experiments` here, and this installation is not "
            "a source checkout. Clone the repository and call the command in it, or give the path of a table's folder"
        )
    close = difflib.get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(f"no table is called {name_or_path!r}: {hint}there are {', '.join(known)}")


def table_folders() -> list[Path]:
    """All tables known by name, each once."""
    found: dict[str, Path] = {}
    for home in HOMES:
        for file in sorted(home.glob(f"*/{FILE}")):
            found.setdefault(file.parent.name, file.parent)
    return list(found.values())


def is_communication(folder: Path) -> bool:
    """Whether this table is of bytes, which are counted: nothing is trained for it."""
    return _values(folder / FILE).get("kind") == "communication"


def _values(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not a readable TOML file: {error}") from None


def read_table(folder: Path) -> Table:
    """A table, every cell of which has its file."""
    file = folder / FILE
    try:
        table = Table.model_validate({**_values(file), "folder": folder})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{file}: {first['msg']}", ".".join(map(str, first["loc"]))) from None
    for row in table.rows:
        for preset in row.presets:
            if not table.cell_file(preset, row).is_file():
                raise ConfigError(f"{file}: row {row.name!r} needs the file {table.cell_file(preset, row)}")
    return table
