"""Options that several commands have, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedalc.config.schema import PRESETS
from fedalc.core.registry import ENCODERS, METHODS, ORACLES
from fedalc.data.catalog.datasets import ENTRIES, is_known
from fedalc.errors import ConfigError


def _completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete an option's value in the shell."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


Dataset = Annotated[
    str | None,
    typer.Option(
        help="name of a dataset (see: fedalc data list), or path of a file or folder",
        autocompletion=_completing([entry.name for entry in ENTRIES]),
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join([*METHODS, *ORACLES])} (what each does: fedalc list)",
        autocompletion=_completing([*METHODS, *ORACLES]),
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="strong: the best honest result; paper: the paper's settings; demo: shows the collapse",
        autocompletion=_completing(PRESETS),
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="fused: all clients at once, exact and fast; clients: client by client",
        autocompletion=_completing(["fused", "clients"]),
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(ENCODERS)} (what each does: fedalc list)", autocompletion=_completing(ENCODERS)),
]
Seed = Annotated[int | None, typer.Option(help="the same seed and settings give the same result")]
TextColumn = Annotated[
    list[str] | None,
    typer.Option("--text-column", help="column of a table that holds the text (default: found); may be repeated"),
]
LabelColumn = Annotated[
    list[str] | None,
    typer.Option("--label-column", help="column of the labels, or several of 0 and 1 (default: found)"),
]
LabelSeparator = Annotated[
    str | None, typer.Option(help="what separates labels in a cell (default: found); none: a cell is one label")
]
TestFile = Annotated[Path | None, typer.Option("--test", help="file to test on (default: the dataset's own)")]
TestShare = Annotated[
    float | None, typer.Option(help="share of the records to test on, if there is no test file (default: 0.2)")
]
Rounds = Annotated[int | None, typer.Option(help="number of communication rounds")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …")]
MemoryBudget = Annotated[
    str | None,
    typer.Option(help="memory limit per block, such as 500MB or 2GB (default: 256MiB); does not change results"),
]
DataDir = Annotated[Path | None, typer.Option(help="folder with the datasets (default: $FEDALC_DATA, then ./data)")]
Config = Annotated[Path | None, typer.Option(help="TOML file with settings")]
Set = Annotated[list[str] | None, typer.Option("--set", help="any setting, as key=value: --set server.ema=0.9")]
Collection = Annotated[
    str | None,
    typer.Option(
        help="how the server learns about label sets; join: all of them (default); sums: set sizes only, for exact "
        "methods; psi: pairs of labels, for few labels",
        autocompletion=_completing(["join", "sums", "psi"]),
    ),
]
EpsilonBudget = Annotated[
    float | None,
    typer.Option(min=1e-6, help="refuse the run if all runs on this data together would spend more than this ε"),
]
TextEncoder = Annotated[
    Path | None,
    typer.Option(help="raw texts: folder of a sentence encoder, in transformers' or sentence-transformers' layout"),
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option("--callback", help="a callback that follows the run, such as a tracker that you registered"),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="log the run with tensorboard, mlflow or wandb (needs the extra `tracking`); may be repeated",
        autocompletion=_completing(["tensorboard", "mlflow", "wandb"]),
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print only the result")]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that the user gave, as settings."""
    asked = {key: value for key, value in options.items() if value is not None}
    if "encoder" in asked:
        asked["encoder"] = {"name": asked["encoder"]}
    if "text_encoder" in asked:
        asked["text"] = {"encoder": str(asked.pop("text_encoder").resolve())}  # config.toml can be read from anywhere
    if "dataset" in asked:
        asked["dataset"] = absolute_dataset(asked["dataset"])
    return asked


def absolute_dataset(dataset: str) -> str:
    """Return the path of a file or folder in full, so that config.toml can be read from anywhere; a name unchanged."""
    return dataset if is_known(dataset) or not Path(dataset).exists() else str(Path(dataset).resolve())


def table_settings(
    text_column: list[str] | None,
    label_column: list[str] | None,
    label_separator: str | None,
    test: Path | None,
    test_share: float | None,
) -> dict[str, Any]:
    """Return the settings for a table that the user gave."""
    options = {
        "text_columns": text_column or None,
        "label_columns": label_column or None,
        "label_separator": label_separator,
        "test": None if test is None else str(test.resolve()),
        "test_share": test_share,
    }
    table = {name: value for name, value in options.items() if value is not None}
    return {"table": table} if table else {}


def short_name(dataset: str) -> str:
    """Return the name for a run folder: of a dataset, a folder, or a file without what follows the first dot."""
    path = Path(dataset).resolve()
    return path.name.partition(".")[0] or path.name if path.is_file() else path.name


def collection_settings(
    by: str | None, correlations: Path | None = None, key: Path | None = None
) -> dict[str, dict[str, str]]:
    """Return the settings of [collection], files with full paths. They name the key file; they never hold the key."""
    files = {"correlations": correlations, "key": key}
    collection = {name: str(file.resolve()) for name, file in files.items() if file is not None}
    collection |= {} if by is None else {"by": by}
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
