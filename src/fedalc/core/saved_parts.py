"""Read parts of a saved model and check them: its files may be damaged or come from others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

DAMAGE = (KeyError, ValueError, IndexError, RuntimeError, AttributeError, TypeError, OverflowError, MemoryError)
"""The errors that are raised when saved parts do not fit together."""


def labels_of(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the label names, and which labels had a client."""
    import torch

    names, held = facts["labels"], tensors["held"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its label names are not a list of strings")
    if held.dtype != torch.bool or held.shape != (len(names),):
        raise ValueError(f"{len(names)} labels, but 'held' is {tuple(held.shape)} of {held.dtype}")
    return tuple(names), held.numpy()


def numbers(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> Tensor:
    """Return a tensor of finite floating-point numbers."""
    import torch

    tensor = tensors[name]
    if tensor.dtype not in (torch.float32, torch.float64) or tensor.ndim != dimensions:
        raise ValueError(f"{name}: {tensor.ndim} dimensions of {tensor.dtype}")
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name}: numbers that are not finite")
    return tensor


def places(tensors: Mapping[str, Tensor], name: str, end: int) -> Tensor:
    """Return a one-dimensional tensor of whole numbers from 0 to end - 1."""
    import torch

    tensor = tensors[name]
    if tensor.dtype != torch.int64 or tensor.ndim != 1:
        raise ValueError(f"{name}: {tensor.ndim} dimensions of {tensor.dtype}")
    if len(tensor) and not 0 <= int(tensor.min()) <= int(tensor.max()) < end:
        raise ValueError(f"{name}: not between 0 and {end - 1}")
    return tensor
