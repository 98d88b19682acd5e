"""The oracles, by name: centralised methods that see all data in one place, to measure the federated ones against."""

from __future__ import annotations

from fedalc.oracles.base import Oracle, OracleScorer, TrainedOracle
from fedalc.oracles.one_vs_rest import OneVsRest
from fedalc.oracles.sleec import Sleec

ORACLES: dict[str, type[Oracle]] = {"sleec": Sleec, "ovr": OneVsRest}

__all__ = ["ORACLES", "Oracle", "OracleScorer", "TrainedOracle"]
