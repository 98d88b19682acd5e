"""L2-regularised logistic regressions of many labels on the same instances, solved together by Newton's method.

One product with the sparse features serves a block of labels, which is faster than solving label by label. Each label
has its own step lengths and stops when it has converged, so its result is the same as if solved separately.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_matrix, hstack
from torch import Tensor
from torch.nn.functional import softplus

from fedalc.core.sparse_products import WeightedBags

TOLERANCE = 0.01  # relative to the gradient at the start; a tenth of it takes half as long again
STEPS = 50  # Newton steps; ten are typical
INNER_TOLERANCE = 0.3  # relative to the gradient's length, in the preconditioner's norm
INNER_STEPS = 30  # conjugate gradient steps within one Newton step
_TINY = 1e-37  # positive in single precision too


class LogisticProblem:
    """Σ_j log(1 + e^m) - y m + λ/2 ‖v‖² for each label, m = xᵀv + b. The intercept b is not penalised."""

    def __init__(self, features: csr_matrix, dtype: torch.dtype = torch.float32) -> None:
        X = csr_matrix(hstack([features, csr_matrix(np.ones((features.shape[0], 1), dtype=features.dtype))]))
        self._X, self._Xt = (WeightedBags.from_csr(m, dtype, "cpu") for m in (X, X.T.tocsr()))
        self._squared = WeightedBags.from_csr(X.T.tocsr().power(2), dtype, "cpu")
        self.dtype = dtype
        self.instances, self.width = X.shape
        self.unconverged = 0  # labels that had not converged when the last `solve` ended

    def solve(
        self,
        Y: Tensor,
        penalty: float,
        start: Tensor | None = None,
        tolerance: float = TOLERANCE,
        check: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Return weights and, in the last row, intercepts (width × labels) for `Y` (instances × labels, 0 and 1).

        A label has converged when its gradient is at most `tolerance` times as long as at v = 0 with the intercept that
        fits the label's frequency. `unconverged` counts the labels that did not converge in `STEPS`. A label that all
        instances or no instances have gets that intercept and zero weights.
        """
        self.unconverged = 0
        Y = Y.to(self.dtype)
        count = Y.sum(0)
        neutral = torch.zeros(self.width, Y.shape[1], dtype=self.dtype)
        neutral[-1] = torch.log((count + 0.5) / (self.instances - count + 0.5))
        result = neutral.clone() if start is None else start.to(self.dtype, copy=True)
        varies = (count > 0) & (count < self.instances)
        result[:, ~varies] = neutral[:, ~varies]
        active = varies.nonzero().squeeze(1)
        if not len(active):
            return result
        ridge = torch.full((self.width, 1), penalty, dtype=self.dtype)
        ridge[-1] = 0
        first = torch.sigmoid(self._X @ neutral[:, active].contiguous()) - Y[:, active]
        enough = tolerance * (self._Xt @ first).norm(dim=0)
        V, y = result[:, active].contiguous(), Y[:, active].contiguous()
        margin = self._X @ V
        for number in range(STEPS + 1):
            check()
            p = torch.sigmoid(margin)
            gradient = self._Xt @ (p - y).contiguous() + ridge * V
            going = gradient.norm(dim=0) > enough
            if not going.all():
                result[:, active[~going]] = V[:, ~going]
                active, enough = active[going], enough[going]
                V, y, margin, p, gradient = (t[:, going].contiguous() for t in (V, y, margin, p, gradient))
            if not len(active) or number == STEPS:
                break
            step = self._newton_step(gradient, p * (1 - p), ridge)
            along = self._X @ step
            length = _line_search(V, step, margin, along, y, ridge, gradient)
            V, margin = V + length * step, margin + length * along
        result[:, active] = V
        self.unconverged = len(active)
        return result

    def _newton_step(self, gradient: Tensor, curvature: Tensor, ridge: Tensor) -> Tensor:
        """Approximate -H⁻¹∇ by conjugate gradients, preconditioned by the diagonal of H. More exact for smaller ∇."""
        diagonal = (self._squared @ curvature).add_(ridge).clamp_(min=1e-12)
        step, r = torch.zeros_like(gradient), -gradient
        z = r / diagonal
        d, rz = z, (r * z).sum(0)
        enough = INNER_TOLERANCE**2 * rz  # rz is a squared length
        for _ in range(INNER_STEPS):
            Hd = self._Xt @ (curvature * (self._X @ d)) + ridge * d
            going = (rz > enough) & (rz > 0)
            length = torch.where(going, rz / (d * Hd).sum(0).clamp(min=_TINY), 0)
            step, r = step + length * d, r - length * Hd
            z = r / diagonal
            before, rz = rz, torch.where(going, (r * z).sum(0), rz)
            if not ((rz > enough) & (rz > 0)).any():
                break
            d = z + torch.where(going, rz / before.clamp(min=_TINY), 0) * d
        return step


def _line_search(
    V: Tensor, step: Tensor, margin: Tensor, along: Tensor, y: Tensor, ridge: Tensor, gradient: Tensor
) -> Tensor:
    """Return for each label the first step length of 1, ½, ¼, … that lowers its objective enough (Armijo)."""

    def objective(length: Tensor) -> Tensor:
        m, v = margin + length * along, V + length * step
        return (softplus(m) - y * m).sum(0) + 0.5 * (ridge * v * v).sum(0)

    length = torch.ones(V.shape[1], dtype=V.dtype)
    now, slope = objective(torch.zeros_like(length)), (gradient * step).sum(0)
    slack = 4 * torch.finfo(V.dtype).eps * now.abs()  # at the solution, rounding hides the change
    for _ in range(30):
        enough = objective(length) <= now + 1e-4 * length * slope + slack
        if enough.all():
            break
        length = torch.where(enough, length, length / 2)
    return length
