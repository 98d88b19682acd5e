"""The settings of an experiment: validated, read from TOML, overridden from the command line, written back in full.

An `Experiment` is resolved in this order, later wins: the defaults below, the preset's `[all]` table, the preset's
table for the method, a TOML file, `key=value` overrides. What a run folder keeps is the outcome, so that running
`config.toml` again needs neither the preset nor the overrides.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedalc.errors import ConfigError

METHODS = ("fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed")
PRESETS = ("strong", "paper")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Margin = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]


class Settings(BaseModel):
    """Unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class EncoderSettings(Settings):
    """g_θ: sparse features in, a unit vector of `dim` numbers out."""

    name: Literal["mlp", "linear"] = "mlp"
    dim: Count = 512
    embedding: Count = 512  # mlp only: what the sparse features are embedded into
    hidden: tuple[Count, ...] = (1024, 1024)  # mlp only
    start: Literal["he", "framework"] = "he"
    features: Literal["unit", "mean", "raw"] = "unit"  # row scaling: length 1, average of the rows used, or as they are
    dropout: Share = 0.0


class ClientSettings(Settings):
    """The local work of one client in one round. The defaults are the paper's: one full-batch step of rate 0.1."""

    epochs: Count = 1
    batch_size: Count | None = None  # None: the whole client
    learning_rate: Positive = 0.1
    row_learning_rate: NotNegative | None = None  # for the client's own row; None: the same
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0
    margin: Annotated[float, Field(gt=-1, le=1, allow_inf_nan=False)] = 0.9  # the score a positive pair has to reach

    @property
    def row_rate(self) -> float:
        return self.learning_rate if self.row_learning_rate is None else self.row_learning_rate


class ServerSettings(Settings):
    """Who takes part, how clients are weighted, and the optimiser that applies the averaged change of θ."""

    optimizer: Literal["sgd", "momentum", "adam", "adagrad"] = "sgd"
    learning_rate: Positive = 1.0
    momentum: Share = 0.9  # `momentum`, and adam's first moment
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.0  # decoupled: θ shrinks by rate × decay each round
    ema: Share = 0.0  # averaged weights, used for evaluation and in the saved model
    weights: Literal["uniform", "samples"] = "samples"  # p_u = 1/C, or n_u/Σn
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0


class EmbeddingSettings(Settings):
    """How the class embeddings W start."""

    start: Literal["orthogonal", "random"] = "orthogonal"


class RegularizerSettings(Settings):
    """The server's step on W in each round (fedaws, fedalc): W ← unit(W - lambda·rate·∇reg)."""

    lambda_: NotNegative = Field(default=10.0, alias="lambda")
    rate: Positive = 1e-4
    form: Literal["mined", "full"] = "mined"
    neighbours: Count = 5  # K, mined only
    candidates: Count | None = None  # mined only: look for neighbours in a sampled subset of this many classes
    margin: Margin | Literal["adaptive"] = 1.0  # ν; adaptive: the distance to the (K+1)-th nearest class
    weighting: Literal["sigma", "gamma", "conditional", "counts"] = "sigma"  # fedalc only


class FixedSettings(Settings):
    """What fedalc-fixed does before round 1: `steps` steps on α·(c/N)·d² + β·σ·max(0, ν - d)²."""

    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    margin: Margin = 1.0
    rate: Positive = 1.0
    steps: Annotated[int, Field(ge=0)] = 200
    weighting: Literal["sigma", "gamma", "conditional", "counts"] = "sigma"


class SelectionSettings(Settings):
    """Choice of the round to keep, on validation data only; the test set is looked at once, at the end."""

    validation: Share = 0.1  # share of train held out (unless the dataset ships its own); 0: keep the last round
    metric: Literal["P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5"] = "P@1"
    every: Count = 5  # evaluate after each this many rounds
    patience: Count | None = None  # stop after this many evaluations without gain
    keep: Literal["best", "last"] = "best"  # last: validation is for the curves only
    refit: bool = True  # then train again on all of train for the chosen number of rounds


class Experiment(Settings):
    """Everything a run depends on, apart from the data itself."""

    name: str | None = None
    dataset: str = "demo"
    method: Literal["fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed"] = "fedalc"
    preset: Literal["strong", "paper"] = "strong"
    engine: Literal["fused", "clients"] = "fused"
    rounds: Count = 100
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    block_rows: Count = 2048  # instances encoded at a time; bounds memory, changes no result but rounding
    encoder: EncoderSettings = EncoderSettings()
    client: ClientSettings = ClientSettings()
    server: ServerSettings = ServerSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    regularizer: RegularizerSettings = RegularizerSettings()
    fixed: FixedSettings = FixedSettings()
    selection: SelectionSettings = SelectionSettings()

    @model_validator(mode="after")
    def _settings_agree(self) -> Experiment:
        if self.engine == "fused":
            for key, expressible in (
                ("epochs", self.client.epochs == 1),
                ("batch_size", self.client.batch_size is None),
            ):
                if not expressible:
                    raise ConfigError(
                        f"engine 'fused' is the exact algebra of one full-batch step per client, so it cannot express "
                        f'{key} = {getattr(self.client, key)}; use engine = "clients" or leave it out',
                        f"client.{key}",
                    )
        if self.encoder.name == "linear" and self.encoder.dropout:
            raise ConfigError("the linear encoder has no hidden layer to drop from; use 0, or mlp", "encoder.dropout")
        if self.regularizer.margin == "adaptive" and self.regularizer.form == "full":
            raise ConfigError(
                'an adaptive margin is the distance to the (K+1)-th nearest class, so it needs form = "mined"',
                "regularizer.margin",
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_toml(self) -> str:
        values = self.to_dict()
        lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, table in values.items():
            if isinstance(table, dict):
                lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def experiment(
    settings: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    overrides: Iterable[str] = (),
) -> Experiment:
    """Resolve an experiment. `settings` wins over `file`; `overrides` ("server.ema=0.9") win over both.

    >>> experiment({"method": "fedaws"}, overrides=["regularizer.lambda=100"]).regularizer.lambda_
    100.0
    """
    asked: dict[str, Any] = _read_toml(file) if file else {}
    _merge(asked, settings or {})
    for text in overrides:
        _merge(asked, _parse_override(text))
    method = asked.get("method", Experiment.model_fields["method"].default)
    asked = _for_method(asked, method, file)
    values = preset(asked.get("preset", "strong"), method)
    # A change of encoder is a change of what suits it: the preset may have a table for the pair.
    encoder = asked.get("encoder", {})
    if isinstance(encoder, Mapping) and "name" in encoder:
        _merge(values, preset_for_encoder(asked.get("preset", "strong"), encoder["name"], method))
    _merge(values, asked)
    return _validated(values, file)


def _for_method(asked: dict[str, Any], method: str, file: Path | None) -> dict[str, Any]:
    """A file for several methods may say what differs in `[methods.NAME]` tables. What was asked for by key wins."""
    tables = asked.pop("methods", {})
    for name in tables:
        if name not in METHODS:
            raise ConfigError(f"{file}: there is no such method", f"methods.{name}")
    values: dict[str, Any] = {}
    _merge(values, tables.get(method, {}))
    _merge(values, asked)
    return values


def preset(name: str, method: str) -> dict[str, Any]:
    """What the preset says for this method, on top of what it says for all."""
    tables = _preset_tables(name)
    values: dict[str, Any] = {"preset": name}
    _merge(values, tables.get("all", {}))
    _merge(values, tables.get(method, {}))
    return values


def preset_for_encoder(name: str, encoder: str, method: str) -> dict[str, Any]:
    """What the preset changes when this encoder is asked for by name."""
    tables = _preset_tables(name).get("encoder", {}).get(encoder, {})
    values: dict[str, Any] = {}
    _merge(values, tables.get("all", {}))
    _merge(values, tables.get(method, {}))
    return values


def _preset_tables(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; there are {', '.join(PRESETS)}", "preset")
    return tomllib.loads(resources.files("fedalc").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not a readable TOML file: {error}") from None


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"expected key=value, found {text!r}", "--set")
    value = value.strip()
    parsed: Any = value
    if value.lower() in ("none", "null"):
        parsed = None
    else:
        with suppress(tomllib.TOMLDecodeError):  # a bare word is a string
            parsed = tomllib.loads(f"value = {value}")["value"]
    nested: dict[str, Any] = {}
    table = nested
    *sections, last = key.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
    table[last] = parsed
    return nested


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _validated(values: Mapping[str, Any], file: Path | None) -> Experiment:
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        # Unions add the name of the branch that failed: not part of the field.
        while len(path) > 2:
            path.pop()
        field = ".".join(path)
        where = f"{file}: " if file else ""
        if first["type"] == "extra_forbidden":
            close = difflib.get_close_matches(path[-1], _known_keys(path[:-1]), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{where}there is no such setting{hint}", field) from None
        raise ConfigError(f"{where}{first['msg']} (found {first['input']!r})", field) from None


def _known_keys(sections: list[str]) -> list[str]:
    model: Any = Experiment
    for section in sections:
        model = model.model_fields[section].annotation
    return [info.alias or key for key, info in model.model_fields.items()]


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # strings, integers and booleans read the same in TOML
