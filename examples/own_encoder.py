"""An encoder of your own: any torch.nn.Module. Half a minute.

The encoder maps a record to D numbers. Its weights are the start of the training, here those of an untrained network.
"""

from __future__ import annotations

import torch
from torch import nn

import fedalc

data = fedalc.load_dataset("demo")
torch.manual_seed(0)


class Gated(nn.Module):
    """Two linear maps, one of which switches the other. Limits for networks: docs/extending.md."""

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(features, dim), nn.Linear(features, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(x) * torch.sigmoid(self.gate(x))


class StopWhenGoodEnough(fedalc.Callback):
    """End the training once validation reaches 80 %."""

    def evaluated(self, record: dict) -> None:
        self.stop = record["metrics"].get("validation P@1", 0) > 80


run = fedalc.train(
    data, method="fedalc-fixed", encoder=Gated(data.feature_count, 64), rounds=30, callbacks=[StopWhenGoodEnough()]
)
print(run)
for record in run.records:
    if record["metrics"]:  # a refit has no validation data
        print(f"round {record['round']}: P@1 {record['metrics']['validation P@1']:.1f} % on validation data")
