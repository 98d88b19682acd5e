"""Engine `clients`: runs client by client, with any local schedule. The reference for the other engines."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.progress_events import watched
from fedalc.core.seeds import numpy_generator
from fedalc.data.federation import Federation
from fedalc.engines.base import Engine, RoundResult, mean_rows, moved_along, no_rows
from fedalc.engines.cluster_sums import ClusterSums, sums_of_each
from fedalc.engines.noised_sums import NoisedSums
from fedalc.engines.owned_records import OwnedRecords
from fedalc.engines.prefetch import one_ahead
from fedalc.engines.record_sums import sums_in_one_place
from fedalc.engines.record_updates import private_update
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.methods import Method
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Batch, Chance, Encoder, SparseRows, make_batch
from fedalc.models.model import Model


class ClientsEngine(Engine):
    """Memory: θ three times (the server's, the client's, the sum of changes), the participants' rows and two blocks of
    instances."""

    def __init__(self, federation: Federation, method: Method, settings: Experiment) -> None:
        self.federation = federation
        self.method = method
        self.settings = settings

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        if self.settings.privacy.mechanism == "updates":
            return private_update(self._owned_records(model), model, round_number)
        counts = torch.from_numpy(self.federation.counts[participants]).to(model.W)
        labels = self.federation.label_of[participants]
        weights = self.method.weights(counts, labels)
        change = [torch.zeros_like(p) for p in model.theta]
        copies = model.W.new_empty(len(participants), model.W.shape[1])
        statistics = [torch.zeros_like(s) for s in model.statistics]
        everyone = list(enumerate(participants.tolist()))
        loss = self._add_clients(model, everyone, weights, chance, round_number, change, statistics, copies)
        rows = no_rows(model.W)
        if self.method.trains_rows:
            rows = mean_rows(torch.from_numpy(labels).to(model.W.device), copies, weights)
        sent, users = model.theta + model.statistics, self.federation.sender_count(participants)
        traffic = Ledger.of_round(sent, model.W, len(participants), self.method.trains_rows, users)
        return RoundResult(change, *rows, loss, traffic, statistics=statistics)

    def _add_clients(
        self,
        model: Model,
        clients: Sequence[tuple[int, int]],
        weights: Tensor,
        chance: Chance,
        round_number: int,
        change: list[Tensor],
        statistics: list[Tensor],
        copies: Tensor,
    ) -> float:
        """Add the weighted changes of these clients, put their rows into `copies`, and return their weighted loss.
        `clients`: place among the round's participants, and number."""
        local = Model(copy.deepcopy(model.encoder).train(), model.W)
        loss = 0.0
        for place, client in watched("clients", clients, len(clients)):
            with torch.no_grad():
                for mine, server in zip(local.theta + local.statistics, model.theta + model.statistics, strict=True):
                    mine.copy_(server)
            copies[place], client_loss = self._local_work(local, client, chance, round_number)
            weight = weights[place].item()
            loss += weight * client_loss
            with torch.no_grad():
                for total, mine, server in zip(change, local.theta, model.theta, strict=True):
                    total.add_(torch.sub(server, mine, out=mine), alpha=weight)  # overwrites the client's θ
                for total, mine in zip(statistics, local.statistics, strict=True):
                    total.add_(mine, alpha=weight)
        return loss

    def curvature(
        self, model: Model, direction: Tensor, participants: np.ndarray, round_number: int = 0
    ) -> tuple[Tensor, Ledger]:
        counts = torch.from_numpy(self.federation.counts[participants]).to(model.W)
        weights = self.method.weights(counts, self.federation.label_of[participants]).tolist()
        along = moved_along(model.encoder, direction)
        (moving,) = along.parameters()
        for client, weight in watched("clients", zip(participants.tolist(), weights, strict=True), len(participants)):
            self._add_curvature(model, along, client, weight)
        assert moving.grad is not None
        return moving.grad, Ledger.of_curvature(direction, self.federation.sender_count(participants))

    def _add_curvature(self, model: Model, along: Encoder, client: int, weight: float) -> None:
        """Add the client's part of H p, times its weight, to the gradient of `along`, whose θ is p."""
        row, held = model.W[self.federation.label_of[client]], self.federation.instances_of(client)
        for part in self._parts(held):
            self._add_product(model, along, row, client, part, self._rows(part, row), weight / len(held))

    def _add_product(
        self, model: Model, along: Encoder, row: Tensor, client: int, instances: np.ndarray, rows: Batch, weight: float
    ) -> None:
        change = along(rows)
        g = model.encoder(rows).detach().requires_grad_()
        loss = self._loss(g, model.W, row, client, instances, 0)
        (slope,) = torch.autograd.grad(loss, g, create_graph=True)
        (pull,) = torch.autograd.grad((slope * change.detach()).sum(), g)
        torch.autograd.backward(change, pull * weight)

    @torch.no_grad()
    def sums(self, model: Model, participants: np.ndarray) -> Sums:
        W, weights, size = model.W, self.method.label_weights, model.encoder.width
        sends_gram = self.method.sends_gram
        gram, cross = W.new_zeros((size, size) if sends_gram else (0, 0)), W.new_zeros(size, W.shape[1])
        constant = 0.0
        for client in watched("clients", participants.tolist(), len(participants)):
            held, label = self.federation.instances_of(client), int(self.federation.label_of[client])
            for part in self._parts(held):
                instances = torch.from_numpy(part).to(W.device)
                own = torch.full_like(instances, label)
                rows = self._rows(part, W)
                assert isinstance(rows, SparseRows)  # no encoder of pictures is linear
                x, counted = model.encoder.design(rows).dense(), self._parts_of(client, part, W)
                if sends_gram:
                    gram += (x * (self.method.share(own, instances) * counted).unsqueeze(1)).T @ x
                cross += torch.outer((x * counted.unsqueeze(1)).sum(0), weights[label] * W[label])
                constant += counted.sum().item() * weights[label].item() ** 2
        users = self.federation.sender_count(participants)
        traffic = Ledger.of_sums(size, W.element_size(), len(participants), users, sends_gram, self.method.secret_dim)
        return Sums(gram, cross, constant, int(self.federation.counts[participants].sum()), traffic)

    def cluster_sums(self, labels: np.ndarray) -> ClusterSums:
        return sums_of_each(self.federation, labels, getattr(torch, self.settings.dtype))

    def private_sums(self, model: Model) -> NoisedSums:
        return sums_in_one_place(self._owned_records(model), model.W)

    def _owned_records(self, model: Model) -> OwnedRecords:
        return OwnedRecords(self.federation, self.method, self.settings, model.encoder, by_client=True)

    def _parts_of(self, client: int, instances: np.ndarray, like: Tensor) -> Tensor:
        """Return the part of each instance's loss that the client counts."""
        parts = self.federation.parts_of(client, instances)
        return like.new_ones(len(instances)) if parts is None else torch.from_numpy(parts).to(like)

    def _local_work(self, local: Model, client: int, chance: Chance, round_number: int) -> tuple[Tensor, float]:
        """Train the client's encoder in place. Return its row and its loss during the first epoch."""
        settings = self.settings.client
        row = local.W[self.federation.label_of[client]].clone().requires_grad_(self.method.trains_rows)
        # No decay for rows: their length is fixed. Momentum starts anew each round, as clients keep no state.
        learned = local.theta + [row] * self.method.trains_rows
        groups = [{"params": local.theta, "weight_decay": settings.weight_decay}]
        if self.method.trains_rows:
            groups.append({"params": [row], "lr": settings.row_rate})
        optimizer = torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
        first_epoch = 0.0
        for epoch in range(settings.epochs):
            batches = self._batches(client, chance, epoch, round_number)
            blocks = one_ahead(self._rows(part, row) for batch in batches for part in self._parts(batch))
            for instances in batches:
                for parameter in learned:  # reuses the gradients of the client before: they are large
                    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
                counted = self._counted(client, instances)
                loss = sum(
                    self._add_gradient(local, row, client, part, next(blocks), chance, counted, round_number)
                    for part in self._parts(instances)
                )
                optimizer.step()
                if self.method.trains_rows:
                    with torch.no_grad():
                        row.copy_(unit_rows(row))
                if epoch == 0:
                    first_epoch += loss / (self.federation.counts[client] * settings.sample)
        return row.detach(), first_epoch

    def _parts(self, batch: np.ndarray) -> list[np.ndarray]:
        """No more instances are encoded at a time."""
        return [
            batch[start : start + self.settings.block_rows] for start in range(0, len(batch), self.settings.block_rows)
        ]

    def _rows(self, instances: np.ndarray, like: Tensor) -> Batch:
        keys = self.federation.keys_of(instances)
        return make_batch(self.federation.features[instances], keys, like.dtype, like.device)

    def _add_gradient(
        self,
        local: Model,
        row: Tensor,
        client: int,
        instances: np.ndarray,
        rows: Batch,
        chance: Chance,
        counted: float,
        round_number: int,
    ) -> float:
        """Add the gradient of the instances' summed loss, divided by `counted`. Return the sum."""
        loss = self._loss(local.encoder(rows, chance), local.W, row, client, instances, round_number)
        (loss / counted).backward()
        return loss.item()

    def _loss(self, g: Tensor, W: Tensor, row: Tensor, client: int, instances: np.ndarray, round_number: int) -> Tensor:
        """Return the summed loss of a client's instances, from the encoder's outputs g."""
        held = torch.from_numpy(instances).to(row.device)
        own = torch.full_like(held, int(self.federation.label_of[client]))
        losses = [
            self.method.loss(g[:, part] @ row[part], g[:, part].square().sum(1), own, held)
            for part in self.method.parts
        ]
        if self.method.set_loss is not None:
            losses.append(self._rest(g, W, own, held, round_number))
        whole = torch.stack(losses)
        if self.federation.parts is not None:
            whole = whole * self._parts_of(client, instances, whole)
        return whole.sum()

    def _rest(self, g: Tensor, W: Tensor, own: Tensor, instances: Tensor, round_number: int) -> Tensor:
        """Return the client's share of the loss's part over all labels, for each instance."""
        assert self.method.set_loss is not None
        labels, factor = self.method.compared_labels(round_number)
        scores = self._scores(g, W, labels)
        return self.method.rest_share(own, instances) * factor * self.method.set_loss.rest(scores)

    def _scores(self, g: Tensor, W: Tensor, labels: Tensor | None) -> Tensor:
        """Return the scores of all labels, or of a sample of them."""
        return g @ (W if labels is None else W[labels]).T

    def _counted(self, client: int, batch: np.ndarray) -> float:
        """Return the divisor of a batch's loss: its size, or for a sample its expected size, as it may be empty."""
        sample = self.settings.client.sample
        return len(batch) if sample == 1 else sample * float(self.federation.counts[client])

    def _batches(self, client: int, chance: Chance, epoch: int, round_number: int) -> list[np.ndarray]:
        instances = self.federation.instances_of(client)
        instances = instances[chance.chosen(self.federation.keys_of(instances))]
        size = self.settings.client.batch_size
        if size is None or size >= len(instances):
            return [instances]
        number = self.federation.number_of(client)
        if self.settings.secure_sums.on:
            # The server chooses rounds and numbers. With another order for each, two sums at one θ would differ by the
            # clients with several batches only.
            round_number, number = 1, 0
        generator = numpy_generator(self.settings.seed, "batches", round_number, number, epoch)
        order = generator.permutation(instances)
        return [order[start : start + size] for start in range(0, len(order), size)]
