"""Losses over all labels that owners of positive examples compute together, exactly (derivation: docs/exact.md).

The centralised loss of an instance with scores s and labels L is `rest(s) + Σ_{u∈L} own(s_u)`. `rest` depends on the
scores of all labels, and `own` on the score of one label that the instance has. With W known to all, owner u computes

    share · rest(s) + own(s_u),    share = 1/m,  m = |L|

and the sum over the m owners is the centralised loss. No owner needs a negative instance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus


class SetLoss(ABC):
    """`scores`: instances × labels. `score` and `share`: one number per (instance, owner) pair."""

    separable: ClassVar[bool] = True
    """Is `rest` a sum over labels? Then a sample of the labels estimates it without bias."""
    own_slope_at_zero: ClassVar[float] = -1.0
    """The derivative of `own` at score 0."""
    counts_pairs: ClassVar[bool] = False
    """Does every owner count `rest` fully? Then an instance counts once for each of its labels."""

    @abstractmethod
    def rest(self, scores: Tensor) -> Tensor:
        """Return the part over all labels, for each instance."""

    @abstractmethod
    def slope(self, scores: Tensor) -> Tensor:
        """Return the derivative of `rest` by each score."""

    @abstractmethod
    def curve(self, scores: Tensor, moved: Tensor) -> Tensor:
        """Return the change of `slope` when the scores change by `moved`, to first order: its second derivative times
        `moved`. Where the slope has a kink, one of its two sides."""

    @abstractmethod
    def own(self, score: Tensor, share: Tensor) -> Tensor:
        """Return the part of one owner's label, for each pair."""

    def own_curve(self, score: Tensor) -> Tensor:
        """Return the second derivative of `own`."""
        return torch.zeros_like(score)


class Logistic(SetLoss):
    """One-vs-rest logistic: log(1 + e^s) for labels that the instance lacks, log(1 + e^-s) for those it has."""

    def rest(self, scores: Tensor) -> Tensor:
        return softplus(scores).sum(1)

    def slope(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)

    def curve(self, scores: Tensor, moved: Tensor) -> Tensor:
        chance = torch.sigmoid(scores)
        return chance * (1 - chance) * moved

    def own(self, score: Tensor, share: Tensor) -> Tensor:
        return -score  # log(1 + e^-s) - log(1 + e^s)


class SquaredHinge(SetLoss):
    """One-vs-rest squared hinge: max(0, 1 + s)² for labels that the instance lacks, max(0, 1 - s)² for the others."""

    own_slope_at_zero = -4.0

    def rest(self, scores: Tensor) -> Tensor:
        return (1 + scores).clamp(min=0).square().sum(1)

    def slope(self, scores: Tensor) -> Tensor:
        return (1 + scores).clamp_(min=0).mul_(2)

    def curve(self, scores: Tensor, moved: Tensor) -> Tensor:
        return 2 * moved * (scores > -1)

    def own(self, score: Tensor, share: Tensor) -> Tensor:
        return (1 - score).clamp(min=0).square() - (1 + score).clamp(min=0).square()

    def own_curve(self, score: Tensor) -> Tensor:
        return 2 * ((score < 1).to(score) - (score > -1).to(score))


class Softmax(SetLoss):
    """Cross-entropy with the mean of the labels as the target: log Σ e^s - (1/m) Σ_{u∈L} s_u. Each instance counts
    once."""

    separable = False

    def rest(self, scores: Tensor) -> Tensor:
        return scores.logsumexp(1)

    def slope(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)

    def curve(self, scores: Tensor, moved: Tensor) -> Tensor:
        chance = scores.softmax(1)
        return chance * (moved - (chance * moved).sum(1, keepdim=True))

    def own(self, score: Tensor, share: Tensor) -> Tensor:
        return -share * score


class SoftmaxPerLabel(Softmax):
    """Cross-entropy of each label of the instance: Σ_{u∈L} (log Σ e^s - s_u). An instance with m labels counts m
    times."""

    counts_pairs = True

    def own(self, score: Tensor, share: Tensor) -> Tensor:
        return -score


SET_LOSSES: dict[str, SetLoss] = {
    "logistic": Logistic(),
    "squared-hinge": SquaredHinge(),
    "softmax": Softmax(),
    "softmax-per-label": SoftmaxPerLabel(),
}
