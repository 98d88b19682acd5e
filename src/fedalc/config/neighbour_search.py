"""What the settings ask of the search for neighbouring classes, and whether it is affordable."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.config.facts import method_facts
from fedalc.config.schema import FixedSettings, RegularizerSettings
from fedalc.core.nearest import AFFORDABLE, Search, operations, takes_index
from fedalc.errors import ConfigError


def searched(settings: Experiment, labels: int) -> tuple[int, Search, str] | None:
    """Return (rows, search, section): for how many rows the server's step looks for neighbours among all classes, and
    how, as this section of the settings says. None if it looks for none, or among a sample."""
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
    private = settings.privacy.mechanism == "gradients"  # norms and gradient have to be of the same neighbours
    return rows, "exact" if private else compared.search, section


def check_affordable(settings: Experiment, labels: int) -> None:
    """Refuse a search that needs an index which is not installed, and all pairs of very many classes."""
    if found := searched(settings, labels):
        rows, search, section = found
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
