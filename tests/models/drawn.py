"""Models that are drawn, not trained: for tests of what is done with a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedalc.config.schema import EncoderSettings
from fedalc.models.encoders import make_encoder
from fedalc.models.model import Model
from fedalc.models.trained import TrainedModel

FEATURES, LABELS, SIDE = 30, 9, 32


def make_model(copies: int = 1, axes: bool = False, feature_count: int = FEATURES, **settings: Any) -> TrainedModel:
    """Draw a model. Two labels have no client."""
    encoder = EncoderSettings.model_validate({"dim": LABELS if axes else 6, **settings})
    generator = torch.Generator().manual_seed(5)
    count = 3 * SIDE**2 if encoder.is_image else feature_count
    network = make_encoder(count, encoder, generator, copies)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=generator))
    width = encoder.dim * copies
    W = torch.diag(torch.rand(LABELS, generator=generator)) if axes else torch.randn(LABELS, width, generator=generator)
    held = np.arange(LABELS) % 4 != 3
    return TrainedModel(Model(network, W), encoder, tuple(f"label {i}, ä" for i in range(LABELS)), held)
