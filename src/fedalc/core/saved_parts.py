"""Parts of a saved model, checked as they are read: its files may have been damaged, or made by others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

DAMAGE = (KeyError, ValueError, IndexError, RuntimeError, AttributeError, TypeError, OverflowError, MemoryError)
"""What putting parts together raises where they do not fit."""


def labels_of(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """The labels' names, and which of them are held, of any saved model."""
    names, held = facts["labels"], tensors["held"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its labels' names are not a list of texts")
    if held.dtype != torch.bool or held.shape != (len(names),):
        raise ValueError(f"{len(names)} labels, and marks of {tuple(held.shape)} {held.dtype} for who is held")
    return tuple(names), held.numpy()


def numbers(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> Tensor:
    """A tensor of fractions, all of them finite."""
    found = tensors[name]
    if found.dtype not in (torch.float32, torch.float64) or found.ndim != dimensions:
        raise ValueError(f"{name}: {found.ndim} dimensions of {found.dtype}")
    if not torch.isfinite(found).all():
        raise ValueError(f"{name}: numbers that are not finite")
    return found


def places(tensors: Mapping[str, Tensor], name: str, end: int) -> Tensor:
    """A list of whole numbers from 0 on, all below `end`."""
    found = tensors[name]
    if found.dtype != torch.int64 or found.ndim != 1:
        raise ValueError(f"{name}: {found.ndim} dimensions of {found.dtype}")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < end:
        raise ValueError(f"{name}: not between 0 and {end - 1}")
    return found
