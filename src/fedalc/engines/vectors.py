"""Tensors as one vector of real numbers, as a secure sum takes them, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


def flattened(tensors: Iterable[Tensor], *more: float) -> np.ndarray:
    """Return all numbers in double precision, the single ones last."""
    parts = [tensor.detach().to_dense().double().reshape(-1).cpu() for tensor in tensors]
    return torch.cat([*parts, torch.tensor(more, dtype=torch.float64)]).numpy()


def unflattened(numbers: np.ndarray, like: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
    """Return tensors of these shapes and dtypes, and the single numbers behind them.

    >>> unflattened(np.arange(5.0), [torch.zeros(2, 2)])
    ([tensor([[0., 1.],
            [2., 3.]])], [4.0])
    """
    tensors, start = [], 0
    for tensor in like:
        end = start + math.prod(tensor.shape)
        tensors.append(torch.from_numpy(numbers[start:end]).reshape(tensor.shape).to(tensor))
        start = end
    return tensors, numbers[start:].tolist()


def half_of(symmetric: Tensor) -> Tensor:
    """Return the upper half of a symmetric matrix, row by row."""
    return symmetric[torch.triu_indices(*symmetric.shape).unbind()]


def whole_of(half: Tensor, size: int) -> Tensor:
    matrix = half.new_zeros(size, size)
    matrix[torch.triu_indices(size, size).unbind()] = half
    return matrix + matrix.triu(1).T
