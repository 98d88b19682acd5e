"""What the settings ask of the search for neighbouring classes, and whether it is affordable."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.core.nearest import AFFORDABLE, Search, operations, takes_index
from fedalc.errors import ConfigError


def searched(settings: Experiment, labels: int) -> tuple[int, Search, str] | None:
    """(rows, how, section): for how many rows the server's step looks for neighbours among all classes, and where the
    settings say how. None where it looks for none, or among a sample."""
    own = settings.regularizer
    if settings.method in ("fedaws", "fedalc") and own.form == "mined":
        if own.candidates is not None and own.candidates < labels:
            return None
        rows = labels if own.rows == "all" else max(1, round(settings.server.participation * labels))
        private = settings.privacy.mechanism == "gradients"  # norms and gradient have to be of the same neighbours
        return rows, "exact" if private else own.search, "regularizer"
    if settings.method == "fedalc-fixed" and settings.fixed.form == "mined":
        return labels, "exact" if settings.privacy.mechanism == "gradients" else settings.fixed.search, "fixed"
    return None


def check_affordable(settings: Experiment, labels: int) -> None:
    """Refuses, before anything is begun, a search for which there is no index, and all pairs of very many classes."""
    if asked := searched(settings, labels):
        rows, search, section = asked
        takes_index(search, rows, labels, settings.encoder.dim, section)
    for section, own, methods in (
        ("regularizer", settings.regularizer, ("fedaws", "fedalc")),
        ("fixed", settings.fixed, ("fedalc-fixed",)),
    ):
        cost = operations(labels, labels, settings.encoder.dim)
        if settings.method in methods and own.form == "full" and own.search != "exact" and cost > AFFORDABLE:
            raise ConfigError(
                f"all pairs of {labels:,} classes take {cost:.1e} operations in every step, more than "
                f'{AFFORDABLE:.0e}; use mined, or {section}.search = "exact" and wait',
                f"{section}.form",
            )
