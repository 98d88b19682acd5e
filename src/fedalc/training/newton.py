"""Newton steps for a convex objective, solved by conjugate gradients. One gradient from the clients per round.

A Newton step d minimises the quadratic model gᵀd + ½ dᵀHd at θ. Conjugate gradients need products H p, and those follow
from gradients: H p ≈ (∇(θ + εp) - ∇(θ)) / ε. So a round asks for the gradient at θ, or at θ + εp, and clients do the same
work in both. If each label has an axis of its own, the objective is a sum over the columns of θ, and every column takes
its own steps, as if it were solved alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.config.schema import ServerSettings

ENOUGH = 1e-4  # ends a step: the squared length of the residual, beside that of the gradient
PROBE = 0.1  # the longest probe εp, beside the length of θ


class NewtonCG:
    """`columns`: whether the columns of θ are independent. Memory: θ seven times."""

    def __init__(
        self, theta: list[Tensor], settings: ServerSettings, pairs: int, client_rate: float, columns: bool
    ) -> None:
        (self.theta,) = theta  # one matrix: the linear encoder's
        self.penalty = settings.ridge / pairs  # the objective is a mean over (instance, label) pairs, not a sum
        self.client_rate = client_rate
        self.columns = columns
        self.steps = settings.newton_rounds
        self._state: dict[str, Tensor] = {}

    @torch.no_grad()
    def aim(self) -> None:
        """Move θ to where the clients compute the gradient. Between rounds θ is the best point so far."""
        if "direction" in self._state:
            self.theta.copy_(self._state["base"] + self._epsilon() * self._state["direction"])

    @torch.no_grad()
    def apply(self, change: list[Tensor], loss: float) -> float:
        """Take a step. Return the objective, penalty included; within a Newton step, that of the quadratic model."""
        gradient = change[0] / self.client_rate + 2 * self.penalty * self.theta
        if "direction" in self._state:
            return self._curve(gradient)
        objective = loss + self.penalty * self.theta.double().square().sum().item()
        return self._begin(gradient, objective)

    def _begin(self, gradient: Tensor, objective: float) -> float:
        """Begin a Newton step at θ, or halve the last one if it went uphill."""
        s = self._state
        if s and objective > s["objective"].item() * (1 + 1e-6):
            s["step"].mul_(0.5)
            self.theta.copy_(s["base"] + s["step"])
            return s["objective"].item()
        last = s.get("step", torch.zeros_like(self.theta))
        self._state = {
            "base": self.theta.detach().clone(),
            "gradient": gradient,
            "objective": torch.tensor(objective, dtype=torch.float64),
            "residual": -gradient,
            "direction": -gradient,
            "step": torch.zeros_like(gradient),
            "reach": self._length(last),
            "done": torch.tensor(0),
        }
        return objective

    def _curve(self, gradient: Tensor) -> float:
        """Take one step of conjugate gradients, and end the Newton step if it is solved well enough."""
        s = self._state
        direction, residual = s["direction"], s["residual"]
        curved = (gradient - s["gradient"]) / self._epsilon()
        before, curvature = self._dot(residual, residual), self._dot(direction, curved)
        moves = (before > 0) & (curvature > 0)
        length = torch.where(moves, before / curvature.where(moves, 1), 0)
        s["step"] += length * direction
        residual -= length * curved
        after = self._dot(residual, residual)
        s["direction"] = residual + torch.where(moves, after / before.where(moves, 1), 0) * direction
        s["done"] += 1
        self.theta.copy_(s["base"] + s["step"])
        model = s["objective"].item() + 0.5 * (s["step"].double() * (s["gradient"] - residual).double()).sum().item()
        first = s["gradient"].double().square().sum()
        if s["done"] >= self.steps or residual.double().square().sum() <= ENOUGH * first:
            self._state = {name: s[name] for name in ("base", "objective", "step")}
        return model

    def _epsilon(self) -> Tensor:
        """The ε of a probe: as long as the last Newton step, within bounds that rounding and θ's length set."""
        s = self._state
        base = self._length(s["base"])
        longest = PROBE * base.where(base > 0, 1)
        shortest = longest * (1e-2 if self.theta.dtype == torch.float32 else 1e-5)
        reach = torch.minimum(torch.maximum(s["reach"].where(s["reach"] > 0, longest), shortest), longest)
        length = self._length(s["direction"])
        return torch.where(length > 0, reach / length.where(length > 0, 1), 1)

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product, of each column or of the whole matrices."""
        product = a * b
        return product.sum(0, keepdim=True) if self.columns else product.sum()

    def _length(self, a: Tensor) -> Tensor:
        return self._dot(a, a).sqrt()

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._state)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._state = {name: tensor.to(self.theta.device).clone() for name, tensor in tensors.items()}
