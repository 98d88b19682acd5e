"""Engine `fused`: one full-batch step of every client at once, exactly.

If each client takes one step, Σ p_u θ_u = θ - η ∇ Σ_u p_u R_u: one gradient, for which all clients share one pass
through the encoder. An instance that five clients hold is encoded once, and only its five scores are computed:

    ∂/∂g_j = Σ_{u ∈ L_j} (p_u/n_u) (φ_s w_u + 2 φ_q g_j)          ∂R_u/∂w_u = (1/n_u) Σ_{j ∈ S_u} φ_s g_j

where φ(s, q) is the loss of a pair, s = g_jᵀw_u, q = ‖g_j‖², and φ_s, φ_q are its partial derivatives. A loss over all
labels (`methods/losses.py`) adds its part over all labels once for each instance.

Memory: the sparse instances twice (rows for the forward pass, transposed for the backward), the activations of one
block, a gradient of θ, and if rows are trained a gradient for each participant's copy of its row. In a round of few
clients, time and memory grow with their instances and with the rows of θ's first matrix for their features.

With several processes (`fedalc.core.distributed`), each takes a share of the instances, and the gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.blocks import blocks as budget_blocks
from fedalc.core.progress_events import watched
from fedalc.core.sparse_products import WeightedBags, products_at, weighted_gram
from fedalc.data.federation import Federation
from fedalc.engines.base import Engine, RoundResult, mean_rows, moved_along, no_rows
from fedalc.engines.cluster_sums import ClusterSums, sums_at_once
from fedalc.engines.column_pass import ColumnPass
from fedalc.engines.fused_batches import Block, Portion
from fedalc.engines.noised_sums import NoisedSums
from fedalc.engines.owned_records import OwnedRecords
from fedalc.engines.prefetch import one_ahead
from fedalc.engines.record_sums import sums_in_one_place
from fedalc.engines.record_updates import private_update
from fedalc.engines.sums import GramOfRecords, Sums
from fedalc.engines.traffic import Ledger
from fedalc.methods import Method
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance, Encoder, SparseRows, make_batch
from fedalc.models.model import Model


class FusedEngine(Engine):
    def __init__(self, federation: Federation, method: Method, settings: Experiment) -> None:
        self.federation = federation
        self.method = method
        self.settings = settings
        self._everyone: tuple[Portion, list[Block]] | None = None

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        if self.settings.privacy.mechanism == "updates":
            return private_update(self._owned_records(model), model, round_number)
        if self._by_columns is not None and len(participants) == len(self.federation.clients):
            return self._run_by_columns(self._by_columns, model, participants)
        labels = self.federation.label_of[participants]
        W, place = _rows_for(model, labels)
        counts = torch.from_numpy(self.federation.counts[participants]).to(W)
        weights = self.method.weights(counts, labels)
        counted = counts * self.settings.client.sample  # instances that take part, on average
        share, inverse = weights / counted, 1 / counted  # p_u / n_u and 1 / n_u

        row_gradient = W.new_zeros(len(participants), W.shape[1]) if self.method.trains_rows else None
        total = torch.zeros((), dtype=torch.float64, device=W.device)
        portion, blocks = self._take(participants, chance, model)
        encoder = _encoder_for(model, portion)
        for parameter in encoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for block in watched("instances", one_ahead(blocks), len(portion.instances), len):
            g = encoder(block.rows, chance)
            fixed, label, counted_share = g.detach(), place(block.label), block.of_pairs(share)
            pulls = []
            for part in self.method.parts:
                g_part, W_part = fixed[:, part], W[:, part]
                scores = products_at(g_part, W_part, block.instance, label).requires_grad_()
                lengths = g_part.square().sum(1)[block.instance].requires_grad_()
                losses = self.method.loss(scores, lengths, block.label, block.instances[block.instance])
                slope, growth = torch.autograd.grad(losses.sum(), (scores, lengths), allow_unused=True)
                total += (losses.detach() * counted_share).sum()
                pull = WeightedBags(label, block.starts, slope * counted_share) @ W_part
                if growth is not None:
                    of_instance = torch.zeros_like(g_part[:, 0])
                    of_instance.index_add_(0, block.instance, growth * counted_share)
                    pull = pull + 2 * of_instance.unsqueeze(1) * g_part
                if self.method.set_loss is not None:
                    rest_share = self.method.rest_share(block.label, block.instances[block.instance])
                    counts = torch.zeros_like(g_part[:, 0])
                    counts.index_add_(0, block.instance, rest_share * counted_share)
                    value, rest_pull = self._rest(g_part, W_part, counts, round_number)
                    total += value
                    pull = pull + rest_pull
                pulls.append(pull)
                if row_gradient is not None:
                    weight = slope * block.of_pairs(inverse)
                    row_gradient[block.present, part] += block.by_client(weight) @ g_part
            torch.autograd.backward(g, torch.cat(pulls, dim=1))
        gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
        distributed.sum_over([*gradients, total] + ([] if row_gradient is None else [row_gradient]))

        users = self.federation.sender_count(participants)
        traffic = Ledger.of_round(model.theta, W, len(participants), self.method.trains_rows, users)
        if row_gradient is None:
            rows = no_rows(W)
        else:
            label = torch.from_numpy(labels).to(W.device)
            rows = self._rows(W[place(label)], row_gradient, label, weights)
        return RoundResult(self._change(model, encoder, portion), *rows, total.item(), traffic)

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        (theta,) = model.theta
        traffic = Ledger.of_curvature(theta, self.federation.sender_count(participants))
        if self._by_columns is not None:
            product = self._by_columns.curvature(theta.detach(), direction, model.W)
        else:
            product = self._curvature(model, direction, participants)
        distributed.sum_over([product])
        return product, traffic

    def _curvature(self, model: Model, direction: Tensor, participants: np.ndarray) -> Tensor:
        """H p block by block: the scores at θ, their change along the direction, and back."""
        loss, W = self.method.set_loss, model.W
        assert loss is not None
        counts = torch.from_numpy(self.federation.counts[participants]).to(W)
        share = self.method.weights(counts, self.federation.label_of[participants]) / counts
        chance = Chance(self.settings, 0, W)
        along = moved_along(model.encoder, direction)
        (moving,) = along.parameters()
        for block in self._take(participants, chance, model)[1]:
            change = along(block.rows, chance)
            with torch.no_grad():
                g, moved = model.encoder(block.rows, chance), change.detach()
                rest_share = self.method.rest_share(block.label, block.instances[block.instance])
                counted = block.of_pairs(share)
                weight = torch.zeros_like(g[:, 0]).index_add_(0, block.instance, rest_share * counted)
                pull = (weight.unsqueeze(1) * loss.curve(g @ W.T, moved @ W.T)) @ W
                own = loss.own_curve(products_at(g, W, block.instance, block.label))
                own = own * products_at(moved, W, block.instance, block.label) * counted
                pull += WeightedBags(block.label, block.starts, own) @ W
            torch.autograd.backward(change, pull)
        assert moving.grad is not None
        return moving.grad

    @torch.no_grad()
    def _rest(self, g: Tensor, W: Tensor, counts: Tensor, round_number: int) -> tuple[Tensor, Tensor]:
        """Return Σ_j counts_j rest(W g_j), the loss's part over all labels, and its derivative by each g_j."""
        loss = self.method.set_loss
        assert loss is not None
        labels, factor = self.method.compared_labels(round_number)
        rows = W if labels is None else W[labels]
        value, pull = torch.zeros((), dtype=torch.float64, device=W.device), torch.empty_like(g)
        for part in budget_blocks(len(g), 4 * len(rows) * g.element_size(), self.settings.memory_budget):
            scores, weight = g[part] @ rows.T, factor * counts[part]
            value += (weight * loss.rest(scores)).sum()
            pull[part] = (weight.unsqueeze(1) * loss.slope(scores)) @ rows
        return value, pull

    @torch.no_grad()
    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        """Return the sums of all clients at once: Xᵀ diag(Σ_u 1/m) X and Xᵀ (Y diag(a) W)."""
        W, encoder = model.W, model.encoder
        instances = distributed.own_part(np.arange(self.federation.labels.shape[0]))
        labels = self.federation.labels[instances]
        features = self.federation.features[instances].astype(getattr(np, self.settings.dtype))
        label = torch.from_numpy(labels.indices.astype(np.int64)).to(W.device)  # of each (instance, label) pair
        instance = torch.from_numpy(np.repeat(np.arange(len(instances)), np.diff(labels.indptr))).to(W.device)
        shares = self.method.share(label, torch.from_numpy(instances).to(W.device)[instance])
        weights, part = self.method.label_weights[label], torch.ones_like(shares)
        if self.federation.parts is not None:
            part = torch.from_numpy(self.federation.held[instances].data).to(W)
        counted = W.new_zeros(len(instances)).index_add_(0, instance, shares * part)
        starts = torch.from_numpy(labels.indptr.astype(np.int64)).to(W.device)
        targets = WeightedBags(label, starts, weights * part) @ W
        by_records = self.method.sends_gram and len(instances) < encoder.width and distributed.here().count == 1
        own_gram = self.method.sends_gram and not by_records
        gram, cross = W.new_zeros(0, 0), W.new_zeros(0, W.shape[1])
        if encoder.uses_features:
            if own_gram:
                gram = torch.from_numpy(weighted_gram(features, counted.cpu().numpy())).to(W)
            cross = WeightedBags.from_csr(features.T.tocsr(), W.dtype, W.device) @ targets
        if len(cross) < encoder.width:
            gram, cross = self._with_columns(encoder, features, counted, targets, gram if own_gram else None, cross)
        constant = (weights.square() * part).sum()
        distributed.sum_over([gram, cross, constant])
        users = self.federation.sender_count(participants)
        sends = self.method.sends_gram, self.method.secret_dim
        traffic = Ledger.of_sums(encoder.width, W.element_size(), len(participants), users, *sends)
        whole = self._gram_of_records(encoder, features, counted) if by_records else gram
        return Sums(whole, cross, constant.item(), self.federation.labels.nnz, traffic)

    def cluster_sums(self, labels: np.ndarray) -> ClusterSums:
        return sums_at_once(self.federation, labels, getattr(torch, self.settings.dtype))

    def private_sums(self, model: Model) -> NoisedSums:
        return sums_in_one_place(self._owned_records(model), model.W)

    def _owned_records(self, model: Model) -> OwnedRecords:
        return OwnedRecords(self.federation, self.method, self.settings, model.encoder, by_client=False)

    @cached_property
    def _by_columns(self) -> ColumnPass | None:
        """A faster pass for a linear encoder, if each label has an axis: the columns of θ are then independent."""
        return ColumnPass.of(self.federation, self.method, self.settings)

    def _run_by_columns(self, columns: ColumnPass, model: Model, participants: np.ndarray) -> RoundResult:
        (theta,) = model.theta
        gradient, loss = columns.gradient(theta.detach(), model.W)
        distributed.sum_over([gradient, loss])
        users = self.federation.sender_count(participants)
        traffic = Ledger.of_round(model.theta, model.W, len(participants), False, users)
        change = gradient.mul_(self.settings.client.learning_rate)
        return RoundResult([change], *no_rows(model.W), loss.item(), traffic)

    def _with_columns(
        self,
        encoder: Encoder,
        features: csr_matrix,
        counted: Tensor,
        targets: Tensor,
        gram: Tensor | None,
        cross: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return both sums with the dense columns of the design added to those of the features, block by block. Without
        `gram`, only `cross` is computed."""
        first, size = len(cross), encoder.width
        both = cross.new_zeros(size, cross.shape[1])
        whole = cross.new_zeros((0, 0) if gram is None else (size, size))
        both[:first] = cross
        if gram is not None:
            whole[:first, :first] = gram
        for rows, columns in self._column_blocks(encoder, features, cross):
            both[first:] += columns.T @ targets[rows]
            if gram is None:
                continue
            weighted = columns * counted[rows].unsqueeze(1)
            whole[first:, first:] += columns.T @ weighted
            if first:
                transposed = WeightedBags.from_csr(features[rows].T.tocsr(), cross.dtype, cross.device)
                whole[:first, first:] += transposed @ weighted
        if gram is not None:
            whole[first:, :first] = whole[:first, first:].T
        return whole, both

    def _column_blocks(self, encoder: Encoder, features: csr_matrix, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the dense columns of the design, a block of instances at a time."""
        for start in range(0, features.shape[0], self.settings.block_rows):
            rows = slice(start, start + self.settings.block_rows)
            x = features[rows]
            batch = make_batch(x, np.arange(x.shape[0]), like.dtype, like.device)
            assert isinstance(batch, SparseRows)
            yield rows, torch.cat([like.new_zeros(len(batch), 0), *encoder.columns(batch)], dim=1)

    def _gram_of_records(self, encoder: Encoder, features: csr_matrix, counted: Tensor) -> GramOfRecords:
        root = counted.double().sqrt()
        columns = torch.cat([columns for _, columns in self._column_blocks(encoder, features, counted)])
        used = features if encoder.uses_features else features[:, :0]
        return GramOfRecords(used.multiply(root.cpu().numpy()[:, None]).tocsr(), columns * root.unsqueeze(1))

    def _take(self, participants: np.ndarray, chance: Chance, model: Model) -> tuple[Portion, Iterable[Block]]:
        """Return the instances of the round, in blocks. If all take part, they are built once and reused."""
        client, block_rows, like = self.settings.client, self.settings.block_rows, model.W
        if len(participants) == len(self.federation.clients) and client.sample == 1:
            if self._everyone is None:
                portion = Portion.of(self.federation, participants, chance).own_share()
                self._everyone = portion, list(portion.blocks(block_rows, like))
            return self._everyone
        portion = Portion.of(self.federation, participants, chance)
        if model.encoder.takes_some_features and client.weight_decay == 0:  # weight decay moves every row of θ
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
                rows = model.encoder.rows_for(torch.from_numpy(portion.features).to(gradient.device))
                gradient = torch.sparse_coo_tensor(
                    rows.unsqueeze(0), gradient, parameter.shape, is_coalesced=True, check_invariants=False
                )
            change.append(gradient)
        return change

    def _rows(self, before: Tensor, gradient: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return mean_rows(labels, unit_rows(before - self.settings.client.row_rate * gradient), weights)


def _rows_for(model: Model, labels: np.ndarray) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return rows of W and a function from labels to their places among these rows. Without sharding these are W and
    the identity; of a sharded W, only the rows of `labels` are gathered."""
    if model.shard is None:
        return model.W, lambda label: label
    distinct = torch.from_numpy(np.unique(labels)).to(model.W.device)
    return model.shard.take(model.W, distinct), partial(torch.searchsorted, distinct)


def _encoder_for(model: Model, portion: Portion) -> Encoder:
    """Return the model's encoder, or one with only the rows of its first matrix that the portion needs."""
    if portion.features is None:
        return model.encoder
    return model.encoder.for_features(torch.from_numpy(portion.features).to(model.W.device))
