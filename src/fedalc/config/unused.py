"""Which settings have an effect only together with others, and a note on those that were given in vain."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from fedalc.config.experiment import Experiment, flat
from fedalc.config.schema import FEDERATED, FIXED_ROWS, ORACLES, EncoderSettings

ENCODERS = get_args(EncoderSettings.model_fields["name"].annotation)
PICTURES = tuple(name for name in ENCODERS if EncoderSettings(name=name).is_image)
TEXT = tuple(name for name in ENCODERS if name not in PICTURES)
STEPPED = tuple(method for method in FEDERATED if method != "fedalc-oneshot")  # in rounds, at some rate

#: Settings or whole sections, and with what they have an effect: one of these settings at one of these values. Where
#: something is in several lines, all have to hold. Only what is certain is here: a note must not be wrong.
ONLY_WITH: tuple[tuple[str, Mapping[str, tuple[object, ...]]], ...] = (
    ("client server embeddings collection engine clients", {"method": FEDERATED}),
    ("rounds client.learning_rate server.learning_rate", {"method": STEPPED}),
    ("encoder.name", {"method": FEDERATED, "encoder.name": PICTURES}),  # with these, validation figures have mAP
    ("encoder.dim encoder.embedding encoder.hidden encoder.start encoder.output", {"method": FEDERATED}),
    ("encoder.dropout encoder.shortcut encoder.precision encoder.norm encoder.pretrained", {"method": FEDERATED}),
    ("encoder.embedding encoder.hidden", {"encoder.name": ("mlp",)}),
    ("encoder.start", {"encoder.name": TEXT}),
    ("encoder.features", {"encoder.name": TEXT, "method": ORACLES}),
    ("encoder.norm images", {"encoder.name": PICTURES}),
    ("client.row_learning_rate", {"method": tuple(method for method in FEDERATED if method not in FIXED_ROWS)}),
    ("client.momentum", {"engine": ("clients", "flower")}),  # it lives for a round, which has one step on fused
    ("client.margin", {"client.loss": ("hinge",)}),
    ("client.set_size client.label_power client.label_offset", {"client.loss": ("square",)}),
    (
        "server.learning_rate server.weight_decay",
        {"server.optimizer": ("sgd", "momentum", "adam", "adagrad"), "encoder.shortcut": (True,)},
    ),
    ("server.momentum", {"server.optimizer": ("momentum", "adam", "cg")}),  # cg: for the mlp beside a shortcut
    ("server.beta2", {"server.optimizer": ("adam", "cg")}),
    ("server.epsilon", {"server.optimizer": ("adam", "adagrad", "cg")}),
    ("server.solve_rounds", {"server.optimizer": ("cg",)}),
    ("server.solve_rounds", {"encoder.shortcut": (True,)}),
    ("server.ridge", {"server.optimizer": ("cg",), "method": ("fedalc-oneshot",)}),
    ("server.weights", {"method": tuple(method for method in FEDERATED if method != "flag")}),
    ("server.trim", {"server.aggregation": ("trimmed-mean",)}),
    ("server.byzantine", {"server.aggregation": ("multi-krum",)}),
    ("hashing", {"method": ("fedmlh",)}),
    ("regularizer", {"method": ("fedaws", "fedalc")}),
    ("regularizer.weighting", {"method": ("fedalc",)}),
    ("regularizer.margin", {"method": ("fedalc",), "regularizer.form": ("full",)}),
    ("regularizer.neighbours regularizer.candidates", {"regularizer.form": ("mined",)}),
    ("fixed", {"method": ("fedalc-fixed",)}),
    ("fixed.neighbours", {"fixed.form": ("mined",)}),
    (
        "collection",
        {
            "method": ("fedalc", "fedalc-fixed"),
            "client.loss": ("square",),
            "embeddings.start": ("by-frequency",),
        },
    ),
    ("collection.quantum", {"collection.identity": ("embedding",)}),
    ("privacy.epsilon privacy.delta privacy.noise", {"privacy.mechanism": ("counts", "gradients")}),
    ("privacy.labels_per_instance", {"privacy.mechanism": ("counts",)}),
    ("privacy.clip privacy.sample_rate", {"privacy.mechanism": ("gradients",)}),
    ("selection.every selection.patience selection.keep selection.test_curve", {"method": FEDERATED}),
    ("selection.patience", {"selection.keep": ("best",)}),
    ("selection.test_curve", {"selection.validation": (0,)}),
    ("ovr", {"method": ("ovr",)}),
    ("sleec", {"method": ("sleec",)}),
)


OF_THE_TABLE = ["name", "dataset", "method", "preset", "seed", "device", "block_rows", "memory_budget", "shard_rows"]
LOOKS = ("selection.every", "selection.metric")  # where no round is chosen, they only say what curves show


def names_of(keys: Mapping[str, Any], overrides: Iterable[str] = ()) -> list[str]:
    """The names of the settings in keywords and `key=value` overrides.

    >>> names_of({"rounds": 5, "encoder": {"name": "mlp"}}, ["server.ema=0.9"])
    ['rounds', 'encoder.name', 'server.ema']
    """
    names: list[str] = []
    for key, value in keys.items():
        names += [f"{key}.{field}" for field in value] if isinstance(value, Mapping) else [key]
    return list(dict.fromkeys(names + [text.partition("=")[0].strip() for text in overrides]))


def note_without_effect(plan: Sequence[Experiment], names: Iterable[str]) -> None:
    """Warn of these settings, as a person gave them, where they change nothing in any run of the plan.

    What a preset or a file says is not for this: these are written for many methods.
    """
    idle: dict[str, list[str]] = {}
    for name in names:
        reasons = {_without_effect(settings, name) for settings in plan}
        if reasons and None not in reasons:
            reason = f"with {reasons.pop()}" if len(reasons) == 1 else "in any of these runs"
            idle.setdefault(reason, []).append(name)
    for reason, fields in idle.items():
        have = "has" if len(fields) == 1 else "have"
        warnings.warn(f"{_listed(fields)} {have} no effect {reason}", stacklevel=3)


def _without_effect(settings: Experiment, name: str) -> str | None:
    """With what the setting has none; None where it may have one."""
    section = name.partition(".")[0]
    for fields, needed in ONLY_WITH:
        if name in fields.split() or section in fields.split():
            values = {other: _value(settings, other) for other in needed}
            if not any(value in needed[other] for other, value in values.items()):
                return _listed([f"{other} {_written(value)}" for other, value in values.items() if other != name])
    return None


def acting(settings: Experiment) -> dict[str, Any]:
    """The settings that may act on the result, as `encoder.name`: what a comparison has to be open about.

    Method, dataset, preset and seed are not among them, as tables show these, nor what changes memory and speed alone.
    """
    found: dict[str, Any] = {}
    for name, entry in flat(settings.to_dict()).items():
        looks_only = name in LOOKS and settings.selection.keep == "last" and settings.method in FEDERATED
        if name not in OF_THE_TABLE and not looks_only and _without_effect(settings, name) is None:
            found[name] = entry
    return found


def _value(settings: Experiment, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _written(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
