"""Federated averaging (McMahan et al., 2017) with the positive loss alone. With trained rows it collapses."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedalc.methods.base import Method


class FedAvg(Method):
    """Owners train their rows from a spread-out start; the server only averages. Nothing keeps the rows apart."""

    trains_rows: ClassVar[bool] = True

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        return W


class FedAvgFixed(FedAvg):
    """W is drawn once and never changes; only the encoder learns."""

    trains_rows: ClassVar[bool] = False
