"""One federated training from its start: the state that rounds change, and the round itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.core.seeds import torch_generator
from fedalc.data.dataset import Split
from fedalc.data.federation import Clients, form_clients
from fedalc.engines import Engine, make_engine
from fedalc.engines.traffic import Ledger
from fedalc.labels.knowledge import LabelKnowledge, learn_labels
from fedalc.methods import METHODS, Method, make_method
from fedalc.models.class_embeddings import unit_rows
from fedalc.models.encoders import Chance, make_encoder
from fedalc.models.model import Model, model_with
from fedalc.training.server_optimizers import AveragedWeights, make_optimizer, sample_clients


def knowledge_for(
    settings: Experiment,
    train: Split,
    names: Sequence[str] | None = None,
    phase: str = "fit",
    phases: int = 1,
    needed: np.ndarray | None = None,
) -> LabelKnowledge | None:
    """What the server of a training learns of its labels. None where the method wants none, and where there are none.

    The phases of a run share its privacy budget.
    """
    if not settings.uses_labels or train.labels.nnz == 0:
        return None
    return learn_labels(settings, train, planned_looks(settings, phases), names, phase, needed)


def planned_looks(settings: Experiment, phases: int) -> int:
    """How often, at most, noised figures are taken from label sets."""
    once = settings.privacy.mechanism == "counts"
    return phases * (1 if once else METHODS[settings.method].looks_at_labels(settings))


def simulated(settings: Experiment, train: Split, knowledge: LabelKnowledge | None = None) -> FederatedTraining:
    """With all clients in this process."""
    federation = form_clients(train, settings.clients)
    return FederatedTraining(settings, federation, partial(make_engine, settings, federation), knowledge)


class FederatedTraining:
    """Algorithm 1, the server's side. Every random draw is a function of (seed, purpose, round)."""

    def __init__(
        self,
        settings: Experiment,
        federation: Clients,
        engine_for: Callable[[Method], Engine],
        knowledge: LabelKnowledge | None = None,
    ) -> None:
        self.settings = settings
        self.federation = federation
        self.knowledge = knowledge  # None for the methods that do not use labels
        self._engine_for = engine_for
        self._make_method()
        self.model = self._start_model(federation.feature_count)
        self.server = make_optimizer(self.model.theta, settings, int(self.federation.counts.sum()))
        self.average = AveragedWeights(self.model.values, settings.server.ema) if settings.server.ema else None
        self.ledger = Ledger()
        if knowledge is not None:
            self.ledger.up += knowledge.bytes_up
            self.ledger.down += knowledge.bytes_down
        self.round_number = 0
        self.seconds = 0.0
        if not self.method.trains_rows and not self.method.one_round and self.engine.clients_keep_rows:
            self.ledger.rows_once(self.model.W, len(self.federation.clients))

    def _make_method(self) -> None:
        self.method = make_method(self.settings, self.federation.label_count, self.knowledge)
        self.engine = self._engine_for(self.method)

    def _start_model(self, feature_count: int) -> Model:
        settings = self.settings
        generator = torch_generator(settings.seed, "encoder")
        encoder = make_encoder(feature_count, settings.encoder, generator, self.method.sub_models(settings))
        encoder = encoder.to(device=settings.device, dtype=getattr(torch, settings.dtype))
        W = self.method.start(torch_generator(settings.seed, "class embeddings")).to(settings.device)
        return Model(encoder, W, self.method.shard)

    @property
    def held(self) -> np.ndarray:
        """Which labels have a client."""
        return np.isin(np.arange(self.federation.label_count), self.federation.label_of[self.federation.clients])

    def run_round(self) -> float:
        """One round; returns the clients' loss at its beginning, or the objective at its end where that is solved."""
        began = time.perf_counter()
        self.round_number += 1
        settings, t = self.settings, self.round_number
        everyone, user_of = self.federation.clients, self.federation.user_of
        clients = sample_clients(everyone, user_of, settings.server.participation, settings.seed, t)
        if self.method.one_round:
            return self._solve(clients, began)
        self.server.aim()
        result = self.engine.run(self.model, clients, Chance(settings, t, self.model.W), t)
        loss = result.loss / len(self.method.parts)  # over sub-models, so that it compares with other methods'
        if result.heard:
            loss = self.server.apply(result.change, loss)
            for kept, observed in zip(self.model.statistics, result.statistics, strict=bool(result.statistics)):
                kept.copy_(observed)
            generator = torch_generator(settings.seed, "server step", t)
            self.model.W = self.method.server_step(result.put_into(self.model), result.labels, generator)
            if self.average is not None:
                self.average.update(self.model.values, t)
        self.ledger.add(result.traffic)
        self.seconds += time.perf_counter() - began
        return loss

    @torch.no_grad()
    def _solve(self, clients: np.ndarray, began: float) -> float:
        """The whole training, where the clients' sums determine it."""
        sums = self.engine.sums(self.model.W, clients)
        (theta,) = self.model.theta
        theta.copy_(sums.solve(self.settings.server.ridge))
        self.ledger.add(sums.traffic)
        self.seconds += time.perf_counter() - began
        return sums.objective(theta, self.settings.server.ridge)

    def is_finite(self) -> bool:
        """Whether θ holds numbers and W's rows have their length."""
        rows_are_long = bool((self.model.W.norm(dim=1) > 0.5).all())  # false for NaN too
        finite = rows_are_long and all(
            bool(torch.isfinite(numbers).all()) for numbers in self.model.theta + self.model.statistics
        )
        return not distributed.any_of(not finite)

    def averaged_model(self) -> Model:
        """The model to evaluate and keep: a copy with averaged weights, or the one that is trained, if none are."""
        if self.average is None:
            return self.model
        *others, W = self.average.values
        return model_with(self.model, [*others, unit_rows(W)])

    @property
    def _averaged(self) -> list[Tensor]:
        return [] if self.average is None else self.average.values

    def tensors(self) -> dict[str, Tensor]:
        """Everything the next round depends on, for a checkpoint. Complete in the first process."""
        tensors = {f"theta.{i}": p for i, p in enumerate(self.model.theta)}
        tensors |= {"W": self.model.all_rows(self.model.W)}
        averaged = [*self._averaged[:-1], *(self.model.all_rows(W) for W in self._averaged[-1:])]
        tensors |= {f"average.{i}": p for i, p in enumerate(averaged)}
        tensors |= {f"statistics.{i}": s for i, s in enumerate(self.model.buffers)}
        tensors |= {} if self.knowledge is None else self.knowledge.tensors()
        tensors |= {} if self.engine.lengths is None else self.engine.lengths.tensors()
        return tensors | {f"optimizer.{name}": tensor for name, tensor in self.server.tensors().items()}

    def facts(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "seconds": self.seconds,
            "bytes_down": self.ledger.down,
            "bytes_up": self.ledger.up,
            "labels": None if self.knowledge is None else self.knowledge.facts(),
        }

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        for i, parameter in enumerate(self.model.theta):
            parameter.copy_(tensors[f"theta.{i}"])
        self.model.W = self.model.own_rows(tensors["W"]).to(self.model.W).clone()
        for i, value in enumerate(self._averaged):
            kept = tensors[f"average.{i}"]
            value.copy_(self.model.own_rows(kept) if i == len(self._averaged) - 1 else kept)
        for i, statistic in enumerate(self.model.buffers):
            statistic.copy_(tensors[f"statistics.{i}"])
        prefix = "optimizer."
        self.server.load_tensors({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        if self.knowledge is not None:
            self.knowledge.restore(tensors, facts["labels"])
            self._make_method()
        if self.engine.lengths is not None:
            self.engine.lengths.restore(tensors)
        self.round_number, self.seconds = facts["round"], facts["seconds"]
        self.ledger = Ledger(facts["bytes_down"], facts["bytes_up"])
