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


class _Any(tuple[object, ...]):
    """All values but None."""

    def __contains__(self, value: object) -> bool:
        return value is not None


class _Positive(tuple[object, ...]):
    """All numbers above 0."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and value > 0


Conditions = Mapping[str, tuple[object, ...] | Fact]
SET, MORE = _Any(), _Positive()

FEDERATED, CENTRALISED = Fact("centralised", False), Fact("centralised")
TAKES_FEATURES, TAKES_PICTURES = Fact("pictures", False), Fact("pictures")

ALL_LABELS = ("square", "logistic", "squared-hinge", "softmax", "softmax-per-label")  # losses that compare labels

#: Settings or sections, and the conditions of which at least one must hold for them to have an effect: another setting
#: has one of these values, or the method or encoder declares this fact. If a setting is in several lines, every line
#: must hold. List only certain cases: a warning must not be wrong. A method or encoder declares its own cases in its
#: class (`ignores`, `sections`).
ONLY_WITH: tuple[tuple[str, Conditions], ...] = (
    ("client server secure_sums compression embeddings collection engine clients rounds", {"method": FEDERATED}),
    ("rounds client.learning_rate server.learning_rate", {"method": Fact("one_round", False)}),
    ("encoder.name", {"method": FEDERATED, "encoder.name": TAKES_PICTURES}),  # with pictures, validation computes mAP
    ("encoder.dim encoder.embedding encoder.hidden encoder.start encoder.output", {"method": FEDERATED}),
    ("encoder.dropout encoder.input_dropout encoder.shortcut encoder.precision", {"method": FEDERATED}),
    (
        "encoder.constant encoder.random_features encoder.activation encoder.scale encoder.linear_part",
        {"method": FEDERATED},
    ),
    ("encoder.start", {"encoder.name": TAKES_FEATURES}),
    ("encoder.features", {"encoder.name": TAKES_FEATURES, "method": CENTRALISED}),
    ("images", {"encoder.name": TAKES_PICTURES, "encoder.frozen": (True,)}),
    ("images.augment", {"encoder.frozen": (False,)}),
    ("images.fit images.views images.mean images.deviation encoder.weights", {"encoder.frozen": (True,)}),
    ("text.most_terms text.least_documents text.largest_share", {"text.kind": ("vocabulary",), "text.tfidf": MORE}),
    ("text.buckets text.sign", {"text.kind": ("hashing",)}),
    ("text.epsilon text.delta text.terms_per_document", {"text.kind": ("hashing",)}),
    ("text.epsilon text.delta text.terms_per_document", {"text.idf": (True,)}),
    ("text.batch text.device text.tfidf", {"text.kind": ("encoder",)}),
    (
        "text.words text.characters text.lowercase text.sublinear text.idf",
        {"text.kind": ("vocabulary", "hashing"), "text.tfidf": MORE},
    ),
    ("client.row_learning_rate server.trained_rows", {"method": Fact("trains_rows")}),
    (
        "client.momentum",
        {"engine": ("lockstep", "clients", "flower")},
    ),  # it lasts for one round, and fused has one step per round
    ("client.margin", {"client.loss": ("hinge",)}),
    ("client.set_size", {"client.loss": ALL_LABELS}),
    ("client.label_power client.label_offset", {"client.loss": ("square",)}),
    (
        "server.learning_rate server.weight_decay",
        {"server.optimizer": ("sgd", "momentum", "adam", "adagrad"), "encoder.shortcut": (True,)},
    ),
    ("server.momentum", {"server.optimizer": ("momentum", "adam", "cg")}),  # cg: for the mlp beside a shortcut
    ("server.beta2", {"server.optimizer": ("adam", "cg")}),
    ("server.epsilon", {"server.optimizer": ("adam", "adagrad", "cg")}),
    ("server.solve_rounds", {"server.optimizer": ("cg",)}),
    ("server.solve_rounds", {"encoder.shortcut": (True,)}),
    ("server.newton_rounds", {"server.optimizer": ("newton",)}),
    ("server.ridge", {"server.optimizer": ("cg", "newton"), "method": Fact("one_round")}),
    ("server.least_holders", {"method": Fact("one_round")}),
    ("server.trim", {"server.aggregation": ("trimmed-mean",)}),
    ("server.byzantine", {"server.aggregation": ("multi-krum",)}),
    ("secure_sums.threshold secure_sums.bits secure_sums.norm", {"secure_sums.on": (True,)}),
    ("compression.down", {"method": Fact("one_round", False)}),
    ("compression.error_feedback", {"compression.up": ("bfloat16", "int8")}),
    ("regularizer.neighbours regularizer.candidates", {"regularizer.form": ("mined",)}),
    ("fixed.neighbours", {"fixed.form": ("mined",)}),
    (
        "collection",
        {
            "method": Fact("uses_labels"),
            "client.loss": ALL_LABELS,
            "embeddings.start": ("by-frequency", "codewords"),  # feduv draws its codewords under the key
            "embeddings.secret": (True,),
        },
    ),
    ("collection.records collection.collisions", {"collection.by": ("sums",)}),
    ("collection.most_labels", {"collection.by": ("psi",)}),
    ("collection.quantum", {"collection.identity": ("embedding",)}),
    ("privacy.epsilon privacy.delta privacy.noise", {"privacy.mechanism": SET}),
    ("privacy.labels_per_instance", {"privacy.mechanism": ("counts", "sums")}),
    ("privacy.moments", {"privacy.mechanism": ("sums",)}),
    ("privacy.noise_parties privacy.noise_dropouts", {"privacy.mechanism": ("sums", "updates")}),
    ("privacy.noise_parties", {"secure_sums.on": (False,)}),  # with them, all parties add noise
    ("privacy.clip", {"privacy.mechanism": ("gradients", "updates")}),
    ("privacy.sample_rate", {"privacy.mechanism": ("gradients",)}),
    ("selection.every selection.patience selection.keep selection.test_curve", {"method": FEDERATED}),
    ("selection.patience", {"selection.keep": ("best",)}),
    ("tuning", {"method": FEDERATED}),
    ("rounds client.sample selection.every", {"tuning.batch": (None,)}),
    ("tuning.epochs", {"tuning.batch": SET}),
    ("selection.test_curve", {"selection.validation": (0,)}),
)


OF_THE_TABLE = ["name", "dataset", "method", "preset", "seed", "device", "block_rows", "memory_budget", "shard_rows"]
LOOKS = ("selection.every", "selection.metric")  # if training keeps the last round, they only affect curves


def names_of(keys: Mapping[str, Any], overrides: Iterable[str] = ()) -> list[str]:
    """Return the names of the settings in keywords and `key=value` overrides.

    >>> names_of({"rounds": 5, "encoder": {"name": "mlp"}}, ["server.ema=0.9"])
    ['rounds', 'encoder.name', 'server.ema']
    """
    names: list[str] = []
    for key, value in keys.items():
        names += [f"{key}.{field}" for field in value] if isinstance(value, Mapping) else [key]
    return list(dict.fromkeys(names + [text.partition("=")[0].strip() for text in overrides]))


def note_without_effect(plan: Sequence[Experiment], names: Iterable[str]) -> None:
    """Warn about settings that the user gave and that change nothing in any run of the plan.

    Do not pass settings from a preset or a file: those are written for many methods.
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
    """Return a text with the settings that make this one ineffective. None if it may have an effect."""
    section = name.partition(".")[0]
    for fields, needed in (*_declared(settings), *ONLY_WITH):
        if name not in fields.split() and section not in fields.split():
            continue
        if not any(_holds(settings, other, wanted) for other, wanted in needed.items()):
            values = {other: _value(settings, other) for other in needed if other != name}
            return _listed([f"{other} {_written(value)}" for other, value in values.items()])
    return None


def _declared(settings: Experiment) -> list[tuple[str, Conditions]]:
    """Return lines like those of ONLY_WITH, from the declarations of the method and the encoder."""
    method, encoder = method_facts(settings.method), encoder_facts(settings.encoder.name)
    read = (*method.sections, "options") if method.Options is not None else method.sections
    unread = " ".join(section for section in METHOD_SECTIONS if section not in read)
    ignored = " ".join(f"encoder.{field}" for field in encoder.ignores)
    lines = [(name, {"method": (), **unless}) for name, unless in method.ignores.items()]
    return [(unread, {"method": ()}), (ignored, {"encoder.name": ()}), *lines]


def _holds(settings: Experiment, name: str, wanted: tuple[object, ...] | Fact) -> bool:
    if not isinstance(wanted, Fact):
        return _value(settings, name) in wanted
    declared = method_facts(settings.method) if name == "method" else encoder_facts(settings.encoder.name)
    return getattr(declared, wanted.name) == wanted.value


def acting(settings: Experiment) -> dict[str, Any]:
    """Return the settings that may affect the result, by names such as `encoder.name`. A comparison must show them.

    Leaves out method, dataset, preset and seed, which tables show, and settings that only change memory or speed.
    """
    effective: dict[str, Any] = {}
    federated = not method_facts(settings.method).centralised
    for name, entry in flat(settings.to_dict()).items():
        looks_only = name in LOOKS and settings.selection.keep == "last" and federated
        if name not in OF_THE_TABLE and not looks_only and _without_effect(settings, name) is None:
            effective[name] = entry
    return effective


def _value(settings: Experiment, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _written(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
