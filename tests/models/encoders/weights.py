"""Write a folder of pretrained weights, of an untrained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedalc.models.encoders.image import ResNetSmall


def save_resnet(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 3, **changes: Any) -> Any:
    """Save a resnet-small as the library does, with random scales, shifts and statistics, and return it."""
    from transformers import ResNetConfig, ResNetModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNetModel(ResNetConfig(**{**ResNetSmall.shape, **changes}))
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                for tensor in (module.weight.data, module.running_var):
                    assert tensor is not None
                    tensor.uniform_(0.5, 1.5)
                for tensor in (module.bias.data, module.running_mean):
                    assert tensor is not None
                    tensor.normal_(0, 0.2)
    model.to(dtype).save_pretrained(folder)
    return model.eval()
