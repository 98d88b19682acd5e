"""Engines run the clients of a round. All engines run the same method objects, and tests hold their results equal."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.data.federation import Federation
from fedalc.engines.base import Engine, RoundResult
from fedalc.engines.by_party import PartyByParty
from fedalc.engines.fused import FusedEngine
from fedalc.engines.lockstep import LockstepEngine
from fedalc.engines.per_client import ClientsEngine
from fedalc.engines.secure import SecureSums
from fedalc.errors import ConfigError
from fedalc.methods import Method

ENGINES: dict[str, type[ClientsEngine] | type[FusedEngine]] = {
    "fused": FusedEngine,
    "lockstep": LockstepEngine,
    "clients": ClientsEngine,
}


def make_engine(settings: Experiment, federation: Federation, method: Method) -> Engine:
    """Build the engine of the settings, with all clients in this process."""
    if settings.engine not in ENGINES:
        raise ConfigError("flower runs with real parties: start it with `fedalc deploy run`", "engine")
    engine = ENGINES[settings.engine](federation, method, settings)
    if settings.secure_sums.on:
        return SecureSums(engine, federation, method, settings)
    if settings.server.aggregation == "mean" and not settings.compresses:
        return engine
    return PartyByParty(engine, federation, method, settings)


__all__ = ["ENGINES", "Engine", "RoundResult", "make_engine"]
