"""The gradient of a linear encoder whose labels have an axis each, a few labels at a time.

With one-hot rows of W the score of label u depends on one column of θ, so the columns can be computed in any order. A
block of columns stays in the processor's cache while all instances pass: three to four times as fast as one pass with
all columns.

Memory: the sparse instances twice, and instances × `columns` numbers three times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.progress_events import watched
from fedalc.core.sparse_products import WeightedBags
from fedalc.data.federation import Federation
from fedalc.methods import Method
from fedalc.methods.losses import SetLoss

COLUMNS = 64


@dataclass(frozen=True)
class ColumnPass:
    """All instances of this process, with every client taking part."""

    method: Method
    loss: SetLoss
    rows: WeightedBags
    transposed: WeightedBags
    instances: Tensor
    pairs: csc_matrix  # instances × labels: 1 + the number of the pair's entry in `client`
    client: Tensor  # p_u / n_u for each (instance, label) pair, in the order of the federation's labels
    rest_counts: Tensor  # how often each instance counts in the part over all labels
    constant: float  # of the encoder: the last row of θ, if it is not 0

    @classmethod
    def of(cls, federation: Federation, method: Method, settings: Experiment) -> ColumnPass | None:
        """Return the pass, or None if the settings need the general one."""
        loss = method.set_loss
        possible = (
            loss is not None
            and loss.separable
            and method.has_axes
            and settings.encoder.name == "linear"
            and settings.encoder.output == "raw"
            and settings.client.sample == 1
            and settings.client.negatives is None
            and settings.client.weight_decay == 0
            and federation.users is None
        )
        if not possible or loss is None:
            return None
        like = torch.empty(0, dtype=getattr(torch, settings.dtype), device=settings.device)
        chosen = distributed.own_part(np.arange(federation.labels.shape[0]))
        features, labels = federation.features[chosen], federation.labels[chosen]
        counts = torch.from_numpy(federation.counts[federation.clients]).to(like)
        weights = method.weights(counts, federation.label_of[federation.clients]) / counts
        of_label = like.new_zeros(federation.label_count)
        of_label[torch.from_numpy(federation.label_of[federation.clients]).to(like.device)] = weights
        label = torch.from_numpy(labels.indices.astype(np.int64)).to(like.device)
        instance = torch.from_numpy(np.repeat(np.arange(len(chosen)), np.diff(labels.indptr))).to(like.device)
        instances = torch.from_numpy(chosen).to(like.device)
        client = of_label[label]
        rest_counts = like.new_zeros(len(chosen))
        rest_counts.index_add_(0, instance, method.rest_share(label, instances[instance]) * client)
        numbered = csr_matrix((np.arange(1, labels.nnz + 1), labels.indices, labels.indptr), shape=labels.shape)
        return cls(
            method,
            loss,
            WeightedBags.from_csr(features, like.dtype, like.device),
            WeightedBags.from_csr(features.T.tocsr(), like.dtype, like.device),
            instances,
            numbered.tocsc(),
            client,
            rest_counts,
            settings.encoder.constant,
        )

    @torch.no_grad()
    def gradient(self, theta: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of Σ_u p_u R_u by θ, and its value."""
        gradient = torch.zeros_like(theta)
        total = torch.zeros((), dtype=torch.float64, device=theta.device)
        for columns, pairs in self._blocks(W):
            scores = self._forward(theta[:, columns])
            slope = self.loss.slope(scores).mul_(self.rest_counts.unsqueeze(1))
            total += self.loss.rest(scores).mul_(self.rest_counts).sum()
            with torch.enable_grad():
                score = scores[pairs.instance, pairs.column].requires_grad_()
                own = self.method.loss(score, score, pairs.label, self.instances[pairs.instance])
                (pull,) = torch.autograd.grad(own.sum(), score)
            total += (own.detach() * pairs.weight).sum()
            slope.index_put_((pairs.instance, pairs.column), pull * pairs.weight, accumulate=True)
            gradient[:, columns] = self._backward(slope)
        return gradient, total

    @torch.no_grad()
    def curvature(self, theta: Tensor, direction: Tensor, W: Tensor) -> Tensor:
        """Return the second derivative of Σ_u p_u R_u by θ, times the direction."""
        product = torch.zeros_like(theta)
        for columns, pairs in self._blocks(W):
            scores, moved = self._forward(theta[:, columns]), self._forward(direction[:, columns])
            curved = self.loss.curve(scores, moved).mul_(self.rest_counts.unsqueeze(1))
            at = (pairs.instance, pairs.column)
            curved.index_put_(at, self.loss.own_curve(scores[at]) * moved[at] * pairs.weight, accumulate=True)
            product[:, columns] = self._backward(curved)
        return product

    def _forward(self, theta: Tensor) -> Tensor:
        """[x, constant] θ for all instances."""
        if not self.constant:
            return self.rows @ theta
        return (self.rows @ theta[:-1]).add_(theta[-1], alpha=self.constant)

    def _backward(self, pull: Tensor) -> Tensor:
        """The transpose of `_forward`."""
        product = self.transposed @ pull
        return torch.cat([product, self.constant * pull.sum(0, keepdim=True)]) if self.constant else product

    def _blocks(self, W: Tensor) -> Iterator[tuple[Tensor, _Pairs]]:
        """Yield blocks of labels: their columns of θ, and their positive pairs."""
        axis = W.argmax(1)
        labels = range(0, len(W), COLUMNS)
        for start in watched("labels", labels, len(W), lambda start: min(COLUMNS, len(W) - start)):
            block = slice(start, min(start + COLUMNS, len(W)))
            pairs = self.pairs[:, block].tocoo()
            instance, column = (torch.from_numpy(a.astype(np.int64)).to(W.device) for a in (pairs.row, pairs.col))
            weight = self.client[torch.from_numpy(pairs.data - 1).to(W.device)]
            yield axis[block], _Pairs(instance, column, column + start, weight)


@dataclass(frozen=True)
class _Pairs:
    """The (instance, label) pairs of a block of labels. `column`: the label's place in the block."""

    instance: Tensor
    column: Tensor
    label: Tensor
    weight: Tensor
