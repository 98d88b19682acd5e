"""The methods, by name. Each file reads like its paper's pseudo-code."""

from __future__ import annotations

from fedalc.config import Experiment
from fedalc.correlations import Correlations
from fedalc.methods.base import Method
from fedalc.methods.fedalc import FedALC, FedALCFixed, UsesLabels
from fedalc.methods.fedavg import FedAvg, FedAvgFixed
from fedalc.methods.fedaws import FedAwS
from fedalc.privacy import PrivateLabelSets

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg-fixed": FedAvgFixed,
    "fedaws": FedAwS,
    "fedalc": FedALC,
    "fedalc-fixed": FedALCFixed,
}


def make_method(
    settings: Experiment, label_count: int, labels: Correlations | PrivateLabelSets | None = None
) -> Method:
    """`labels` is for the methods that learn from correlations; the others never see them."""
    method = METHODS[settings.method]
    if issubclass(method, UsesLabels):
        assert labels is not None
        return method(settings, label_count, labels)
    return method(settings, label_count)


__all__ = ["METHODS", "Method", "UsesLabels", "make_method"]
