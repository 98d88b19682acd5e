"""What there is to set: every setting with its meaning, values, defaults, and the methods and encoders that use it.

Meanings are the docstrings of the fields in `schema`. Who uses a setting follows from `unused` and from what methods
and encoders declare. Imports all methods, and so torch.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel

from fedalc.config.experiment import Experiment, flat
from fedalc.config.facts import METHOD_SECTIONS, MethodFacts, encoder_facts, method_facts
from fedalc.config.resolve import experiment
from fedalc.config.schema import NONE, PRESETS, Settings
from fedalc.config.unused import MORE, ONLY_WITH, SET, Conditions, Fact
from fedalc.core.registry import ENCODERS, METHODS, METRICS, ORACLES
from fedalc.errors import ConfigError, FedalcError

FACTS = {
    Fact("centralised", False): "a federated method",
    Fact("centralised"): "a centralised method",
    Fact("one_round"): "a method of one round",
    Fact("one_round", False): "a method of several rounds",
    Fact("trains_rows"): "a method whose clients train their rows of W",
    Fact("uses_labels"): "a method that uses label correlations",
    Fact("pictures"): "an encoder for pictures",
    Fact("pictures", False): "an encoder for rows of features",
}
NAMES = {"method": [METHODS, ORACLES], "encoder.name": [ENCODERS], "selection.metric": [METRICS]}


@dataclass(frozen=True)
class Defaults:
    """The default of a preset: for most methods, and for those that have another."""

    value: Any
    methods: Mapping[str, Any] = field(default_factory=dict)
    encoders: Mapping[str, Defaults] = field(default_factory=dict)  # if you name this encoder and it changes something


@dataclass(frozen=True)
class Setting:
    """One setting. `methods` and `encoders` are those that use it; None: all. `only_with`: what else it needs."""

    name: str
    meaning: str
    values: str
    default: Any
    methods: tuple[str, ...] | None
    encoders: tuple[str, ...] | None
    only_with: tuple[str, ...]
    presets: Mapping[str, Defaults]

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Section:
    """Settings that are a table in config.toml; the first section, of settings outside of tables, has no name."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]


@cache
def all_sections() -> tuple[Section, ...]:
    """Return every section with its settings, in the order of config.toml."""
    schema = Experiment.model_json_schema(by_alias=True)
    sections = [("", "", _plain_fields(schema))]
    for name, info in Experiment.model_fields.items():
        if isinstance(kind := info.annotation, type) and issubclass(kind, BaseModel):
            meaning = " ".join((kind.__doc__ or "").split())
            sections.append((name, meaning, kind.model_json_schema(by_alias=True)["properties"]))
    defaults = _Defaults()
    found = [
        Section(name, meaning, tuple(_setting(_full(name, key), entry, defaults) for key, entry in fields.items()))
        for name, meaning, fields in sections
    ]
    return (*found, *_own_options())


def all_settings() -> list[Setting]:
    return [setting for section in all_sections() for setting in section.settings]


def find(name: str) -> Section | list[Setting]:
    """Return the section or the settings of this name: `server`, `server.ridge`, or `ridge` in any section."""
    for section in all_sections():
        if section.name == name:
            return section
    settings = all_settings()
    found = [one for one in settings if name == one.name] or [
        one for one in settings if one.name.rpartition(".")[2] == name
    ]
    if not found:
        raise ConfigError(f"there is no setting or section {name!r:.60}{_suggestion(name)} `fedalc settings` lists all")
    return found


def _suggestion(name: str) -> str:
    """Return near names: those of settings in full, of sections, and of settings without their section."""
    last = {one.name.rpartition(".")[2]: one.name for one in reversed(all_settings())}
    names = {**last, **{one.name: one.name for one in all_settings()}, **{one.name: one.name for one in all_sections()}}
    near = difflib.get_close_matches(name, [known for known in names if known], n=3, cutoff=0.6)
    near = near or difflib.get_close_matches(name.rpartition(".")[2], list(last), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(dict.fromkeys(names[known] for known in near))}?" if near else "."


def _plain_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry for key, entry in schema["properties"].items() if "$ref" not in entry}


def _full(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _setting(name: str, entry: Mapping[str, Any], defaults: _Defaults) -> Setting:
    methods = tuple(method for method in (*METHODS, *ORACLES) if _uses(name, method))
    encoders = tuple(encoder for encoder in ENCODERS if _used_by_encoder(name, encoder))
    return Setting(
        name=name,
        meaning=" ".join(str(entry.get("description", "")).split()),
        values=_values(name, entry),
        default=entry.get("default"),
        methods=None if len(methods) == len(METHODS) + len(ORACLES) else methods,
        encoders=None if len(encoders) == len(ENCODERS) else encoders,
        only_with=tuple(_conditions(name)),
        presets=defaults.of(name, methods),
    )


def _own_options() -> Iterator[Section]:
    """Yield the settings that methods of the user's own have in [options]."""
    having: dict[type[Settings], list[str]] = {}
    for method in METHODS:
        with suppress(FedalcError):  # of an installed package that cannot be loaded
            if (kind := method_facts(method).Options) is not None:
                having.setdefault(kind, []).append(method)
    for kind, methods in having.items():
        fields = kind.model_json_schema(by_alias=True)["properties"]
        yield Section(
            "options",
            f"Settings of the method {' and '.join(methods)}.",
            tuple(
                Setting(
                    name=f"options.{key}",
                    meaning=" ".join(str(entry.get("description", "")).split()),
                    values=_values(key, entry),
                    default=entry.get("default"),
                    methods=tuple(methods),
                    encoders=None,
                    only_with=(),
                    presets={},
                )
                for key, entry in fields.items()
            ),
        )


# --- values ---


def _values(name: str, entry: Mapping[str, Any]) -> str:
    """Return the values that a setting may have, in words."""
    if name in NAMES:
        return ", ".join(item for registry in NAMES[name] for item in registry)
    return "bytes, or text such as 2GB" if name == "memory_budget" else _words(entry)


def _words(entry: Mapping[str, Any]) -> str:
    if "anyOf" in entry:
        return " or ".join(_words(choice) for choice in entry["anyOf"])
    if "enum" in entry or "const" in entry:
        return ", ".join(map(str, entry.get("enum", [entry.get("const")])))
    kind = entry.get("type")
    if "prefixItems" in entry:
        return f"[{', '.join(map(_words, entry['prefixItems']))}]"
    if kind == "array":
        return f"list of: {_words(entry.get('items', {}))}"
    words = {"boolean": "true, false", "null": NONE, "string": "text", "object": "table"}
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _bounds(entry)
    return words.get(str(kind), "any value")


def _bounds(entry: Mapping[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    bounds = [f"{sign} {written(entry[key])}" for key, sign in signs.items() if key in entry]
    return f" {' and '.join(bounds)}" if bounds else ""


# --- who uses a setting ---


def _lines(name: str) -> Iterator[Conditions]:
    section = name.partition(".")[0]
    for fields, needed in ONLY_WITH:
        if name in fields.split() or section in fields.split():
            yield needed


def _uses(name: str, method: str) -> bool:
    """Return whether a method can use a setting, with the right values of other settings."""
    try:
        facts = method_facts(method)
    except FedalcError:  # of an installed package that cannot be loaded
        return False
    section = name.partition(".")[0]
    if section in METHOD_SECTIONS and section not in _sections(facts):
        return False
    if any(not unless for ignored, unless in facts.ignores.items() if ignored in (name, section)):
        return False
    return all(_fact_holds(facts, needed["method"]) for needed in _lines(name) if set(needed) == {"method"})


def _sections(facts: type[MethodFacts]) -> tuple[str, ...]:
    return facts.sections if facts.Options is None else (*facts.sections, "options")


def _used_by_encoder(name: str, encoder: str) -> bool:
    try:
        facts = encoder_facts(encoder)
    except FedalcError:
        return False
    if name.removeprefix("encoder.") in facts.ignores and name.startswith("encoder."):
        return False
    needed = [line["encoder.name"] for line in _lines(name) if set(line) == {"encoder.name"}]
    return all(_fact_holds(facts, wanted) for wanted in needed)


def _fact_holds(facts: Any, wanted: object) -> bool:
    return not isinstance(wanted, Fact) or getattr(facts, wanted.name) == wanted.value


def _conditions(name: str) -> Iterator[str]:
    """Yield what else a setting needs, besides its methods and encoders."""
    for needed in _lines(name):
        if set(needed) <= {"method"} or set(needed) == {"encoder.name"}:
            continue
        yield ", or ".join(_condition(other, wanted) for other, wanted in needed.items())


def _condition(other: str, wanted: tuple[object, ...] | Fact) -> str:
    if isinstance(wanted, Fact):
        return FACTS.get(wanted, wanted.name)
    if wanted is MORE:
        return f"{other} > 0"
    if wanted is SET:
        return f"{other} set"
    return f"{other} = {' or '.join(map(written, wanted))}"


def written(value: Any) -> str:
    """Return a value as in --set.

    >>> written(None), written(True), written([1024, 1024]), written(1e-08)
    ('none', 'true', '[1024, 1024]', '1e-08')
    """
    if value is None or isinstance(value, bool):
        return NONE if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- defaults ---


class _Defaults:
    """The settings of every preset, method and encoder that go together."""

    def __init__(self) -> None:
        self.without_encoder = {preset: _by_method(preset) for preset in PRESETS}
        self.with_encoder = {(preset, name): _by_method(preset, name) for preset in PRESETS for name in ENCODERS}

    def of(self, name: str, methods: tuple[str, ...]) -> dict[str, Defaults]:
        if name in ("name", "dataset", "method", "preset", "seed", "device"):  # a preset says nothing about them
            return {}
        return {preset: self._of_preset(name, preset, methods) for preset in PRESETS}

    def _of_preset(self, name: str, preset: str, methods: tuple[str, ...]) -> Defaults:
        plain = _values_of(name, self.without_encoder[preset], methods)
        by_encoder = {}
        for encoder in ENCODERS if name != "encoder.name" else ():
            if not _used_by_encoder(name, encoder):
                continue
            values = _values_of(name, self.with_encoder[preset, encoder], methods)
            if any(value != plain.get(method) for method, value in values.items()):
                by_encoder[encoder] = _summary(values)
        return _summary(plain, by_encoder)


def _by_method(preset: str, encoder: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the settings by method, of those methods that the encoder allows."""
    found = {}
    named = {} if encoder is None else {"encoder": {"name": encoder}}
    for method in (*METHODS, *ORACLES):
        try:
            found[method] = flat(experiment({"preset": preset, "method": method, **named}).to_dict())
        except FedalcError:
            continue
    return found


def _values_of(name: str, found: Mapping[str, Mapping[str, Any]], methods: tuple[str, ...]) -> dict[str, Any]:
    return {method: values.get(name) for method, values in found.items() if method in methods}


def _summary(values: Mapping[str, Any], encoders: Mapping[str, Defaults] | None = None) -> Defaults:
    """Return the most frequent value, and the methods that have another."""
    key: Callable[[Any], str] = repr
    most = Counter(map(key, values.values())).most_common(1)
    usual = next((value for value in values.values() if most and key(value) == most[0][0]), None)
    others = {method: value for method, value in values.items() if key(value) != key(usual)}
    return Defaults(usual, others, encoders or {})
