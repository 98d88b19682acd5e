"""Oracles: centralised methods that see all data, as a reference for the federated ones.

Their names are in `fedalc.core.registry`."""

from __future__ import annotations

from fedalc.oracles.base import Oracle, OracleScorer, TrainedOracle

__all__ = ["Oracle", "OracleScorer", "TrainedOracle"]
