"""From noised sums to θ. All of this is post-processing: it costs no privacy, whatever it does.

B̃ is Σ x for each label with noise of deviation σ, and Ĝ what the noised second moments say about G = Σ x xᵀ. If
B = Gθ + residuals, where the residuals have covariance `ridge`·G and the entries of θ variance 1/PRIOR, the mean of θ
given B̃ is

    θ = Ĝ (Ĝ² + ridge·Ĝ + PRIOR σ²·I)⁻¹ B̃

Without noise this is ridge regression. With noise it leaves out directions in which the records are short, where B̃ is
nearly all noise; ridge regression would divide that noise by a small number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedalc.engines.traffic import Ledger

PRIOR = 8.0
"""1 / the variance of an entry of θ. Chosen on a part of Bibtex's train (docs/private-model.md)."""
FLOOR = 0.2  # a feature's second moment is at least this part of the mean over features


class Moments(Protocol):
    """What noised sums say about G."""

    def filtered(self, cross: Tensor, ridge: float, more: float) -> Tensor:
        """Return Ĝ (Ĝ² + ridge·Ĝ + more·I)⁻¹ B."""

    def __matmul__(self, theta: Tensor) -> Tensor:
        """Return Ĝ θ."""


class DiagonalMoments:
    """Ĝ = diag(Σ x∘x) + (Σ x)(Σ x)ᵀ/N: features are independent but for their common mean."""

    def __init__(self, squares: Tensor, totals: Tensor, records: float, deviation: float) -> None:
        self.diagonal = squares.clamp(min=FLOOR * max(squares.mean().item(), 1 / len(squares)))
        length = totals.square().sum().item()
        shrunk = max(0.0, 1 - len(totals) * deviation**2 / length) if length > 0 else 0.0  # James and Stein
        self.mean = shrunk * totals / math.sqrt(records)

    def __matmul__(self, theta: Tensor) -> Tensor:
        return self.diagonal.unsqueeze(1) * theta + torch.outer(self.mean, self.mean @ theta)

    def filtered(self, cross: Tensor, ridge: float, more: float) -> Tensor:
        """By Woodbury's formula: but for two directions, the matrix is diagonal."""
        d, v = self.diagonal, self.mean
        inverse = (1 / (d * d + ridge * d + more)).unsqueeze(1)
        if not v.any():
            return self @ (inverse * cross)
        span = torch.stack([v, d * v], dim=1)
        core = torch.tensor([[float(v @ v) + ridge, 1.0], [1.0, 0.0]], dtype=v.dtype)
        inner = torch.linalg.inv(core) + span.T @ (inverse * span)
        return self @ (inverse * (cross - span @ torch.linalg.solve(inner, span.T @ (inverse * cross))))


class FullMoments:
    """Ĝ from Σ x xᵀ with symmetric noise, whose eigenvalues reach up to ±2s, s = σ √(F/2).

    An eigenvalue above that belongs to a direction of the records; its size without noise follows from random matrix
    theory (g becomes g + s²/g). All others get the mean of what is left of the trace: they cannot be told apart.
    """

    def __init__(self, gram: Tensor, deviation: float) -> None:
        size = len(gram)
        values, self.basis = torch.linalg.eigh(gram)
        scale = deviation * math.sqrt(size / 2)
        trace, rest = max(values.sum().item(), 1.0), 0.0
        for _ in range(5):  # the level of the rest and the eigenvalues above it depend on each other
            above = values - rest
            clear = above > 2 * scale
            true = rest + (above + (above.square() - 4 * scale**2).clamp(min=0).sqrt()) / 2
            others = int((~clear).sum())
            rest = max((trace - true[clear].sum().item()) / others, 1e-3 * trace / size) if others else 0.0
        self.values = torch.where(clear, true, torch.full_like(true, rest))

    def __matmul__(self, theta: Tensor) -> Tensor:
        return self.basis @ (self.values.unsqueeze(1) * (self.basis.T @ theta))

    def filtered(self, cross: Tensor, ridge: float, more: float) -> Tensor:
        g = self.values
        return self.basis @ ((g / (g * g + ridge * g + more)).unsqueeze(1) * (self.basis.T @ cross))


@dataclass(frozen=True)
class NoisedSums:
    """Like `Sums`, but all of it noised: nothing here needs protection any more."""

    moments: DiagonalMoments | FullMoments
    by_label: Tensor  # B̃, columns of the design × labels
    W: Tensor
    deviation: float  # σ of B̃
    records: float
    traffic: Ledger

    @property
    def gram(self) -> Tensor:
        """Ĝ"""
        return self.moments @ torch.eye(len(self.by_label), dtype=self.by_label.dtype)

    @property
    def cross(self) -> Tensor:
        """B̃ W"""
        return self.by_label.to(self.W.device) @ self.W.to(self.by_label)

    @property
    def pairs(self) -> int:
        return max(1, round(self.records))

    def solve(self, ridge: float) -> Tensor:
        theta = self.moments.filtered(self.by_label, ridge, PRIOR * self.deviation**2)
        return theta.to(self.W) @ self.W

    def objective(self, theta: Tensor, ridge: float) -> float:
        """Return the objective without its constant, per record, as far as the noised sums tell."""
        theta = theta.to(self.by_label)
        quadratic = (theta * (self.moments @ theta)).sum() - 2 * (theta * self.cross).sum()
        return (quadratic.item() + ridge * theta.square().sum().item()) / self.records
