"""Oracles: centralised methods that see all data, as a reference for the federated ones.

Their names are in `fedalc.core.registry`."""

from __future__ import annotations

from typing import Any

from fedalc.errors import ConfigError
from fedalc.oracles.base import Oracle, OracleScorer, TrainedOracle


def check_oracle_class(oracle: Any) -> type[Oracle]:
    if not (isinstance(oracle, type) and issubclass(oracle, Oracle)):
        raise ConfigError(f"{oracle!r:.60} is not an oracle: it must be a class that extends Oracle")
    return oracle


__all__ = ["Oracle", "OracleScorer", "TrainedOracle"]
