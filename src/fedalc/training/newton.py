"""Newton steps for a convex objective, solved by conjugate gradients. Each round asks the clients for one sum.

A Newton step d minimises the quadratic model gᵀd + ½ dᵀHd at θ. The first round of a step asks for the gradient g, the
others for a product H p with the next direction p: as much work for a client as a gradient. If each label has an axis
of its own, the objective is a sum over the columns of θ, and every column takes its own steps, as if it were solved
alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedalc.config.schema import ServerSettings

ENOUGH = 1e-4  # ends a step: the squared length of the residual, beside that of the gradient


class NewtonCG:
    """`columns`: whether the columns of θ are independent. Memory: θ six times."""

    def __init__(
        self, theta: list[Tensor], settings: ServerSettings, pairs: int, client_rate: float, columns: bool
    ) -> None:
        (self.theta,) = theta  # one matrix: the linear encoder's
        self.penalty = settings.ridge / pairs  # the objective is a mean over (instance, label) pairs, not a sum
        self.client_rate = client_rate
        self.columns = columns
        self.steps = settings.newton_rounds
        self._state: dict[str, Tensor] = {}

    @property
    def direction(self) -> Tensor | None:
        """The p of the product H p that the next round computes. None: it computes the gradient."""
        return self._state.get("direction")

    @torch.no_grad()
    def aim(self) -> None:
        """Move θ to where the clients work: within a step, to where it began. Between rounds θ includes the step."""
        if "direction" in self._state:
            self.theta.copy_(self._state["base"])

    @torch.no_grad()
    def apply(self, change: list[Tensor], loss: float) -> float:
        """Begin a Newton step with the gradient at θ. Where the last step went past the minimum along its line, go back
        to it first. Return the objective, penalty included."""
        gradient = change[0] / self.client_rate + 2 * self.penalty * self.theta
        objective = loss + self.penalty * self.theta.square().sum(dtype=torch.float64).item()
        s = self._state
        last = s.get("step", torch.zeros_like(self.theta))
        if s:
            before, after = self._dot(s["gradient"], last), self._dot(gradient, last)  # slopes at both ends: < 0, ?
            too_far = (after > 0) & (before < 0)
            kept = torch.where(too_far, before / (before - after).where(too_far, 1), 1)
            self.theta.copy_(s["base"] + kept * last)
            gradient = s["gradient"] + kept * (gradient - s["gradient"])  # exact while the curvature is constant
        self._state = {
            "base": self.theta.detach().clone(),
            "gradient": gradient,
            "objective": torch.tensor(objective, dtype=torch.float64),
            "residual": -gradient,
            "direction": -gradient,
            "step": torch.zeros_like(gradient),
            "first": gradient.square().sum(dtype=torch.float64),
            "done": torch.tensor(0),
        }
        return objective

    @torch.no_grad()
    def curve(self, product: Tensor) -> float:
        """Take one step of conjugate gradients, and end the Newton step if it is solved well enough. `product`: the
        clients' H p. θ moves along. Return the objective of the quadratic model."""
        s = self._state
        direction, residual = s["direction"], s["residual"]
        curved = product + 2 * self.penalty * direction
        before, curvature = self._dot(residual, residual), self._dot(direction, curved)
        moves = (before > 0) & (curvature > 0)
        length = torch.where(moves, before / curvature.where(moves, 1), 0)
        s["step"] += length * direction
        residual -= length * curved
        after = self._dot(residual, residual)
        s["direction"] = residual + torch.where(moves, after / before.where(moves, 1), 0) * direction
        s["done"] += 1
        torch.add(s["base"], s["step"], out=self.theta.data)
        s["objective"] -= 0.5 * (length * before).sum(dtype=torch.float64)  # what the step takes off the model
        if s["done"] >= self.steps or after.sum() <= ENOUGH * s["first"]:
            self._state = {name: s[name] for name in ("base", "gradient", "step")}
        return s["objective"].item()

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product, of each column or of the whole matrices."""
        product = a * b
        return product.sum(0, keepdim=True) if self.columns else product.sum()

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._state)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._state = {name: tensor.to(self.theta.device).clone() for name, tensor in tensors.items()}
