"""The slopes of the clients' losses in local steps of engine `lockstep`, by formula.

With h the encoder's output, g = h / ‖h‖ (or h itself), s = gᵀw_u and q = ‖g‖², only the loss of a pair φ(s, q) needs
autograd, on two numbers per record. The rest is

    ∂/∂h = (φ_s w_u - (s φ_s + 2 q φ_q) g + 2 φ_q g) / ‖h‖         ∂/∂w_u = Σ φ_s g

(without scaling: φ_s w_u + 2 φ_q h). A loss over all labels adds its own slope by g, which autograd computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalc.engines.local_schedule import Observer, Step
from fedalc.methods import Method

Rest = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The part of the loss over all labels, of each record: from the outputs g, the own labels and the instances."""


@dataclass
class LocalLoss:
    """The losses of a group of clients. `total` gets each client's mean loss in its first epoch."""

    method: Method
    unit: bool  # whether outputs are scaled to length 1
    label: Tensor  # of each client
    instance: Tensor  # of each record of the group
    parts: Tensor | None  # of each record of the group, which part of the record's loss counts (`Federation.parts`)
    counted: Tensor  # of each client, its records in an epoch; with a sample: as expected
    sampled: bool
    rest: Rest
    total: Tensor
    observer: Observer | None = None

    def slopes(self, h: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the slopes by the encoder's outputs, before scaling, and by the clients' rows, if they are trained."""
        own, instance = self.label[step.client], self.instance[step.at]
        scale = _scale(h) if self.unit else torch.ones_like(h[:, 0])
        weight, row = self._weight(step), step.of_clients(rows)
        whole, along, by_g = torch.zeros_like(scale), torch.zeros_like(scale), None
        factors = []  # of each part of the dimensions: φ_s and 2 φ_q
        for part in self.method.parts:
            scores = torch.linalg.vecdot(h[:, part], row[:, part]).mul_(scale).requires_grad_()
            lengths = self._lengths(h[:, part], h.shape[1], scale).requires_grad_()
            losses = self.method.loss(scores, lengths, own, instance)
            by_score, by_length = torch.autograd.grad((losses * weight).sum(), (scores, lengths), allow_unused=True)
            growth = torch.zeros_like(by_score) if by_length is None else 2 * by_length
            whole += losses.detach()
            along += by_score * scores.detach() + growth * lengths.detach()
            factors.append((by_score, growth))
        if self.method.set_loss is not None:
            by_g, rest = self._slope_of_rest(h * scale.unsqueeze(1), own, instance, weight)
            whole += rest
            along += torch.linalg.vecdot(by_g, h) * scale
        by_rows = []
        for part, (by_score, growth) in zip(self.method.parts, factors, strict=True):
            of_row, of_h = (by_score * scale).unsqueeze(1), (growth - along if self.unit else growth) * scale.square()
            if self.method.trains_rows:
                by_rows.append(step.sums(h[:, part] * of_row))
            row[:, part].mul_(of_row).addcmul_(h[:, part], of_h.unsqueeze(1))
        if by_g is not None:
            row.addcmul_(by_g, scale.unsqueeze(1))
        if self.observer is not None:
            self.observer.output(step, h, row, along if self.unit else torch.zeros_like(along))
        self._note(whole, step)
        return row, torch.cat(by_rows, dim=1) if by_rows else None

    def _lengths(self, h: Tensor, width: int, scale: Tensor) -> Tensor:
        """Return ‖g‖² of each record, in a part of the dimensions."""
        if self.unit and h.shape[1] == width:
            return (scale > 0).to(scale)
        return h.square().sum(1) * scale.square()

    def _note(self, losses: Tensor, step: Step) -> None:
        """Add the losses of the first epoch to the clients' totals."""
        if self.parts is not None:
            losses = losses * self.parts[step.at]
        self.total.index_add_(0, step.client, (losses * step.first_epoch / self.counted[step.client]).double())

    def _weight(self, step: Step) -> Tensor:
        """Return how much each record counts in its client's step."""
        size = self.counted if self.sampled else self.counted.new_tensor(step.sizes)
        weight = 1 / size[step.client]
        return weight if self.parts is None else weight * self.parts[step.at]

    def _slope_of_rest(self, g: Tensor, own: Tensor, instance: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        g.requires_grad_()
        rest = self.rest(g, own, instance)
        (by_g,) = torch.autograd.grad((rest * weight).sum(), g)
        return by_g, rest.detach()


def _scale(h: Tensor) -> Tensor:
    """Return 1 / ‖h‖, or 0 for rows without a direction (as `unit_rows`)."""
    length = torch.linalg.vector_norm(h, dim=1)
    has_direction = length > 1e-12
    return has_direction / length.where(has_direction, 1.0)
