"""What the one-round baselines `fedncm` and `fed3r` share: an axis per label, so column u of θ is label u's own."""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.errors import ConfigError
from fedalc.methods.fedavg import FedAvgFixed


class AxisPerLabel(FedAvgFixed):
    """W is the identity, so the score of label u is xᵀθ_u. Clients know only their own records: no label sets, no m.

    An instance with m labels is on m clients, and each counts it once.
    """

    one_round = True
    axis_per_label = True
    shards_rows = False
    ignores = {"encoder.dim": {"engine": ("flower",)}, "embeddings.start": {}}
    defaults = {
        "rounds": 1,
        "encoder": {"name": "linear", "start": "zero", "features": "unit"},
        "client": {"loss": "square", "set_size": "ignored"},
        "server": {"weights": "samples", "weight_decay": 0.0},
        "selection": {"every": 1},
    }

    @classmethod
    def check(cls, settings: Experiment) -> None:
        if settings.encoder.is_image:
            raise ConfigError(f"{settings.method} is for a linear encoder; use fedalc-exact", "method")
        if settings.client.set_size != "ignored" or settings.client.label_power > 0:
            raise ConfigError(
                f'{settings.method} uses neither label sets nor counts: set_size = "ignored" and label_power = 0. '
                "fedalc-oneshot uses both",
                "client.set_size",
            )

    def start(self, generator: torch.Generator) -> Tensor:
        return torch.eye(self.label_count, self.settings.encoder.dim, dtype=getattr(torch, self.settings.dtype))


def unit_columns(theta: Tensor) -> Tensor:
    """Return the columns scaled to length 1. A column of zeros, of a label without a client, stays zero."""
    length = theta.norm(dim=0)
    return theta / length.where(length > 0, 1.0)
