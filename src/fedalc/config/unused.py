"""Warn about settings that the method, encoder or other settings ignore."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedalc.config.experiment import Experiment, flat
from fedalc.config.facts import METHOD_SECTIONS, encoder_facts, method_facts


class Fact(NamedTuple):
    """A fact that the class of the method or encoder declares."""

    name: str
    value: bool = True


Conditions = Mapping[str, tuple[object, ...] | Fact]

FEDERATED, CENTRALISED = Fact("centralised", False), Fact("centralised")
TAKES_FEATURES, TAKES_PICTURES = Fact("pictures", False), Fact("pictures")

#: Settings or whole sections, and with what they have an effect: one of these settings at one of these values, or with
#: a fact of the method or encoder. If a setting is in several lines, all have to hold. Only what is certain is here: a
#: warning must not be wrong. What concerns one method or encoder is declared in its class (`ignores`, `sections`).
ONLY_WITH: tuple[tuple[str, Conditions], ...] = (
    ("client server embeddings collection engine clients rounds", {"method": FEDERATED}),
    ("rounds client.learning_rate server.learning_rate", {"method": Fact("one_round", False)}),
    ("encoder.name", {"method": FEDERATED, "encoder.name": TAKES_PICTURES}),  # pictures: validation has mAP
    ("encoder.dim encoder.embedding encoder.hidden encoder.start encoder.output", {"method": FEDERATED}),
    ("encoder.dropout encoder.shortcut encoder.precision encoder.norm encoder.pretrained", {"method": FEDERATED}),
    ("encoder.start", {"encoder.name": TAKES_FEATURES}),
    ("encoder.features", {"encoder.name": TAKES_FEATURES, "method": CENTRALISED}),
    ("encoder.norm images", {"encoder.name": TAKES_PICTURES}),
    ("client.row_learning_rate", {"method": Fact("trains_rows")}),
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
    ("server.ridge", {"server.optimizer": ("cg",), "method": Fact("one_round")}),
    ("server.trim", {"server.aggregation": ("trimmed-mean",)}),
    ("server.byzantine", {"server.aggregation": ("multi-krum",)}),
    ("regularizer.neighbours regularizer.candidates", {"regularizer.form": ("mined",)}),
    ("fixed.neighbours", {"fixed.form": ("mined",)}),
    (
        "collection",
        {
            "method": Fact("uses_labels"),
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
    """Return the settings that keep this one from having an effect, as words. None if it may have one."""
    section = name.partition(".")[0]
    for fields, needed in (*ONLY_WITH, *_declared(settings)):
        if name not in fields.split() and section not in fields.split():
            continue
        if not any(_holds(settings, other, wanted) for other, wanted in needed.items()):
            values = {other: _value(settings, other) for other in needed if other != name}
            return _listed([f"{other} {_written(value)}" for other, value in values.items()])
    return None


def _declared(settings: Experiment) -> list[tuple[str, Conditions]]:
    """Lines like those of ONLY_WITH, from what the method and the encoder declare."""
    method, encoder = method_facts(settings.method), encoder_facts(settings.encoder.name)
    unread = " ".join(section for section in METHOD_SECTIONS if section not in method.sections)
    ignored = " ".join(f"encoder.{field}" for field in encoder.ignores)
    lines = [(name, {"method": (), **unless}) for name, unless in method.ignores.items()]
    return [(unread, {"method": ()}), (ignored, {"encoder.name": ()}), *lines]


def _holds(settings: Experiment, name: str, wanted: tuple[object, ...] | Fact) -> bool:
    if not isinstance(wanted, Fact):
        return _value(settings, name) in wanted
    declared = method_facts(settings.method) if name == "method" else encoder_facts(settings.encoder.name)
    return getattr(declared, wanted.name) == wanted.value


def acting(settings: Experiment) -> dict[str, Any]:
    """The settings that may act on the result, as `encoder.name`: what a comparison has to be open about.

    Method, dataset, preset and seed are not among them, as tables show these, nor what changes memory and speed alone.
    """
    found: dict[str, Any] = {}
    federated = not method_facts(settings.method).centralised
    for name, entry in flat(settings.to_dict()).items():
        looks_only = name in LOOKS and settings.selection.keep == "last" and federated
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
