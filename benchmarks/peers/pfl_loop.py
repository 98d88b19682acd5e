"""The job on pfl's simulated backend: one process, federated averaging over all users.

Users are weighted by their instances, and the central optimiser is SGD with rate 1. Metrics are not evaluated, except
in pfl's first iteration, which requires it and is the warm-up here. The module records the clients' losses when pfl
computes them in training.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from peers.job import RATE, Job
from peers.measured import Measured, Stopwatch, norm
from peers.torch_model import ClientData, Encoder, client_data, epoch

TRAINING = 2**31  # the batch size that pfl hands to `User.iter` in training


class PflEncoder(Encoder):
    """An encoder with the `metrics` that pfl requires; it also records the losses."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.noted = 0.0  # Σ n_u R_u of this round
        self.in_first_epoch = True

    def loss(self, *data: Tensor) -> Tensor:
        loss = super().loss(*data)
        if self.in_first_epoch:
            self.noted += len(data[0]) * loss.item()
        return loss

    @torch.no_grad()
    def metrics(self, *data: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(super().loss(*data).item() * len(data[0]), len(data[0]))}


class User(PyTorchTensorDataset):
    """Yields a user's batches itself: pfl would split feature indices like instances."""

    def __init__(self, data: ClientData, job: Job, number: int, module: PflEncoder) -> None:
        super().__init__(data, user_id=str(number))
        self.job, self.number, self.module = job, number, module
        self.epochs_done = 0

    def iter(self, batch_size: int | None) -> Iterable[tuple[Tensor, ...]]:
        if batch_size != TRAINING:  # pfl evaluates
            return iter([self.raw_data])
        rounds, now = divmod(self.epochs_done, self.job.epochs)
        self.epochs_done += 1
        self.module.in_first_epoch = now == 0
        return epoch(self.raw_data, self.job, self.number, rounds + 1, now)


class Clock(TrainingProcessCallback):
    def __init__(self, module: PflEncoder, instances: int) -> None:
        self.module, self.instances = module, instances
        self.measured = Measured()
        self.watch = Stopwatch(self.measured)

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.watch.stop(self.module.noted / self.instances)
        self.module.noted = 0.0
        self.watch = Stopwatch(self.measured)
        return False, Metrics()


def run(path: Path, rounds: int) -> Measured:
    job = Job.load(path)
    module = PflEncoder(job)
    users = [User(data, job, user, module) for user, data in enumerate(client_data(job))]
    instances = int(job.counts.sum())
    everyone = range(len(users))
    population = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", everyone))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    backend = SimulatedBackend(population, population, postprocessors=[WeightByDatapoints()])
    parameters = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=len(users),
        val_cohort_size=None,
    )
    step = NNTrainHyperParams(local_num_epochs=job.epochs, local_learning_rate=RATE, local_batch_size=TRAINING)
    clock = Clock(module, instances)
    FederatedAveraging().run(parameters, backend, model, step, callbacks=[clock], send_metrics_to_platform=False)
    clock.measured.theta_norm = norm(parameter.detach().numpy() for parameter in module.parameters())
    return clock.measured
