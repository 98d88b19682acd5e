"""Engines: where and how a round's work is done. Each runs the same method objects; tests hold them equal."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.engines.base import Engine, RoundResult
from fedalc.engines.by_party import PartyByParty
from fedalc.engines.fused import FusedEngine
from fedalc.engines.per_client import ClientsEngine
from fedalc.errors import ConfigError
from fedalc.methods import Method

ENGINES: dict[str, type[ClientsEngine] | type[FusedEngine]] = {"clients": ClientsEngine, "fused": FusedEngine}


def make_engine(settings: Experiment, federation: Federation, method: Method) -> Engine:
    """An engine that has all clients in this process."""
    if settings.engine not in ENGINES:
        raise ConfigError("its clients are parties of their own: start it with `fedalc deploy run`", "engine")
    engine = ENGINES[settings.engine](federation, method, settings)
    if settings.server.aggregation == "mean":
        return engine
    return PartyByParty(engine, federation, method, settings)


__all__ = ["ENGINES", "Engine", "RoundResult", "make_engine"]
