"""Options that several commands have, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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
Task = Annotated[
    str | None,
    typer.Option(help="classification, or verification: labels are persons, whose claimed identity is accepted or not"),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="fused: one step of all clients at once; lockstep: any local schedule, many clients at once; "
        "clients: client by client. All are exact",
        autocompletion=_completing(["fused", "lockstep", "clients"]),
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
FeatureColumn = Annotated[
    list[str] | None,
    typer.Option("--feature-column", help="column of numbers to learn from, if there is no text; x_*: all such names"),
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
WithTfidf = Annotated[bool, typer.Option("--with-tfidf", help="tf-idf beside the sentence encoder (sets text.tfidf=1)")]
Pretrained = Annotated[
    list[str] | None,
    typer.Option(
        "--pretrained",
        help="frozen network whose outputs are the features of pictures or texts: a folder, file or package:NAME; "
        "repeat it to put several side by side. With a ResNet as --encoder: weights to start from",
    ),
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


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns of a table are what."""

    text_column: TextColumn = None
    label_column: LabelColumn = None
    feature_column: FeatureColumn = None
    label_separator: LabelSeparator = None

    def columns(self) -> dict[str, Any]:
        """Return the settings of tables that the user gave."""
        options = {
            "text_columns": self.text_column or None,
            "label_columns": self.label_column or None,
            "feature_columns": self.feature_column or None,
            "label_separator": self.label_separator,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class FileOptions(ColumnOptions):
    """How a file of records for a trained model is read, where it differs from the training data."""

    changes: Annotated[
        list[str] | None, typer.Option("--set", help="another setting of tables: --set table.encoding=cp1252")
    ] = None

    def columns(self) -> dict[str, Any]:
        return super().columns() | (_table_settings(self.changes) if self.changes else {})


def _table_settings(changes: list[str]) -> dict[str, Any]:
    from fedalc.config.resolve import parse_override  # loads torch

    found: dict[str, Any] = {}
    for text in changes:
        given = parse_override(text)
        if set(given) != {"table"} or not isinstance(given["table"], dict):
            raise ConfigError(
                f"only settings of tables can be changed here: table.NAME=VALUE, not {text!r:.60}", "--set"
            )
        found |= given["table"]
    return found


@dataclass(frozen=True)
class TableOptions(ColumnOptions):
    """The columns, and what to test on."""

    test: TestFile = None
    test_share: TestShare = None

    def settings(self) -> dict[str, Any]:
        """Return the settings that the user gave."""
        table = self.columns()
        if self.test is not None:
            table["test"] = str(self.test.resolve())
        if self.test_share is not None:
            table["test_share"] = self.test_share
        return {"table": table} if table else {}


@dataclass(frozen=True)
class TrainingOptions(TableOptions):
    """Of all commands that train."""

    preset: Preset = None
    task: Task = None
    engine: Engine = None
    encoder: Encoder = None
    text_encoder: TextEncoder = None
    with_tfidf: WithTfidf = False
    pretrained: Pretrained = None
    rounds: Rounds = None
    device: Device = None
    memory_budget: MemoryBudget = None
    config: Config = None
    set_: Set = None
    data_dir: DataDir = None
    collection: Collection = None
    epsilon_budget: EpsilonBudget = None
    callback: Callbacks = None
    track: Track = None
    quiet: Quiet = False

    @property
    def overrides(self) -> list[str]:
        return self.set_ or []

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings that the user gave, also in options that only this command has."""
        asked = {
            name: value
            for name in ("preset", "task", "engine", "encoder", "rounds", "device", "memory_budget")
            if (value := getattr(self, name)) is not None
        }
        asked |= {name: value for name, value in more.items() if value is not None}
        if "encoder" in asked:
            asked["encoder"] = {"name": asked["encoder"]}
        if self.text_encoder is not None:
            asked["text"] = {
                "encoder": absolute_weights(str(self.text_encoder))
            }  # config.toml can be read from anywhere
        if self.with_tfidf:
            asked["text"] = {**asked.get("text", {}), "tfidf": 1.0}
        if self.pretrained:
            sources = [absolute_weights(source) for source in self.pretrained]
            weights = {"pretrained": sources[0] if len(sources) == 1 else sources}
            asked["encoder"] = {**asked.get("encoder", {}), **weights}
        if "dataset" in asked:
            asked["dataset"] = absolute_dataset(asked["dataset"])
        return asked | collection_settings(self.collection) | super().settings()


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer. In place of each parameter that is a group of options it has those options."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, ColumnOptions)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name], include_extras=True)
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name])
                for field in fields(groups[name])
            ]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def absolute_dataset(dataset: str) -> str:
    """Return the path of a file or folder in full, so that config.toml can be read from anywhere; a name unchanged."""
    return dataset if is_known(dataset) or not Path(dataset).exists() else str(Path(dataset).resolve())


def absolute_weights(source: str) -> str:
    """Return the path of pretrained weights in full; a name of the hub or a package unchanged."""
    return str(Path(source).resolve()) if Path(source).exists() else source


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
