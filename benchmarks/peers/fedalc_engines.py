"""Our engines `fused`, `lockstep` and `clients`, and `fused` with dense layers in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedalc.config.resolve import experiment
from fedalc.data import Split
from fedalc.training.federated import FederatedTraining, simulated
from peers.job import DIM, HIDDEN, MARGIN, RATE, Job
from peers.measured import Measured, measure_rounds, norm


def training(
    features: csr_matrix | np.ndarray,
    labels: csr_matrix,
    way: str,
    encoder: str = "mlp",
    epochs: int = 1,
    batch: int | None = None,
) -> FederatedTraining:
    engine, _, mixed = way.partition("-")
    of_mlp = {"hidden": HIDDEN, "dropout": 0.0, "precision": mixed or "full"}
    settings: dict[str, Any] = {
        "engine": engine,
        "method": "fedavg-fixed",
        "encoder": {"name": encoder, "dim": DIM, **(of_mlp if encoder == "mlp" else {})},
        "client": {"learning_rate": RATE, "margin": MARGIN, "epochs": epochs, "batch_size": batch},
        "server": {"optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "weights": "samples"},
    }
    return simulated(experiment(settings), Split(csr_matrix(features), labels))


def run(path: Path, rounds: int, way: str) -> Measured:
    job = Job.load(path)
    encoder = "mlp" if len(job.theta) > 1 else "linear"
    federated = training(job.features, job.labels, way, encoder, job.epochs, job.batch)
    model = federated.model
    with torch.no_grad():
        for parameter, start in zip(model.theta, job.theta, strict=True):
            parameter.copy_(torch.from_numpy(start))
    model.W = torch.from_numpy(job.rows)
    del job
    measured = measure_rounds(federated.run_round, rounds)
    measured.theta_norm = norm(part.detach().numpy() for part in model.theta)
    measured.gflop = flops_per_round(federated) / 1e9 if way.startswith("fused") else None
    return measured


def flops_per_round(federated: Any) -> float:
    """Return the multiplications and additions of one fused round with fixed rows.

    They are those of the dense layers three times (forward, both gradients), of the sparse layer twice (forward,
    gradient), and per (instance, label) pair of the score and its gradient.
    """
    federation, encoder = federated.federation, federated.model.encoder
    held = federation.labels.getnnz(axis=1) > 0
    dense = 6 * held.sum() * sum(layer.weight.numel() for layer in encoder.layers)
    sparse = 4 * federation.features[held].nnz * encoder.embedding.shape[1]
    pairs = 4 * federation.labels.nnz * federated.model.W.shape[1]
    return float(dense + sparse + pairs)
