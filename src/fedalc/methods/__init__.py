"""The methods, by name. Each file reads like its paper's pseudo-code."""

from __future__ import annotations

from fedalc.config import Experiment
from fedalc.correlations import Correlations
from fedalc.methods.base import Method
from fedalc.methods.fedalc import FedALC, FedALCFixed
from fedalc.methods.fedavg import FedAvg, FedAvgFixed
from fedalc.methods.fedaws import FedAwS

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg-fixed": FedAvgFixed,
    "fedaws": FedAwS,
    "fedalc": FedALC,
    "fedalc-fixed": FedALCFixed,
}


def make_method(settings: Experiment, correlations: Correlations) -> Method:
    return METHODS[settings.method](settings, correlations)


__all__ = ["METHODS", "Method", "make_method"]
