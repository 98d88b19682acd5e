"""The search for neighbouring classes that the settings request, and whether it is affordable."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.config.facts import method_facts
from fedalc.config.schema import FixedSettings, RegularizerSettings
from fedalc.core.nearest import AFFORDABLE, Search, operations, takes_index
from fedalc.errors import ConfigError


def searched(settings: Experiment, labels: int) -> tuple[int, Search, str] | None:
    """Return (number of rows that the server's step searches neighbours for among all classes, how it searches, the
    section of settings that says so). None if it does not search, or only among a sample of the classes."""
    section = method_facts(settings.method).compares_classes
    compared: RegularizerSettings | FixedSettings | None = None if section is None else getattr(settings, section)
    if section is None or compared is None or compared.form != "mined":
        return None
    rows = labels
    if isinstance(compared, RegularizerSettings):
        if compared.candidates is not None and compared.candidates < labels:
            return None
        if compared.rows == "participants":
            rows = max(1, round(settings.server.participation * labels))
    private = settings.privacy.mechanism == "gradients"  # norms and gradient need the same neighbours
    return rows, "exact" if private else compared.search, section


def check_affordable(settings: Experiment, labels: int) -> None:
    """Refuse a search that needs an index that is not installed, and all pairs of too many classes."""
    if request := searched(settings, labels):
        rows, search, section = request
        takes_index(search, rows, labels, settings.encoder.dim, section)
    compared = method_facts(settings.method).compares_classes
    if compared is None or getattr(settings, compared).form != "full" or getattr(settings, compared).search == "exact":
        return
    cost = operations(labels, labels, settings.encoder.dim)
    if cost > AFFORDABLE:
        raise ConfigError(
            f"all pairs of {labels:,} classes take {cost:.1e} operations in every step, more than {AFFORDABLE:.0e}; "
            f'use mined, or {compared}.search = "exact" and wait',
            f"{compared}.form",
        )
