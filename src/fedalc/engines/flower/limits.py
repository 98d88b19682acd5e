"""What a server may ask of a party's machine."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from fedalc.data.images import CHANNELS
from fedalc.encoders import ImageEncoder
from fedalc.engines.flower.records import BadMessage


def check_memory(needed: int) -> None:
    """At most half of it: there are others on this machine."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * needed > has:
        raise BadMessage(f"asks for work that takes {needed / 1e9:.3g} GB, too much for this machine")


@torch.no_grad()
def picture_bytes(encoder: nn.Module, size: int) -> int:
    """What one picture leaves in memory on its way through an encoder that has none itself: its layers' outputs, which
    the way back needs. Without an encoder of pictures: nothing."""
    total = 0

    def count(_layer: Any, _given: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * output.element_size()

    for part in encoder.modules():
        if not isinstance(part, ImageEncoder):
            continue
        layers = [layer for layer in part.backbone.modules() if not list(layer.children())]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        part.backbone(torch.zeros(1, CHANNELS, size, size, dtype=part.head.weight.dtype, device="meta"))
        for hook in hooks:
            hook.remove()
    return total
