"""What a server may ask of a party: of its machine, and of how few instances."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedalc.data.images import CHANNELS
from fedalc.encoders import ImageEncoder
from fedalc.engines.flower.records import BadMessage

FEWEST = 8
"""Instances of a label that a sample draws, and leaves out, on average."""


def sample_problem(counts: np.ndarray, sample: float) -> str:
    """Why no party answers with such a sample of labels with so many instances each, or nothing.

    A few instances' gradient tells too much of each; and what a sample leaves out is what two answers differ by.

    >>> sample_problem(np.array([320, 0, 500]), 0.025)
    ''
    """
    few = int(counts[counts > 0].min(initial=np.iinfo(np.int64).max))
    if sample == 1 or min(sample, 1 - sample) * few >= FEWEST:
        return ""
    least = math.ceil(1000 * FEWEST / few) / 1000
    instead = f"{least:g} to {1 - least:g}, or 1" if least <= 0.5 else "1"
    return (
        f"client.sample = {sample:g} draws, or leaves out, fewer than {FEWEST} of a label's {few} instances on "
        f"average, and no party answers for so few; use {instead}"
    )


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
