"""One federated training: the state that rounds change, and the round itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.config.facts import leaves_out_features
from fedalc.config.resolve import for_labels
from fedalc.core import distributed
from fedalc.core.seeds import torch_generator
from fedalc.data.dataset import Split
from fedalc.data.federation import Clients, form_clients
from fedalc.engines import Engine, make_engine
from fedalc.engines.cluster_sums import ClusterSums
from fedalc.engines.sums import LARGEST_GRAM
from fedalc.engines.traffic import Ledger
from fedalc.errors import FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.identity import make_hasher
from fedalc.labels.collection.secret_rows import turned
from fedalc.labels.knowledge import LabelKnowledge, learn_labels
from fedalc.methods import Method, make_method
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance, make_encoder
from fedalc.models.label_columns import LabelColumns
from fedalc.models.model import Model, model_with
from fedalc.training.newton import NewtonCG
from fedalc.training.privacy_budget import planned_looks
from fedalc.training.server_optimizers import (
    AnyOptimizer,
    AveragedWeights,
    ConjugateGradients,
    make_optimizer,
    sample_clients,
)

EngineFor = Callable[[Method], Engine]
"""Builds the engine that runs a method."""


def knowledge_for(
    settings: Experiment,
    train: Split,
    names: Sequence[str] | None = None,
    phase: str = "fit",
    phases: int = 1,
    needed: np.ndarray | None = None,
    hasher: Hasher | None = None,
) -> LabelKnowledge | None:
    """Collect what the server learns about labels. None if the method does not use labels or there are none.

    The `phases` of a run share its privacy budget. `hasher`: see `learn_labels`.
    """
    if not settings.uses_labels or train.labels.nnz == 0:
        return None
    return learn_labels(settings, train, planned_looks(settings, phases), names, phase, needed, hasher)


def counted_parts(knowledge: LabelKnowledge | None) -> np.ndarray | None:
    """Return the part of each (instance, label) pair that each of its h holders counts, 1/h; None: all of it."""
    return None if knowledge is None or knowledge.holders is None else 1 / knowledge.holders


def simulated(settings: Experiment, train: Split, knowledge: LabelKnowledge | None = None) -> FederatedTraining:
    """Begin a training whose clients are all in this process."""
    settings = for_labels(settings, train.labels.shape[1])
    federation = form_clients(train, settings.clients, counted_parts(knowledge))
    if leaves_out_features(settings):
        federation = federation.without_rare_features(settings.server.least_holders)
    hasher = make_hasher(settings.collection) if settings.embeddings.secret else None
    return begin_training(settings, federation, partial(make_engine, settings, federation), knowledge, hasher)


def begin_training(
    settings: Experiment,
    federation: Clients,
    engine_for: EngineFor,
    knowledge: LabelKnowledge | None = None,
    hasher: Hasher | None = None,
) -> FederatedTraining:
    """Build the method and its engine, draw θ and W, and return the training before its first round.

    `knowledge` is None for methods that do not use labels. `hasher`: the clients', to turn secret rows of W. A server
    has none, and its W is not the one that clients train with.
    """
    method = make_method(settings, federation.label_count, knowledge)
    engine = engine_for(method)
    model = _start_model(settings, method, federation.feature_count)
    if hasher is not None and settings.embeddings.secret:
        model.W = turned(model.W, hasher)
    columns = method.has_axes and (method.set_loss is None or method.set_loss.separable)
    optimizer = make_optimizer(model.theta, settings, int(federation.counts.sum()), columns)
    average = AveragedWeights(model.values, settings.server.ema) if settings.server.ema else None
    ledger = Ledger() if knowledge is None else Ledger(knowledge.bytes_down, knowledge.bytes_up)
    needs_row = not method.one_round or settings.embeddings.secret
    if not method.trains_rows and needs_row and engine.clients_keep_rows:
        alone = method.set_loss is None and not settings.secure_sums.on  # else all parties get all rows
        rows = 1 if alone else 0 if method.has_axes else method.label_count
        ledger.rows_once(model.W, len(federation.clients), rows)
    return FederatedTraining(
        settings, federation, engine_for, knowledge, method, engine, model, optimizer, average, ledger
    )


def _start_model(settings: Experiment, method: Method, feature_count: int) -> Model:
    generator = torch_generator(settings.seed, "encoder")
    encoder = make_encoder(feature_count, settings.encoder, generator, method.sub_models(settings))
    encoder = encoder.to(device=settings.device, dtype=getattr(torch, settings.dtype))
    W = method.start(torch_generator(settings.seed, "class embeddings")).to(settings.device)
    return Model(encoder, W, method.shard)


@dataclass(eq=False)
class FederatedTraining:
    """Algorithm 1, the server's side. Every random draw is a function of (seed, purpose, round)."""

    settings: Experiment
    federation: Clients
    engine_for: EngineFor
    knowledge: LabelKnowledge | None
    method: Method
    engine: Engine
    model: Model
    server: AnyOptimizer
    average: AveragedWeights | None
    ledger: Ledger
    round_number: int = 0
    seconds: float = 0.0

    @property
    def held(self) -> np.ndarray:
        """Which labels have a client. If records are private nobody may know, and all labels can be predicted."""
        if self.settings.privacy.covers_records:
            return np.ones(self.federation.label_count, dtype=bool)
        return np.isin(np.arange(self.federation.label_count), self.federation.label_of[self.federation.clients])

    def run_round(self) -> float:
        """Run one round. Return the clients' loss at its start, or the objective at its end if the server solves it."""
        began = time.perf_counter()
        self.round_number += 1
        federation, participation = self.federation, self.settings.server.participation
        clients = sample_clients(
            federation.clients, federation.user_of, participation, self.settings.seed, self.round_number
        )
        loss = self._solve(clients) if self.method.one_round else self._step(clients)
        self.seconds += time.perf_counter() - began
        return loss

    def _step(self, clients: np.ndarray) -> float:
        """Lines of Algorithm 1: the clients work, the server moves θ, then W."""
        settings, t = self.settings, self.round_number
        if self._can_solve_first_step:
            return self._solve_first_step(clients)
        self.server.aim()
        if isinstance(self.server, NewtonCG) and self.server.direction is not None:
            curved, traffic = self.engine.curvature(self.model, self.server.direction, clients, t)
            self.ledger.add(traffic)
            return self.server.curve(curved)
        result = self.engine.run(self.model, clients, Chance(settings, t, self.model.W), t)
        self.ledger.add(result.traffic)
        loss = result.loss / len(self.method.parts)  # the mean over sub-models, comparable between methods
        if not result.heard:
            return loss
        if result.at is not None and isinstance(self.server, ConjugateGradients):
            self.server.moved(result.at)
        loss = self.server.apply(result.change, loss)
        for statistic, mean in zip(self.model.statistics, result.statistics, strict=bool(result.statistics)):
            statistic.copy_(mean)
        generator = torch_generator(settings.seed, "server step", t)
        W = result.put_into(self.model) if settings.server.trained_rows == "keep" else self.model.W
        self.model.W = self._server_step(W, result.labels, generator)
        if self.average is not None:
            self.average.update(self.model.values, t)
        return loss

    def _server_step(self, W: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Take the method's step on W. A registered method may be wrong, so the first step is checked."""
        before = W.clone() if self.round_number == 1 else W
        after = self.method.server_step(W, labels, generator)
        if not isinstance(after, Tensor) or after.shape != before.shape or after.dtype != before.dtype:
            found = f"{tuple(after.shape)} of {after.dtype}" if isinstance(after, Tensor) else type(after).__name__
            raise self._wrong_step(f"returned {found}, and W is {tuple(before.shape)} of {before.dtype}")
        if self.round_number == 1 and len(after):
            lengths = after[:, self.method.parts[0]].norm(dim=1)
            if bool(torch.isfinite(lengths).all()) and float((lengths - 1).abs().max()) > 1e-3:
                raise self._wrong_step("returned rows whose length is not 1")
            if not self.method.trains_rows and not torch.equal(before, after):
                raise self._wrong_step("changes W, but the method does not declare trains_rows = True")
        return after

    def _wrong_step(self, what: str) -> FedalcError:
        return FedalcError(f"the server step of {self.settings.method} {what}; see fedalc.testing.check_method")

    @torch.no_grad()
    def _solve(self, clients: np.ndarray) -> float:
        """Solve for θ at once: the clients' sums determine it."""
        if self.method.sums_by_cluster:
            return self.method.fill_clusters(self.model, self._cluster_sums)
        private = self.settings.privacy.mechanism == "sums"
        model = replace(self.model, W=self.method.summed_rows(self.model))
        sums = self.engine.private_sums(model) if private else self.engine.sums(model, clients)
        loss = self.method.fill(self.model, sums)
        self.ledger.add(sums.traffic)
        return loss

    def _cluster_sums(self, labels: np.ndarray) -> ClusterSums:
        sums = self.engine.cluster_sums(labels)
        self.ledger.add(sums.traffic)
        return sums

    @property
    def _can_solve_first_step(self) -> bool:
        """Whether the first Newton step follows from the clients' sums: at θ = 0 the curvature is the same for all
        labels. It needs an axis per label, and a constant column, whose row of the sums has Σ x."""
        loss, encoder = self.method.set_loss, self.settings.encoder
        newton = isinstance(self.server, NewtonCG) and self.round_number == 1 and encoder.start == "zero"
        newton = newton and self.model.encoder.width**2 <= LARGEST_GRAM
        return newton and self.method.has_axes and loss is not None and loss.separable and encoder.constant > 0

    @torch.no_grad()
    def _solve_first_step(self, clients: np.ndarray) -> float:
        """Take the first Newton step at once. Return the objective of the quadratic model after it."""
        found, loss, ridge = self.engine.sums(self.model, clients), self.method.set_loss, self.settings.server.ridge
        assert loss is not None
        zero = torch.zeros(1, 1, dtype=torch.float64)
        slope, curvature = loss.slope(zero.clone()).item(), loss.curve(zero, torch.ones_like(zero)).item()
        columns = self.model.W.sum(0)  # one for the axis of a label, zero for an axis that no label has
        last = torch.zeros_like(found.cross[:, :1])
        last[-1] = 1
        totals = (found.kept @ last).squeeze(1) / self.settings.encoder.constant  # Σ x over all instances
        pull = slope * torch.outer(totals, columns) + loss.own_slope_at_zero * found.cross
        (theta,) = self.model.theta
        theta.copy_(replace(found, cross=-pull / curvature).solve(2 * ridge / curvature))
        self.ledger.add(found.traffic)
        instances = totals[-1].item() / self.settings.encoder.constant
        at_zero = loss.rest(zero).item() * instances * self.method.label_count  # Σ own is 0 there
        return (at_zero + 0.5 * (theta * pull).sum().item()) / found.pairs

    def is_finite(self) -> bool:
        """Whether all numbers of θ are finite and the rows of W have their length."""
        lengths = self.model.W.norm(dim=1)
        rows_are_long = bool((lengths > 0.5 if self.method.unit_rows else lengths.isfinite()).all())  # false for NaN
        finite = rows_are_long and all(
            bool(torch.isfinite(numbers).all()) for numbers in self.model.theta + self.model.statistics
        )
        return not distributed.any_of(not finite)

    def averaged_model(self) -> Model:
        """Return the model to evaluate and keep: a copy with averaged weights, or without `server.ema` the model."""
        if self.average is None:
            return self.model
        *others, W = self.average.values
        return model_with(self.model, [*others, unit_rows(W)])

    # --- checkpoints ---

    def tensors(self) -> dict[str, Tensor]:
        """Return everything the next round depends on. Complete in the first process."""
        tensors = {f"theta.{i}": p for i, p in enumerate(self.model.theta)}
        tensors |= {"W": self.model.all_rows(self.model.W)}
        averaged = [*self._averaged[:-1], *(self.model.all_rows(W) for W in self._averaged[-1:])]
        tensors |= {f"average.{i}": p for i, p in enumerate(averaged)}
        tensors |= {f"statistics.{i}": s for i, s in enumerate(self.model.buffers)}
        tensors |= {} if self.model.columns is None else self.model.columns.tensors()
        tensors |= {} if self.knowledge is None else self.knowledge.tensors()
        tensors |= self.engine.tensors()
        return tensors | {f"optimizer.{name}": tensor for name, tensor in self.server.tensors().items()}

    def facts(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "seconds": self.seconds,
            "bytes_down": self.ledger.down,
            "bytes_up": self.ledger.up,
            **({} if self.model.columns is None else {"columns": self.model.columns.facts()}),
            "labels": None if self.knowledge is None else self.knowledge.facts(),
            **self.engine.facts(),
        }

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        for i, parameter in enumerate(self.model.theta):
            parameter.copy_(tensors[f"theta.{i}"])
        self.model.W = self.model.own_rows(tensors["W"]).to(self.model.W).clone()
        for i, value in enumerate(self._averaged):
            saved = tensors[f"average.{i}"]
            value.copy_(self.model.own_rows(saved) if i == len(self._averaged) - 1 else saved)
        for i, statistic in enumerate(self.model.buffers):
            statistic.copy_(tensors[f"statistics.{i}"])
        if "columns" in facts:
            size = self.federation.feature_count, self.federation.label_count
            self.model.columns = LabelColumns.restored(tensors, facts["columns"], size)
        prefix = "optimizer."
        self.server.load_tensors({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        if self.knowledge is not None:
            self.knowledge.restore(tensors, facts["labels"])
            self.method = make_method(self.settings, self.federation.label_count, self.knowledge)
            self.engine = self.engine_for(self.method)
        self.engine.restore(tensors, facts)
        self.round_number, self.seconds = facts["round"], facts["seconds"]
        self.ledger = Ledger(facts["bytes_down"], facts["bytes_up"])

    @property
    def _averaged(self) -> list[Tensor]:
        return [] if self.average is None else self.average.values
