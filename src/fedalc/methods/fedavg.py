"""Federated averaging (McMahan et al., 2017) with only the positive loss. If clients train their rows, W collapses."""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.methods.base import Method


class FedAvg(Method):
    """Rows start spread out, clients train them, and the server only averages. Nothing keeps the rows apart."""

    help = "plain averaging; all class embeddings end up the same"
    use_when = "To see the collapse that the other methods prevent"
    colour = "#D55E00"  # vermillion
    trains_rows = True
    shards_rows = True

    def server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        return W


class FedAvgFixed(FedAvg):
    """W is drawn once and never changes; only the encoder learns."""

    help = "averaging with random class embeddings that never change"
    use_when = "To see what random class embeddings alone achieve: often as much as trained ones"
    colour = "#E69F00"  # orange
    trains_rows = False
