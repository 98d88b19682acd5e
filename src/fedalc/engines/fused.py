"""Engine `fused`: one full-batch step of every client at once, exactly.

With one step each, Σ p_u θ_u = θ - η ∇ Σ_u p_u R_u: one gradient, for which all clients share the encoder's pass. An
instance on five clients is encoded once, and only its five scores are computed:

    ∂/∂g_j = Σ_{u ∈ L_j} (p_u/n_u) (φ_s w_u + 2 φ_q g_j)          ∂R_u/∂w_u = (1/n_u) Σ_{j ∈ S_u} φ_s g_j

with φ(s, q) a pair's loss, s = g_jᵀw_u, q = ‖g_j‖², and φ_s, φ_q its slopes.

Memory: the sparse instances twice (rows for the forward pass, transposed for the backward), one block's activations,
a gradient of θ, and where rows are trained one for each participant's own copy of its row. A round of some clients
only costs, in time and memory, what these hold: their instances, and the rows of θ's first matrix for their features.

Of several processes (`fedalc.core.distributed`) each takes its share of the instances; the gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.progress_events import watched
from fedalc.core.sparse_products import WeightedBags, products_at
from fedalc.data.federation import Federation
from fedalc.engines.base import Engine, RoundResult, Sums, mean_rows, no_rows
from fedalc.engines.fused_batches import Block, Portion
from fedalc.engines.prefetch import one_ahead
from fedalc.engines.traffic import Ledger
from fedalc.methods import Method
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance, Encoder, ImageEncoder
from fedalc.models.model import Model


class FusedEngine(Engine):
    def __init__(self, federation: Federation, method: Method, settings: Experiment) -> None:
        self.federation = federation
        self.method = method
        self.settings = settings
        self._everyone: tuple[Portion, list[Block]] | None = None

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        labels = self.federation.label_of[participants]
        W, place = _rows_for(model, labels)
        counts = torch.from_numpy(self.federation.counts[participants]).to(W)
        weights = self.method.weights(counts, labels)
        counted = counts * self.settings.client.sample  # how many take part, on average
        share, inverse = weights / counted, 1 / counted  # p_u / n_u and 1 / n_u

        row_gradient = W.new_zeros(len(participants), W.shape[1]) if self.method.trains_rows else None
        total = torch.zeros((), dtype=torch.float64, device=W.device)
        portion, blocks = self._take(participants, chance, W)
        encoder = _encoder_for(model, portion)
        for parameter in encoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for block in watched("instances", one_ahead(blocks), len(portion.instances), len):
            g = encoder(block.rows, chance)
            fixed, label = g.detach(), place(block.label)
            pulls = []
            for part in self.method.parts:
                mine, own = fixed[:, part], W[:, part]
                scores = products_at(mine, own, block.instance, label).requires_grad_()
                lengths = mine.square().sum(1)[block.instance].requires_grad_()
                losses = self.method.loss(scores, lengths, block.label, block.instances[block.instance])
                slope, growth = torch.autograd.grad(losses.sum(), (scores, lengths), allow_unused=True)
                total += (losses.detach() * share[block.client]).sum()
                pull = WeightedBags(label, block.starts, slope * share[block.client]) @ own
                if growth is not None:
                    of_instance = torch.zeros_like(mine[:, 0])
                    of_instance.index_add_(0, block.instance, growth * share[block.client])
                    pull = pull + 2 * of_instance.unsqueeze(1) * mine
                pulls.append(pull)
                if row_gradient is not None:
                    weight = slope * inverse[block.client]
                    row_gradient[block.present, part] += block.by_client(weight) @ mine
            torch.autograd.backward(g, torch.cat(pulls, dim=1))
        gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
        distributed.sum_over([*gradients, total] + ([] if row_gradient is None else [row_gradient]))

        users = self.federation.user_count(participants)
        traffic = Ledger.of_round(model.theta, W, len(participants), self.method.trains_rows, users)
        own = torch.from_numpy(labels).to(W.device)
        rows = no_rows(W) if row_gradient is None else self._rows(W[place(own)], row_gradient, own, weights)
        return RoundResult(self._change(model, encoder, portion), *rows, total.item(), traffic)

    @torch.no_grad()
    def sums(self, W: Tensor, participants: np.ndarray) -> Sums:
        """All clients' at once: Xᵀ diag(Σ_u 1/m) X and Xᵀ (Y diag(a) W)."""
        instances = distributed.own_part(np.arange(self.federation.labels.shape[0]))
        labels = self.federation.labels[instances]
        features = self.federation.features[instances].astype(getattr(np, self.settings.dtype))
        own = torch.from_numpy(labels.indices.astype(np.int64)).to(W.device)
        of = torch.from_numpy(np.repeat(np.arange(len(instances)), np.diff(labels.indptr))).to(W.device)
        shares = self.method.share(own, torch.from_numpy(instances).to(W.device)[of])
        counted = W.new_zeros(len(instances)).index_add_(0, of, shares)
        weighted = features.multiply(counted.cpu().numpy()[:, None]).tocsr()
        gram = torch.from_numpy((weighted.T @ features).toarray()).to(W)
        weights = self.method.label_weights[own]
        starts = torch.from_numpy(labels.indptr.astype(np.int64)).to(W.device)
        cross = WeightedBags.from_csr(features.T.tocsr(), W.dtype, W.device) @ (WeightedBags(own, starts, weights) @ W)
        constant = weights.square().sum()
        distributed.sum_over([gram, cross, constant])
        users = self.federation.user_count(participants)
        traffic = Ledger.of_sums(features.shape[1], W.element_size(), len(participants), users)
        return Sums(gram, cross, constant.item(), self.federation.labels.nnz, traffic)

    def _take(self, participants: np.ndarray, chance: Chance, like: Tensor) -> tuple[Portion, Iterable[Block]]:
        """What the round is on. Where that is everything, it is made once and kept."""
        client, block_rows = self.settings.client, self.settings.block_rows
        if len(participants) == len(self.federation.clients) and client.sample == 1:
            if self._everyone is None:
                portion = Portion.of(self.federation, participants, chance).own_share()
                self._everyone = portion, list(portion.blocks(block_rows, like))
            return self._everyone
        portion = Portion.of(self.federation, participants, chance)
        if client.weight_decay == 0:  # which moves every row
            portion = portion.with_features(block_rows)
        portion = portion.own_share()
        return portion, portion.blocks(block_rows, like)

    def _change(self, model: Model, encoder: Encoder, portion: Portion) -> list[Tensor]:
        settings = self.settings.client
        change = []
        for parameter, learnt in zip(model.theta, encoder.parameters(), strict=True):
            assert learnt.grad is not None
            gradient = learnt.grad.add_(learnt.detach(), alpha=settings.weight_decay).mul_(settings.learning_rate)
            learnt.grad = None
            if learnt is not parameter:
                rows = torch.from_numpy(portion.features).to(gradient.device).unsqueeze(0)
                gradient = torch.sparse_coo_tensor(
                    rows, gradient, parameter.shape, is_coalesced=True, check_invariants=False
                )
            change.append(gradient)
        return change

    def _rows(self, before: Tensor, gradient: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return mean_rows(labels, unit_rows(before - self.settings.client.row_rate * gradient), weights)


def _rows_for(model: Model, labels: np.ndarray) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """(rows, place): W and where it has a label's row; of a W in parts, the rows of these labels, brought together."""
    if model.shard is None:
        return model.W, lambda label: label
    held = torch.from_numpy(np.unique(labels)).to(model.W.device)
    return model.shard.take(model.W, held), partial(torch.searchsorted, held)


def _encoder_for(model: Model, portion: Portion) -> Encoder:
    """The model's, or one that has a part of its first matrix only."""
    if portion.features is None or isinstance(model.encoder, ImageEncoder):
        return model.encoder
    return model.encoder.for_features(torch.from_numpy(portion.features).to(model.W.device))
