"""The cost of a pair of classes as a function of their cosine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Potential = Callable[[Tensor], tuple[Tensor, Tensor]]  # cosine → (φ, φ')


def repel_within(margin: float | Tensor) -> Potential:
    """φ = max(0, ν - d)², d = 1 - s: pushes pairs apart that are nearer than the margin."""

    def potential(s: Tensor) -> tuple[Tensor, Tensor]:
        gap = (s + (margin - 1.0)).clamp(min=0)
        return gap.square(), 2 * gap

    return potential


def repel(s: Tensor) -> tuple[Tensor, Tensor]:
    """φ = -d²: pushes pairs apart at any distance."""
    d = 1 - s
    return -d.square(), 2 * d


def attract(s: Tensor) -> tuple[Tensor, Tensor]:
    """φ = d²: pulls pairs together."""
    d = 1 - s
    return d.square(), -2 * d
