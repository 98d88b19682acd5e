"""The gradient of a linear encoder whose labels have an axis each, a few labels at a time.

With one-hot rows of W the score of label u depends on one column of θ, so the columns can be computed in any order. A
block of columns stays in the processor's cache while all instances pass: three to four times as fast as one pass with
all columns.

Memory: the sparse instances twice, instances × `COLUMNS` numbers three times, and for Newton steps θ and up to
`MOST_KEPT` numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

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

COLUMNS = 32
MOST_KEPT = 2**28  # second derivatives (1 GiB in float32) that are kept within a Newton step


class _OverAll(Protocol):
    """The part of a loss that is a sum over all labels."""

    def rest(self, scores: Tensor) -> Tensor: ...

    def slope(self, scores: Tensor) -> Tensor: ...


class _SquaredLength:
    """The square loss's part over all labels, ‖g‖². With an axis for each label that is Σ s²."""

    def rest(self, scores: Tensor) -> Tensor:
        return scores.square().sum(1)

    def slope(self, scores: Tensor) -> Tensor:
        return 2 * scores


@dataclass(frozen=True)
class ColumnPass:
    """All instances of this process, with every client taking part."""

    method: Method
    over_all: _OverAll
    rows: WeightedBags
    transposed: WeightedBags
    instances: Tensor
    pairs: csc_matrix  # instances × labels: 1 + the number of the pair's entry in `client`
    client: Tensor  # p_u / n_u for each (instance, label) pair, times its part, in the order of the federation's labels
    rest_counts: Tensor  # how often each instance counts in the part over all labels
    constant: float  # of the encoder: the last row of θ, if it is not 0
    kept: dict[str, Any] = field(default_factory=dict)  # second derivatives of the last θ

    @classmethod
    def of(cls, federation: Federation, method: Method, settings: Experiment) -> ColumnPass | None:
        """Return the pass, or None if the settings need the general one."""
        square = settings.client.loss == "square" and settings.encoder.dim == federation.label_count
        loss = method.set_loss
        over_all = _SquaredLength() if square else loss  # with more axes than labels ‖g‖² counts the others too
        possible = (
            (square or (loss is not None and loss.separable))
            and method.has_axes
            and settings.encoder.name == "linear"
            and settings.encoder.output == "raw"
            and settings.client.sample == 1
            and settings.client.negatives is None
            and settings.client.weight_decay == 0
        )
        if not possible or over_all is None:
            return None
        like = torch.empty(0, dtype=getattr(torch, settings.dtype), device=settings.device)
        chosen = distributed.own_part(np.arange(federation.labels.shape[0]))
        features, labels = federation.features[chosen], federation.labels[chosen]
        counts = torch.from_numpy(federation.counts[federation.clients]).to(like)
        weights = method.weights(counts, federation.label_of[federation.clients]) / counts
        of_client = like.new_zeros(len(federation.counts))
        of_client[torch.from_numpy(federation.clients).to(like.device)] = weights
        held = federation.held[chosen]
        label = torch.from_numpy(labels.indices.astype(np.int64)).to(like.device)
        instance = torch.from_numpy(np.repeat(np.arange(len(chosen)), np.diff(labels.indptr))).to(like.device)
        instances = torch.from_numpy(chosen).to(like.device)
        client = of_client[torch.from_numpy(held.indices.astype(np.int64)).to(like.device)]
        if federation.parts is not None:
            client = client * torch.from_numpy(held.data).to(like)
        rest_counts = like.new_zeros(len(chosen))
        rest_counts.index_add_(0, instance, method.rest_share(label, instances[instance]) * client)
        numbered = csr_matrix((np.arange(1, labels.nnz + 1), labels.indices, labels.indptr), shape=labels.shape)
        return cls(
            method,
            over_all,
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
            scores = self._forward(theta[:, columns].contiguous())
            slope = self.over_all.slope(scores).mul_(self.rest_counts.unsqueeze(1))
            total += self.over_all.rest(scores).mul_(self.rest_counts).sum()
            with torch.enable_grad():
                score = scores[pairs.instance, pairs.column].requires_grad_()
                nothing = torch.zeros_like(score)  # ‖g‖² of the square loss: it is in `rest`
                own = self.method.loss(score, nothing, pairs.label, self.instances[pairs.instance])
                (pull,) = torch.autograd.grad(own.sum(), score)
            total += (own.detach() * pairs.weight).sum()
            slope.index_put_((pairs.instance, pairs.column), pull * pairs.weight, accumulate=True)
            gradient[:, columns] = self._backward(slope)
        return gradient, total

    @torch.no_grad()
    def curvature(self, theta: Tensor, direction: Tensor, W: Tensor) -> Tensor:
        """Return the second derivative of Σ_u p_u R_u by θ, times the direction."""
        product = torch.zeros_like(theta)
        kept = self._kept_for(theta, len(W))
        for number, (columns, pairs) in enumerate(self._blocks(W)):
            if number < len(kept):
                bend = kept[number]
            else:
                bend = self._bend(theta[:, columns].contiguous(), pairs)
                if len(self.instances) * len(W) <= MOST_KEPT:
                    kept.append(bend)
            product[:, columns] = self._backward(self._forward(direction[:, columns].contiguous()).mul_(bend))
        return product

    def _bend(self, theta: Tensor, pairs: _Pairs) -> Tensor:
        """Return the second derivative of the loss by each score, for a block of labels."""
        scores = self._forward(theta)
        loss = self.method.set_loss
        assert loss is not None
        bend = loss.curve(scores, torch.ones_like(scores)).mul_(self.rest_counts.unsqueeze(1))
        at = (pairs.instance, pairs.column)
        return bend.index_put_(at, loss.own_curve(scores[at]) * pairs.weight, accumulate=True)

    def _kept_for(self, theta: Tensor, labels: int) -> list[Tensor]:
        """Return the second derivatives kept for this θ: the directions of a Newton step have the same ones."""
        if self.kept.get("theta") is None or not torch.equal(self.kept["theta"], theta):
            self.kept.update(theta=theta.clone(), bends=[])
        bends: list[Tensor] = self.kept["bends"]
        return bends

    def _forward(self, theta: Tensor) -> Tensor:
        """[x, constant] θ for all instances."""
        if not self.constant:
            return self.rows @ theta
        return (self.rows @ theta[:-1]).add_(theta[-1], alpha=self.constant)

    def _backward(self, pull: Tensor) -> Tensor:
        """The transpose of `_forward`."""
        product = self.transposed @ pull
        return torch.cat([product, self.constant * pull.sum(0, keepdim=True)]) if self.constant else product

    def _blocks(self, W: Tensor) -> Iterator[tuple[slice, _Pairs]]:
        """Yield blocks of columns of θ, each with the positive pairs of its labels."""
        if "blocks" not in self.kept:
            axis = W.argmax(1).cpu().numpy()
            by_column = self.pairs[:, np.argsort(axis)]  # D = C: each column belongs to a label
            self.kept["blocks"] = list(self._cut(by_column, np.sort(axis), np.argsort(axis)))
        return iter(watched("labels", self.kept["blocks"], len(W), lambda block: block[0].stop - block[0].start))

    def _cut(self, pairs: csc_matrix, columns: np.ndarray, labels: np.ndarray) -> Iterator[tuple[slice, _Pairs]]:
        device = self.client.device
        for start in range(0, len(columns), COLUMNS):
            block = slice(start, min(start + COLUMNS, len(columns)))
            coo = pairs[:, block].tocoo()
            numbers = (coo.row.astype(np.int64), coo.col.astype(np.int64), labels[block][coo.col], coo.data - 1)
            instance, column, label, entry = (torch.from_numpy(number).to(device) for number in numbers)
            yield (
                slice(int(columns[block][0]), int(columns[block][-1]) + 1),
                _Pairs(instance, column, label, self.client[entry]),
            )


@dataclass(frozen=True)
class _Pairs:
    """The (instance, label) pairs of a block of labels. `column`: the label's place in the block."""

    instance: Tensor
    column: Tensor
    label: Tensor
    weight: Tensor
