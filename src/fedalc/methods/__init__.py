"""The methods, by name. Each file reads like its paper's pseudo-code."""

from __future__ import annotations

from fedalc.config.experiment import Experiment
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.methods.base import Method, Told
from fedalc.methods.fedalc import FedALC, FedALCFixed
from fedalc.methods.fedalc_exact import FedALCExact
from fedalc.methods.fedalc_oneshot import FedALCOneshot
from fedalc.methods.fedavg import FedAvg, FedAvgFixed
from fedalc.methods.fedaws import FedAwS
from fedalc.methods.fedmlh import FedMLH
from fedalc.methods.flag import FLAG

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg-fixed": FedAvgFixed,
    "flag": FLAG,
    "fedmlh": FedMLH,
    "fedaws": FedAwS,
    "fedalc": FedALC,
    "fedalc-fixed": FedALCFixed,
    "fedalc-exact": FedALCExact,
    "fedalc-oneshot": FedALCOneshot,
}


def make_method(
    settings: Experiment, label_count: int, knowledge: LabelKnowledge | None = None, told: Told | None = None
) -> Method:
    """`knowledge` is for the methods that want it, at the server; the others never see labels."""
    return METHODS[settings.method](settings, label_count, knowledge, told)


__all__ = ["METHODS", "Method", "Told", "make_method"]
