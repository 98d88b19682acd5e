"""What commands have in common: the options themselves, and how what was given becomes settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedalc.data.catalog.datasets import is_known
from fedalc.errors import ConfigError

Dataset = Annotated[str | None, typer.Option(help="a dataset's name (see: fedalc data list) or a folder's path")]
Preset = Annotated[
    str | None,
    typer.Option(help="strong: the best honest result; paper: as close as the paper says; demo: shows the collapse"),
]
Engine = Annotated[
    str | None, typer.Option(help="fused: all clients at once, exact and fast; clients: client by client")
]
Encoder = Annotated[str | None, typer.Option(help="linear or mlp; for pictures resnet-small, resnet18 or resnet50")]
Rounds = Annotated[int | None, typer.Option(help="communication rounds")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …")]
MemoryBudget = Annotated[
    str | None,
    typer.Option(help="for a block of what is done in blocks: 500MB, 2GB (default: 256MiB); no result depends on it"),
]
DataDir = Annotated[Path | None, typer.Option(help="where datasets live (default: $FEDALC_DATA, then ./data)")]
Config = Annotated[Path | None, typer.Option(help="settings from a TOML file")]
Set = Annotated[list[str] | None, typer.Option("--set", help="any setting, as key=value: --set server.ema=0.9")]
EpsilonBudget = Annotated[
    float | None,
    typer.Option(min=1e-6, help="refuse a run that would bring what all runs spent on this data above this ε"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="only the result")]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, as settings."""
    asked = {key: value for key, value in options.items() if value is not None}
    if "encoder" in asked:
        asked["encoder"] = {"name": asked["encoder"]}
    if "dataset" in asked:
        asked["dataset"] = absolute_dataset(asked["dataset"])
    return asked


def absolute_dataset(dataset: str) -> str:
    """A name as it is, a folder's path in full: config.toml is read from anywhere."""
    return dataset if is_known(dataset) or not Path(dataset).is_dir() else str(Path(dataset).resolve())


def label_files(correlations: Path | None, key: Path | None) -> dict[str, Any]:
    """Files are named in full, so that config.toml can be read from anywhere. The key's content goes nowhere."""
    files = {"correlations": correlations, "key": key}
    collection = {name: str(file.resolve()) for name, file in files.items() if file is not None}
    return {"collection": collection} if collection else {}


def listed(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"expected a comma-separated list, found {text!r}", option)
    return parts


def listed_seeds(text: str) -> list[int]:
    parts = listed(text, "--seeds")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 19):
            raise ConfigError(f"{part!r} is not a whole number", "--seeds")
    return [int(part) for part in parts]
