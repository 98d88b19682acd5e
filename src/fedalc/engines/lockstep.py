"""Engine `lockstep`: any local schedule, with the steps of many clients side by side. Equal to `clients`, and faster.

All clients of a round start from the same θ. `local_steps` has how their first, second, … steps are taken at once, with
one product by θ for all of them. Here clients are put into groups (`local_groups`), and their changes are added up.

Clients with many steps leave the shared θ behind: their corrections would cost more than dense matrices of their own.
Such clients get them, and still take their steps side by side.

If every client takes one full-batch step, the round is that of `fused`.

Memory: the server's θ and the sum of changes, and `memory_budget` bytes for a group of clients (a quarter of it: the
clients; a quarter: products of their records with each other, kept for later rounds; as much for those with θ, of all
records if they fit). A client that needs more runs as in `clients`, and so do encoders that are not made of one sparse
matrix and dense layers (pictures, users' modules, sub-models).
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import accumulate
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core.progress_events import watched
from fedalc.data.federation import Federation
from fedalc.engines.base import RoundResult, mean_rows, no_rows
from fedalc.engines.fused import FusedEngine
from fedalc.engines.held_records import HeldRecords, likeness
from fedalc.engines.local_groups import PART, Room, Work
from fedalc.engines.local_losses import LocalLoss
from fedalc.engines.local_schedule import Step
from fedalc.engines.local_steps import LocalSteps
from fedalc.engines.per_client import ClientsEngine
from fedalc.engines.traffic import Ledger
from fedalc.methods import Method
from fedalc.models.encoders import Chance, Encoder, SparseRows
from fedalc.models.encoders.sparse_rows import Design
from fedalc.models.encoders.text import TextEncoder
from fedalc.models.model import Model


class LockstepEngine(ClientsEngine):
    def __init__(self, federation: Federation, method: Method, settings: Experiment) -> None:
        super().__init__(federation, method, settings)
        self._kept: dict[int, Tensor] = {}  # of clients

    def run(self, model: Model, participants: np.ndarray, chance: Chance, round_number: int) -> RoundResult:
        encoder = model.encoder
        if self.settings.privacy.mechanism == "updates" or not fits(encoder):
            return super().run(model, participants, chance, round_number)
        if self._one_step:
            return self._fused.run(model, participants, chance, round_number)
        counts = torch.from_numpy(self.federation.counts[participants]).to(model.W)
        labels = self.federation.label_of[participants]
        weights = self.method.weights(counts, labels)
        total = Total(model, weights)
        work = [self._work(place, client, chance, round_number) for place, client in enumerate(participants.tolist())]
        copies = model.W.new_empty(len(participants), model.W.shape[1])
        room = Room(encoder, self.settings, self.method.label_count if self.method.set_loss is not None else 0)
        large = {one.place for one in work if room.numbers(one) > room.most}
        together = [one for one in work if one.place not in large]
        shared = None
        held = np.unique(np.concatenate([one.instances for one in together])) if together else np.empty(0, np.int64)
        if room.of_products(len(held)) <= room.most:  # groups have many records in common
            shared = self._products(held, encoder, chance, total.first)
        for group in watched("clients", room.groups(together), len(together), len):
            own = room.own(group[0])
            steps, losses = self._run(model, encoder, group, own, chance, round_number, total, shared)
            at = [one.place for one in group]
            copies[at] = steps.rows
            total.loss += float((weights[at].double() * losses).sum())
        if shared is not None:
            shared.finish()
        others = [(one.place, one.client) for one in work if one.place in large]
        if others:
            total.loss += self._add_clients(model, others, weights, chance, round_number, total.change, [], copies)
        rows = no_rows(model.W)
        if self.method.trains_rows:
            rows = mean_rows(torch.from_numpy(labels).to(model.W.device), copies, weights)
        users = self.federation.sender_count(participants)
        traffic = Ledger.of_round(model.theta, model.W, len(participants), self.method.trains_rows, users)
        return RoundResult(total.change, *rows, total.loss, traffic)

    @cached_property
    def _one_step(self) -> bool:
        """Whether every client takes one full-batch step. Sums of single parties stay sums of their own."""
        client = self.settings.client
        full = client.batch_size is None or client.batch_size >= self.federation.counts.max(initial=0)
        return client.epochs == 1 and full and not self.settings.secure_sums.on

    @cached_property
    def _fused(self) -> FusedEngine:
        return FusedEngine(self.federation, self.method, self.settings)

    def _work(self, place: int, client: int, chance: Chance, round_number: int) -> Work:
        batches, instances = [], np.empty(0, dtype=np.int64)
        for epoch in range(self.settings.client.epochs):
            found = self._batches(client, chance, epoch, round_number)
            instances = np.sort(np.concatenate(found)) if epoch == 0 else instances
            batches.append([np.searchsorted(instances, batch) for batch in found])
        return Work(place, client, instances, batches)

    def _run(
        self,
        model: Model,
        encoder: TextEncoder,
        group: list[Work],
        own: bool,
        chance: Chance,
        round_number: int,
        total: Total,
        shared: Products | None,
    ) -> tuple[LocalSteps, Tensor]:
        """Run a group, add its change to the total, and return its steps and the loss of each client."""
        settings, W = self.settings.client, model.W
        products = shared
        if products is None:
            of_group = np.unique(np.concatenate([one.instances for one in group]))
            products = self._products(of_group, encoder, chance, total.first)
        label = torch.from_numpy(self.federation.label_of[[one.client for one in group]]).to(W.device)
        counted = W.new_tensor([settings.sample * self.federation.counts[one.client] for one in group])
        held, instance, parts = self._held(group, products, W)
        losses = torch.zeros(len(group), dtype=torch.float64, device=W.device)
        rest = partial(self._rest_of, W, round_number)
        loss = LocalLoss(self.method, encoder.unit, label, instance, parts, counted, settings.sample < 1, rest, losses)
        steps = LocalSteps(encoder, W[label], settings, chance, steps_of(group, W.device), self.method.trains_rows, own)
        weight = total.weights[[one.place for one in group]]
        if out := self._take_steps(steps, held, loss, group):
            steps.undo(out, held)
            weight[out], losses[out] = 0, 0
        total.add(weight, steps, held, products)
        if shared is None:
            products.finish()
        return steps, losses

    def _take_steps(self, steps: LocalSteps, held: HeldRecords, loss: LocalLoss, group: list[Work]) -> list[int]:
        """Return the clients, by their places in the group, that are left out: their work is not to count."""
        steps.run(held, loss.slopes)
        return []

    def _products(self, instances: np.ndarray, encoder: TextEncoder, chance: Chance, first: Tensor) -> Products:
        rows = self._rows(instances, first)
        assert isinstance(rows, SparseRows)
        design = encoder.design(chance.drop_features(rows, None, encoder.first_layer))
        return Products(instances, design, rows.keys, design @ first)

    def _rest_of(self, W: Tensor, round_number: int, g: Tensor, own: Tensor, instance: Tensor) -> Tensor:
        return self._rest(g, W, own, instance, round_number)

    def _likeness(self, one: Work, record: np.ndarray, products: Products) -> Tensor:
        """Return X_u X_uᵀ of a client. They are kept for later rounds, as far as the memory goes."""
        if one.client in self._kept:
            return self._kept[one.client]
        found = torch.from_numpy(likeness(products.design, record)).to(products.of_all)
        kept = sum(each.nbytes for each in self._kept.values())
        same = self.settings.encoder.input_dropout == 0 and self.settings.client.sample == 1  # in every round
        if same and kept + found.nbytes <= PART * self.settings.memory_budget:
            self._kept[one.client] = found
        return found

    def _held(self, group: list[Work], products: Products, W: Tensor) -> tuple[HeldRecords, Tensor, Tensor | None]:
        """Return the group's records, their instances, and their parts (`Federation.parts`)."""
        sizes = [len(one.instances) for one in group]
        records = [np.searchsorted(products.instances, one.instances) for one in group]
        like = None
        if group[0].steps > 1:
            like = [self._likeness(*of_client, products) for of_client in zip(group, records, strict=True)]
        record = torch.from_numpy(np.concatenate(records)).to(W.device)
        start, momentum = products.of_all.detach(), self.settings.client.momentum > 0
        held = HeldRecords(start, products.keys, record, sizes, like, momentum)
        pairs = np.concatenate([one.instances for one in group])
        instance = torch.from_numpy(pairs.astype(np.int64)).to(W.device)
        if self.federation.parts is None:
            return held, instance, None
        parts = [self.federation.parts_of(one.client, one.instances) for one in group]
        return held, instance, torch.from_numpy(np.concatenate(parts)).to(W)  # type: ignore[arg-type]


def fits(encoder: Encoder) -> TypeGuard[TextEncoder]:
    """Return whether an encoder is one sparse matrix and dense layers with biases, and nothing else."""
    if not isinstance(encoder, TextEncoder) or type(encoder).forward is not TextEncoder.forward:
        return False
    with_bias = [layer for layer in encoder.dense_layers if layer.bias is not None]
    return len(with_bias) == len(encoder.layers) and encoder.shortcut is None and not encoder.mixed


class Products:
    """X θ of some records, with its graph, and what their clients add to it: Σ p_u C_u, a row for each record."""

    def __init__(self, instances: np.ndarray, design: SparseRows | Design, keys: Tensor, of_all: Tensor) -> None:
        self.instances, self.design, self.keys, self.of_all = instances, design, keys, of_all
        self.added = torch.zeros_like(of_all.detach())

    def finish(self) -> None:
        """Add Xᵀ Σ p_u C_u to the sum of changes."""
        torch.autograd.backward(self.of_all, self.added)


class Total:
    """Σ p_u (θ - θ_u), as groups of clients add their parts."""

    def __init__(self, model: Model, weights: Tensor) -> None:
        assert isinstance(model.encoder, TextEncoder)
        self.theta, self.weights, self.loss = [tensor.detach() for tensor in model.theta], weights, 0.0
        self.change = [torch.zeros_like(tensor) for tensor in self.theta]
        self.first = self.theta[0].detach().requires_grad_()  # its gradient is Σ p_u X_uᵀ C_u
        self.first.grad = self.change[0]

    def add(self, weight: Tensor, steps: LocalSteps, held: HeldRecords, products: Products) -> None:
        held.add_to(products.added, weight)
        if lost := float((weight * (1 - steps.final_a)).sum()):
            self.change[0].add_(self.theta[0], alpha=lost)
        of_slots = steps.of_slots(weight)
        for number, layer in enumerate(steps.layers):
            matrix, bias = 1 + 2 * number, 2 + 2 * number
            layer.add_change(self.change[matrix], weight, steps.final_a, of_slots)
            self.change[bias].add_((weight.unsqueeze(1) * (self.theta[bias] - layer.bias)).sum(0))


def steps_of(group: list[Work], device: torch.device) -> list[Step]:
    """Return the group's steps: of each client that still works, its next batch."""
    batches = [[(batch, number == 0) for number, epoch in enumerate(one.batches) for batch in epoch] for one in group]
    starts = [0, *accumulate(len(one.instances) for one in group)]
    steps = []
    for number in range(len(batches[0])):
        now = [one[number] for one in batches if number < len(one)]
        sizes = [len(batch) for batch, _ in now]
        at = np.concatenate([batch + start for (batch, _), start in zip(now, starts, strict=False)])
        arrays = (np.repeat(np.arange(len(now)), sizes), at, np.repeat([first for _, first in now], sizes))
        steps.append(Step(tuple(sizes), *(torch.from_numpy(array).to(device) for array in arrays)))
    return steps
