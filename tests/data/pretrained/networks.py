"""Tiny networks with random weights, as files and folders, and pictures for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedalc.data.images.images import Images

SIDE = 32


def pictures(count: int = 5, side: int = SIDE, seed: int = 0) -> Images:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return Images(pixels, [f"{row}.png" for row in range(count)])


def save_resnet(folder: Path, seed: int = 0, **prepared: Any) -> Any:
    """Save a ResNet of 8 outputs. `prepared`: the content of preprocessor_config.json."""
    from transformers import ResNetConfig, ResNetModel

    shape = {"hidden_sizes": [4, 8], "depths": [1, 1], "embedding_size": 4, "layer_type": "basic"}
    return _saved(folder, ResNetModel, ResNetConfig(**shape), seed, prepared)


def save_vit(folder: Path, seed: int = 0, **prepared: Any) -> Any:
    """Save a ViT of 8 outputs, without a pooler, as DINO's are."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**_tower())
    return _saved(folder, lambda config: ViTModel(config, add_pooling_layer=False), config, seed, prepared)


def save_clip(folder: Path, seed: int = 0) -> Any:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(text_config=_tower() | {"vocab_size": 9}, vision_config=_tower(), projection_dim=4)
    return _saved(folder, CLIPModel, config, seed, {})


def _tower() -> dict[str, Any]:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return sizes | {"image_size": SIDE, "patch_size": 16}


def _saved(folder: Path, kind: Any, config: Any, seed: int, prepared: dict[str, Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    model.save_pretrained(folder)
    if prepared:
        (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return model.eval()
