"""Read a Flower run config (kebab-case keys): the experiment, and how to run it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.config.facts import method_facts
from fedalc.config.resolve import default_choice, experiment
from fedalc.config.schema import MOST_LABELS_PER_PARTY
from fedalc.core.registry import METHODS
from fedalc.data.pretrained.weights import digest_of, find_weights, joint_digest
from fedalc.deployment.flower.connections import Patience
from fedalc.deployment.flower.held_out_records import ranked_by
from fedalc.deployment.flower.party import SHARES
from fedalc.errors import ConfigError, NeedsSecureSums
from fedalc.labels.collection.keys import check_run_id
from fedalc.secure_sums.messages import LEAST_PARTIES

DEFAULTS: dict[str, bool | int | float | str] = {
    "method": "",
    "preset": "",
    "num-server-rounds": 0,
    "seed": -1,
    "settings": "",
    "set": "",
    "run-folder": "",
    "resume": False,
    "held-out": "",
    "held-out-share": 0.1,
    "rank-held-out": "auto",
    "tune": False,
    "secure-sums": "auto",
    "collection": "",
    "num-parties": 2,
    "min-parties": 2,
    "wait": 600.0,
    "round-timeout": 600.0,
    "max-norm": 0.0,
    "run-id": "",
    "max-labels-per-party": MOST_LABELS_PER_PARTY,
    "epsilon-budget": 0.0,
    "privacy-ledger": "",
}
"""All keys. A value that is empty, 0 or -1 stands for the default: from the settings file, the preset or a rule."""

LARGEST = 1 << 63

ALWAYS = (
    'engine="flower"',
    'dataset="parties"',
    "selection.validation=0",  # the server has no data to hold out; parties may
    "selection.refit=false",
    "selection.test_curve=false",
)
"""Settings that are fixed with real parties."""


@dataclass(frozen=True)
class Deployment:
    """How to run, apart from what to train."""

    folder: Path
    resume: bool
    held_out: str | None
    share: float
    ranks: bool  # whether parties rank all labels for their held-out records; a resumed run does as it began
    patience: Patience
    max_norm: float | None
    run_id: str = ""
    most_labels: int = MOST_LABELS_PER_PARTY
    epsilon_budget: float | None = None  # for all runs of this deployment together
    privacy_ledger: Path | None = None  # where they are recorded; default: beside the run folder


def read_run_config(run_config: Mapping[str, Any], run_id: int) -> tuple[Deployment, Experiment]:
    """Return the deployment and the experiment of a new run. (A resumed run continues with its own settings.)"""
    values: dict[str, Any] = {}
    for key, default in DEFAULTS.items():
        value: Any = run_config.get(key, default)
        wanted = float if isinstance(default, float) else type(default)
        if wanted is float and type(value) is int and abs(value) < LARGEST:
            value = float(value)
        if type(value) is not wanted or (type(value) is int and abs(value) >= LARGEST):
            raise ConfigError(f"should be a {wanted.__name__}, and is {_shown(value)}", key)
        values[key] = value
    least = {"num-parties": 1, "min-parties": 1, "wait": 0, "round-timeout": 1, "max-norm": 0, "epsilon-budget": 0}
    _at_least(values, least | {"max-labels-per-party": 1})
    if values["run-id"]:
        check_run_id(values["run-id"])
    if values["min-parties"] > values["num-parties"]:
        raise ConfigError(
            f"{values['min-parties']} is more than num-parties, with which the run starts ({values['num-parties']})",
            "min-parties",
        )
    if values["held-out-share"] not in SHARES:
        raise ConfigError(f"should be 0, 0.05, 0.1, … or 0.5, and is {values['held-out-share']}", "held-out-share")
    held_out = values["held-out"] or None
    settings = _experiment(values)
    nothing_measured = held_out or settings.privacy.covers_records  # at parties
    share = 0.0 if nothing_measured else values["held-out-share"]
    if held_out and settings.embeddings.secret:
        raise ConfigError(
            "the server cannot score: the class embeddings are secret (embeddings.secret). Leave it out; parties "
            "evaluate on records of their own (--held-out-share)",
            "held-out",
        )
    if settings.tuning.search:
        settings = _searching(values["rank-held-out"], settings, share)
    ranks = not values["resume"] and _ranks(values["rank-held-out"], settings, share)
    deployment = Deployment(
        folder=Path(values["run-folder"] or f"runs/flower-{run_id}"),
        resume=values["resume"],
        held_out=held_out,
        share=share,
        ranks=ranks,
        patience=Patience(values["num-parties"], values["min-parties"], values["wait"], values["round-timeout"]),
        max_norm=values["max-norm"] or None,
        run_id=values["run-id"],
        most_labels=values["max-labels-per-party"],
        epsilon_budget=values["epsilon-budget"] or None,
        privacy_ledger=Path(values["privacy-ledger"]) if values["privacy-ledger"] else None,
    )
    keeps_best = ranks and ranked_by(settings) and not settings.tuning.search  # a search chooses the rounds too
    return deployment, settings if keeps_best else _keeping_the_last_round(settings)


def _ranks(asked: str, settings: Experiment, share: float) -> bool:
    """Return whether parties rank all labels for their held-out records. For that they get all rows of W, so "auto"
    means only if these are fixed before round 1, and no secret."""
    if asked not in ("auto", "on", "off"):
        raise ConfigError(f"should be auto, on or off, and is {asked[:40]!r}", "rank-held-out")
    reasons = {
        "there are no held-out records at the parties (held-out-share)": share == 0,
        "noise hides the numbers of instances (privacy), and hits would show them": settings.privacy.mechanism,
        'a hit at several parties would count for each (collection.by = "sums" needs client.set_size = "exact")': (
            settings.collection.by == "sums" and settings.clients == "parties" and settings.client.set_size != "exact"
        ),
        'it needs digests of held-out records, and parties send none (collection.by = "psi")': (
            settings.collection.by == "psi"
        ),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if asked == "on" and reason is not None:
        raise ConfigError(f"cannot be on: {reason}", "rank-held-out")
    facts = method_facts(settings.method)
    return reason is None and (asked == "on" or (asked == "auto" and not (facts.trains_rows or facts.secret_rows)))


def _searching(asked: str, settings: Experiment, share: float) -> Experiment:
    """Return the settings of a search, with a metric that parties can measure."""
    metric = ranked_by(settings)
    if settings.collection.by == "psi":
        raise ConfigError("the search ranks held-out records, which psi does not count; use join or sums", "tune")
    if asked == "off" or share == 0 or metric is None:
        raise ConfigError(
            "the search needs parties that rank labels for held-out records: leave out --held-out and "
            "--rank-held-out off, give a --held-out-share above 0, and choose by P@k or nDCG@k (selection.metric)",
            "tune",
        )
    return settings.model_copy(update={"selection": settings.selection.model_copy(update={"metric": metric})})


def _keeping_the_last_round(settings: Experiment) -> Experiment:
    """Nothing is measured that could tell which round is best."""
    selection = settings.selection.model_copy(update={"keep": "last", "patience": None})
    return settings.model_copy(update={"selection": selection})


def _shown(value: object) -> str:
    too_long = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST
    return "a number of more than 64 bits" if too_long else repr(value)[:200]


def _experiment(values: Mapping[str, Any]) -> Experiment:
    chosen: dict[str, Any] = {key: values[key] for key in ("method", "preset") if values[key]}
    if values["seed"] >= 0:
        chosen["seed"] = values["seed"]
    if values["num-server-rounds"] > 0:
        chosen["rounds"] = values["num-server-rounds"]
    overrides = _separated(values["set"])
    if values["collection"]:
        chosen["collection"] = {"by": values["collection"]}
    file = Path(values["settings"]) if values["settings"] else None
    defaults = default_choice(chosen, file, overrides, tune=True) if values["tune"] else {}

    def resolved(*more: str) -> Experiment:
        return experiment(chosen, file=file, overrides=[*overrides, *ALWAYS, *more], defaults=defaults)

    settings = _without_join(values, _with_secure_sums(values, resolved), resolved)
    if settings.text.encoder is not None:
        raise ConfigError("parties do not read an encoder that the server names; use text.kind=hashing", "text.encoder")
    if settings.encoder.frozen:
        settings = _with_digest(settings)
    if settings.method not in METHODS:
        raise ConfigError(f"{settings.method} is centralised: it has no parties", "method")
    if settings.privacy.mechanism == "gradients":
        raise ConfigError('needs the label sets in every step, which the server does not keep; use "counts"', "privacy")
    if settings.privacy.covers_records and not settings.secure_sums.on:
        raise ConfigError(
            f"{settings.privacy.mechanism} with real parties needs secure sums: each party adds a share of the noise, "
            f"which alone is too little. Use --parties {LEAST_PARTIES} or more, and leave out --no-secure-sums",
            "privacy.mechanism",
        )
    if settings.privacy.covers_records and settings.privacy.noise_dropouts >= values["num-parties"]:
        raise ConfigError(
            f"{values['num-parties']} parties share the noise (--parties): use less than that", "privacy.noise_dropouts"
        )
    if _sets(values, "selection.validation"):
        raise ConfigError("the server has no records; parties hold out --held-out-share", "selection.validation")
    for field in ("key", "correlations"):
        if getattr(settings.collection, field) is not None:
            raise ConfigError(
                "has no use here: the parties have the key, the server collects from them", f"collection.{field}"
            )
    return settings


def _with_digest(settings: Experiment) -> Experiment:
    """Return the settings with the digest of the frozen weights, by which parties check their own."""
    digest = joint_digest([digest_of(find_weights(source)) for source in settings.encoder.sources])
    return settings.model_copy(update={"encoder": settings.encoder.model_copy(update={"weights": digest})})


def _with_secure_sums(values: Mapping[str, Any], resolved: Callable[..., Experiment]) -> Experiment:
    """Return the settings, with secure sums where they fit unless someone said otherwise ("auto")."""
    asked = values["secure-sums"]
    if asked not in ("auto", "on", "off"):
        raise ConfigError(f"should be auto, on or off, and is {asked[:40]!r}", "secure-sums")
    if asked == "off":
        return resolved("secure_sums.on=false")
    if asked == "on" and values["num-parties"] < LEAST_PARTIES:
        raise ConfigError(f"a sum shows single parties unless there are {LEAST_PARTIES} (--parties)", "secure-sums")
    try:
        plain = resolved() if asked == "auto" else None
    except NeedsSecureSums:
        if values["num-parties"] < LEAST_PARTIES:
            raise
        plain = None
    if plain is not None and (_says(values, "secure_sums.on") or values["num-parties"] < LEAST_PARTIES):
        return plain
    try:
        return resolved("secure_sums.on=true")
    except ConfigError as error:
        if plain is None or not str(error).startswith("secure_sums.on"):
            raise
        return plain


def _without_join(values: Mapping[str, Any], settings: Experiment, resolved: Callable[..., Experiment]) -> Experiment:
    """Return the settings with label counts by masked sums, where they fit unless someone said otherwise: with the join
    the server has all label sets, of held-out records too, and could tell a party false sizes of its own."""
    if values["collection"] or not settings.secure_sums.on or _says(values, "collection.by"):
        return settings
    could_rank = settings.clients != "parties" or settings.client.set_size == "exact"
    if not (settings.needs_counts or could_rank):
        return settings
    try:
        return resolved("secure_sums.on=true", 'collection.by="sums"')
    except ConfigError:
        return settings


def _says(values: Mapping[str, Any], setting: str) -> bool:
    """Return whether the settings that the user gives name this one."""
    if _sets(values, setting):
        return True
    table = tomllib.loads(Path(values["settings"]).read_text(encoding="utf-8")) if values["settings"] else {}
    section, _, name = setting.partition(".")
    return name in table.get(section, {})


def _sets(values: Mapping[str, Any], setting: str) -> bool:
    return any(part.partition("=")[0].strip() == setting for part in _separated(values["set"]))


def _separated(overrides: str) -> list[str]:
    """Return the overrides: one per line, as `fedalc deploy run` writes them. A text without a line break, as users
    write it for `flwr run`, is split at every `;`; with a line break, a `;` belongs to the value.

    >>> _separated("seed=1; rounds=5"), _separated('name="a;b"\\n')
    (['seed=1', 'rounds=5'], ['name="a;b"'])
    """
    return [part.strip() for part in overrides.split("\n" if "\n" in overrides else ";") if part.strip()]


def _at_least(values: Mapping[str, Any], limits: Mapping[str, float]) -> None:
    for key, limit in limits.items():
        if not limit <= values[key] < float("inf"):
            raise ConfigError(f"should be at least {limit}, and is {values[key]}", key)
