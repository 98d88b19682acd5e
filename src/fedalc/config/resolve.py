"""Resolve the settings of an experiment. Later sources win: defaults, preset (for all methods, for this method, for the
named encoder), TOML file, keywords, `key=value` overrides.

A run folder stores the complete result in `config.toml`, so running that file again does not depend on the preset.
"""

from __future__ import annotations

import copy
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedalc.config.experiment import Experiment
from fedalc.config.facts import checked_options, encoder_facts, known_method, method_facts, solves_one_objective
from fedalc.config.schema import NONE, PRESETS
from fedalc.core.arguments import as_path
from fedalc.core.registry import ENCODERS, METHODS, ORACLES
from fedalc.core.safe_parsing import DEEPEST, Unreadable, parse_toml
from fedalc.data.dataset import Dataset
from fedalc.data.load import has_parties, has_pictures
from fedalc.data.pretrained.usual import is_for_texts, usual_size
from fedalc.errors import NO_SEARCH, ConfigError, either


def experiment(
    settings: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    overrides: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Experiment:
    """Resolve an experiment. `settings` wins over `file`; `overrides` ("server.ema=0.9") win over both. `defaults` are
    for settings that none of these contains.

    >>> experiment({"method": "fedaws"}, overrides=["regularizer.lambda=100"]).regularizer.lambda_
    100.0
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"expected a dict of settings, found {settings!r:.60}")
    if defaults is not None and not isinstance(defaults, Mapping):
        raise ConfigError(f"expected a dict of settings, found {defaults!r:.60}", "defaults")
    overrides = checked_overrides(overrides)
    requested: dict[str, Any] = {}
    for table in (defaults or {}, _read_toml(as_path(file, "file")) if file else {}, settings or {}):
        _merge(requested, table)
    for text in overrides:
        _merge(requested, parse_override(text))
    name = _one_of(PRESETS, requested.get("preset", Experiment.model_fields["preset"].default), "preset")
    method = requested.get("method", _preset_file(name).get("method", Experiment.model_fields["method"].default))
    try:
        known_method(method)
    except ValueError as error:
        raise ConfigError(str(error), "method") from None
    requested = _for_method(requested, method, file)
    dataset = requested.get("dataset", Experiment.model_fields["dataset"].default)
    if not isinstance(dataset, str):
        raise ConfigError(f"expected a name, a folder or a fedalc.Dataset, found {dataset!r:.60}", "dataset")
    server = requested.get("server")
    if isinstance(server, dict) and server.get("aggregation") == "auto":
        del server["aggregation"]  # "auto" is what a missing setting means
    # The rest imports the method's class, and so torch. Refuse a mistyped setting before that.
    Experiment.model_validate(requested, context={"file": file, "values_only": True})
    _use_pretrained(requested, dataset)
    encoder = requested.get("encoder", {}).get("name")
    if encoder is None and has_pictures(dataset) and not requested.get("encoder", {}).get("frozen"):
        encoder = _preset_file(name)["pictures"]["encoder"]
        _merge(requested, {"encoder": {"name": encoder}})
    values = preset(name, method, encoder)
    if has_parties(dataset):
        values["clients"] = "parties"
    _merge(values, {"method": method, **requested})
    if "optimizer" not in requested.get("server", {}):
        _choose_optimizer(values)
    if values.get("task") == "verification":
        _choose_for_verification(values, requested.get("selection", {}))
    _fill_in(values, method)
    if (kind := method_facts(method).Options) is not None:
        options = checked_options(kind, values.get("options", {}))
        values["options"] = options.model_dump(mode="json", by_alias=True)  # all of them, for config.toml
    return Experiment.model_validate(values, context={"file": file})


def _use_pretrained(requested: dict[str, Any], dataset: str) -> None:
    """Say what pretrained weights are for: frozen features of texts or pictures, or the start of a ResNet."""
    encoder = requested.get("encoder", {})
    source = encoder.get("pretrained")
    if source in (None, NONE):
        return
    trained = "name" in encoder and encoder_facts(encoder["name"]).pictures
    if not encoder.setdefault("frozen", not trained) or trained:
        return
    sources = [source] if isinstance(source, str) else list(source)
    if len(sources) == 1 and is_for_texts(sources[0]):
        if has_pictures(dataset) or "images" in requested:
            raise ConfigError(f"{sources[0]}: is a network for texts, but {dataset} has pictures", "encoder.pretrained")
        requested["text"] = {"encoder": sources[0], **requested.get("text", {})}
        del encoder["pretrained"], encoder["frozen"]
        return
    if texts := [str(one) for one in sources if is_for_texts(one)]:
        raise ConfigError(f"{texts[0]}: is a network for texts, beside networks for pictures", "encoder.pretrained")
    images = requested.setdefault("images", {})
    if "size" not in images:
        images["size"] = usual_size(sources)
    if requested.get("engine") != "flower":  # real parties cannot count it
        requested.setdefault("selection", {}).setdefault("metric", "mAP")


def is_frozen(requested: Mapping[str, Any]) -> bool:
    """Return whether settings, not yet complete, ask for features of a frozen network and no more of [encoder]."""
    encoder = requested.get("encoder", {})
    if not isinstance(encoder, Mapping):  # a mistake, which checking the settings names
        return False
    return "pretrained" in encoder and set(encoder) <= FROZEN and encoder.get("frozen", True) is True


def checked_overrides(overrides: Any) -> list[str]:
    """Return a list of "key=value". Accepts a single one."""
    given = [overrides] if isinstance(overrides, str) or not isinstance(overrides, Iterable) else list(overrides)
    for text in given:
        if not isinstance(text, str):
            raise ConfigError(
                f"expected a list of key=value, such as ['server.ema=0.9'], found {text!r:.60}", "overrides"
            )
    return given


PLAIN = ("name", "dataset", "seed", "device", "dtype", "block_rows", "memory_budget", "table", "text")
"""Settings that do not ask for a method."""
FROZEN = {"pretrained", "frozen", "weights"}
"""Settings of [encoder] that say how records become features, before any training."""


def default_choice(
    settings: Mapping[str, Any], file: Path | None = None, overrides: Iterable[str] = (), tune: bool | None = None
) -> dict[str, Any]:
    """Return what a user gets who names no method: a search for the best exact settings, or without it (`tune` false)
    the exact method in one round. Other settings that are not `PLAIN` mean a method of the paper, as ever."""
    requested: dict[str, Any] = {}
    for table in (_read_toml(as_path(file, "file")) if file else {}, settings):
        _merge(requested, table)
    for text in overrides:
        _merge(requested, parse_override(text))
    dataset = requested.get("dataset", Experiment.model_fields["dataset"].default)
    pictures = "images" in requested or (isinstance(dataset, str) and has_pictures(dataset))
    if tune and (centralised := requested.get("method")) in ORACLES:
        raise ConfigError(f"the search is for the exact methods, not for {centralised}; leave it out", "tuning.search")
    frozen = is_frozen(requested)
    if tune and pictures and not frozen:
        raise ConfigError(
            f"the search is for rows of features, not for pictures; leave it out ({NO_SEARCH}), or use a "
            "frozen network: " + either("--pretrained FOLDER", "encoder={'pretrained': FOLDER}"),
            "tuning.search",
        )
    plain = {*PLAIN, "images", "tuning"} | ({"clients"} if requested.get("clients") == "parties" else set())
    collection = requested.get("collection")
    if isinstance(collection, Mapping) and (collection.get("by") == "sums" or collection == {"by": "join"}):
        plain |= {"collection"}  # sums are for the exact methods alone, the join is the default
    plain |= {"secure_sums"} if tune else set()
    plain |= {"encoder"} if frozen else set()
    if requested.get("task") == "verification" and "method" not in requested:
        if tune:
            raise ConfigError("the search chooses settings for classification; leave out --tune", "tuning.search")
        embedded = {} if "dataset" in requested else {"dataset": "identities"}
        return {"method": "fedalc-exact" if pictures and not frozen else "fedalc-plda", **embedded}
    if "method" in requested or (set(requested) - plain and tune is not False):
        if tune:
            _refuse_what_a_search_chooses(requested)
            method = {} if {"method", "preset"} & set(requested) else {"method": "fedalc-exact"}
            return {**method, "tuning": {"search": True}}
        return {} if tune is None else {"tuning": {"search": False}}
    if pictures and not frozen:
        return {"method": "fedalc-exact"}
    if tune is False:
        return {"method": "fedalc-oneshot", "tuning": {"axes": "dim" not in requested.get("encoder", {})}}
    return {"method": "fedalc-exact", "tuning": {"search": True}}


def _refuse_what_a_search_chooses(requested: Mapping[str, Any]) -> None:
    """A search keeps some settings of the user. Others it would replace without a word."""
    kept = {*PLAIN, "method", "preset", "engine", "selection", "collection", "secure_sums", "tuning"}
    kept |= {"images", *(f"encoder.{name}" for name in FROZEN)}
    kept |= {"encoder.features", "client.set_size", "client.label_offset"}
    requested = {name: value for name, value in requested.items() if (name, value) != ("clients", "parties")}
    reasons = {
        "privacy": "ε does not cover a search, which looks at the labels many times",
        "clients": "the search needs a client for each label, or for each label of a party",
        "embeddings.secret": "the search works on each label's own column, which the secret rotation mixes",
        "selection.validation": "the search holds out records itself: a fifth of train",
    }
    for name, value in requested.items():
        fields = [f"{name}.{field}" for field in value] if isinstance(value, Mapping) else [name]
        for field in fields:
            if (name not in kept and field not in kept) or field in reasons:
                reason = reasons.get(field, reasons.get(name, "the search chooses it"))
                raise ConfigError(f"{reason}; leave it out, or the search ({NO_SEARCH})", field)


def for_data(settings: Experiment, data: Dataset) -> Experiment:
    """Return the settings with the columns that were found in the data, if it is a table, and with the digest of the
    frozen network that made its features."""
    if data.pictures is not None and settings.encoder.frozen:
        encoder = settings.encoder.model_copy(update={"weights": data.pictures.digest})
        settings = settings.model_copy(update={"encoder": encoder})
    return settings if data.table is None else settings.model_copy(update={"table": data.table})


def for_labels(settings: Experiment, labels: int) -> Experiment:
    """Return the settings for data with this many labels: some methods need an axis for each."""
    dim = method_facts(settings.method).dim_for(settings, labels)
    if settings.encoder.dim == dim:
        return settings
    return settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"dim": dim})})


def _fill_in(values: dict[str, Any], method: str) -> None:
    """Add the settings that follow from the method and the loss, unless the user has set them."""
    client, encoder = values.setdefault("client", {}), values.setdefault("encoder", {})
    if values.get("clients") == "parties":  # the rows of a party's file have no numbers that another party knows
        values.setdefault("collection", {}).setdefault("identity", "content")
    if "epsilon" in values.get("privacy", {}):
        values["privacy"].setdefault("mechanism", "counts")  # a user who gives an ε wants privacy
    if values.get("secure_sums", {}).get("on"):
        values.setdefault("engine", "clients")  # fused adds all clients up before anyone could mask anything
    if (client.get("epochs", 1), client.get("batch_size") or NONE) != (1, NONE):
        _choose_engine(values, method)
    if values.get("privacy", {}).get("mechanism") in ("sums", "updates"):
        _fill_in_private_records(values)
    _choose_aggregation(values, method)
    all_labels = client.get("loss", "hinge") != "hinge"
    encoder.setdefault("output", "raw" if all_labels else "unit")
    linear = encoder_facts(encoder["name"]).linear if "name" in encoder else False
    if all_labels and linear and encoder["output"] == "raw":
        encoder.setdefault("start", "zero")


def _choose_engine(values: dict[str, Any], method: str) -> None:
    """With local epochs or batches, use the engine that can compute them, unless the user names one."""
    encoder = values["encoder"].get("name")
    pictures = encoder is not None and encoder_facts(encoder).pictures
    if not method_facts(method).centralised:
        values.setdefault("engine", "clients" if pictures else "lockstep")


def _fill_in_private_records(values: dict[str, Any]) -> None:
    """Choose nothing by held-out records, give each label an axis, and let each record count as much as another."""
    values.setdefault("selection", {}).setdefault("validation", 0.0)
    values["privacy"].setdefault("labels_per_instance", 1)
    values.setdefault("tuning", {}).setdefault("axes", "dim" not in values.get("encoder", {}))


def _choose_optimizer(values: dict[str, Any]) -> None:
    """Conjugate gradients are for the square loss. For the others take Newton steps, or adam if θ is not one matrix."""
    server, client, encoder = (values.get(name, {}) for name in ("server", "client", "encoder"))
    if server.get("optimizer") != "cg" or client.get("loss", "square") in ("hinge", "square"):
        return
    linear = encoder_facts(encoder["name"]).linear if "name" in encoder else False
    server["optimizer"] = "newton" if linear and client.get("negatives") is None else "adam"
    if not linear:
        encoder["shortcut"] = False  # cg would solve for it


def _choose_for_verification(values: dict[str, Any], requested: Mapping[str, Any]) -> None:
    """Choose by the equal error rate, and hold out more records than usual: thresholds need them."""
    selection, private = values.setdefault("selection", {}), values.get("privacy", {}).get("mechanism")
    if "metric" not in requested:
        parties = values.get("engine") == "flower"  # they count hits, and have no trials of impostors
        selection["metric"] = "P@1" if parties else "EER"
    if "validation" not in requested and selection.get("validation", 0.1) > 0 and private not in ("sums", "updates"):
        selection["validation"] = 0.2


def _choose_aggregation(values: dict[str, Any], method: str) -> None:
    """Real parties may send false values, simulated ones do not. A method that solves one objective needs the mean,
    and so do secure sums and noise for whole records."""
    server = values.setdefault("server", {})
    mean = solves_one_objective(method, server.get("optimizer")) or values.get("secure_sums", {}).get("on")
    mean = mean or values.get("privacy", {}).get("mechanism") in ("sums", "updates")
    server.setdefault("aggregation", "clip" if values.get("engine") == "flower" and not mean else "mean")


def _one_of(known: tuple[str, ...], value: Any, field: str) -> str:
    if value not in known:
        close = difflib.get_close_matches(str(value), known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"unknown {field} {value!r}{hint}; there are {', '.join(known)}", field)
    return str(value)


def _for_method(requested: dict[str, Any], method: str, file: Path | None) -> dict[str, Any]:
    """Apply the `[methods.NAME]` table of this method. Other settings win over it."""
    tables = requested.pop("methods", {})
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{file}: expected tables, [methods.NAME]", "methods")
    for name, table in tables.items():
        if problem := METHODS.problem(name):
            raise ConfigError(f"{file}: {problem}", f"methods.{name}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"{file}: expected a table", f"methods.{name}")
    values: dict[str, Any] = {}
    _merge(values, tables.get(method, {}))
    _merge(values, requested)
    return values


def preset(name: str, method: str, encoder: str | None = None) -> dict[str, Any]:
    """Return the settings of a preset. Later tables win: for all methods, the method's own defaults, for this method,
    and for the encoder (or its family, such as `resnet`) that the user or the preset names."""
    files = [_preset_file(file) for file in ("exact", "oracles", name)]  # the first two apply to every preset
    values: dict[str, Any] = {"preset": name}
    for tables in files:
        _merge(values, tables.get("all", {}))
    _merge(values, copy.deepcopy(method_facts(method).defaults))
    for tables in files:
        _merge(values, tables.get(method, {}))
    encoder = encoder or values.get("encoder", {}).get("name")
    families = () if encoder is None or encoder not in ENCODERS else (encoder_facts(encoder).family, encoder)
    for family in families:
        for key in ("all", method):
            for tables in files:
                _merge(values, tables.get("encoder", {}).get(family, {}).get(key, {}))
    return values


def _preset_file(name: str) -> dict[str, Any]:
    return copy.deepcopy(_parsed_preset(name))  # callers change it


@cache
def _parsed_preset(name: str) -> dict[str, Any]:
    file = resources.files("fedalc.config").joinpath("presets", f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (Unreadable, OSError, ValueError) as error:  # ValueError: an invalid path
        raise ConfigError(f"{path}: not a readable TOML file: {error}") from None


def parse_override(text: str) -> dict[str, Any]:
    """Parse section.setting=value, as --set takes it."""
    key, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals or not key.strip():
        raise ConfigError(f"expected key=value, found {text!r}", "--set")
    value = value.strip()
    parsed: Any = value
    with suppress(Unreadable):  # a bare word is a string
        parsed = parse_toml(f"value = {value}")["value"]
    nested: dict[str, Any] = {}
    table = nested
    *sections, last = key.strip().split(".")
    if len(sections) >= DEEPEST:
        raise ConfigError(f"there is no such setting: {text[:60]!r}…", "--set")
    for section in sections:
        table = table.setdefault(section, {})
    table[last] = parsed
    return nested


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, BaseModel):  # a section that was built in Python
            value = value.model_dump(by_alias=True)
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value
