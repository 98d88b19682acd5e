"""A plain PyTorch loop over clients, written for this job only."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from peers.job import RATE, Job
from peers.measured import Measured, measure_rounds, norm
from peers.torch_model import Encoder, client_data, epoch


def run(path: Path, rounds: int) -> Measured:
    job = Job.load(path)
    server, clients = Encoder(job), client_data(job)
    total = float(job.counts.sum())
    local = copy.deepcopy(server)
    theta, mine = list(server.parameters()), list(local.parameters())
    optimizer = torch.optim.SGD(mine, lr=RATE)  # stateless without momentum, so all clients share it

    rounds_done = 0

    def run_round() -> float:
        nonlocal rounds_done
        rounds_done += 1
        average = [torch.zeros_like(parameter) for parameter in theta]
        round_loss = 0.0
        for client, data in enumerate(clients):
            weight = len(data[0]) / total
            with torch.no_grad():
                torch._foreach_copy_(mine, theta)
            for number in range(job.epochs):
                for batch in epoch(data, job, client, rounds_done, number):
                    optimizer.zero_grad()
                    loss = local.loss(*batch)
                    loss.backward()
                    optimizer.step()
                    if number == 0:
                        round_loss += loss.item() * len(batch[0]) / total
            with torch.no_grad():
                torch._foreach_add_(average, mine, alpha=weight)
        with torch.no_grad():
            torch._foreach_copy_(theta, average)
        return round_loss

    measured = measure_rounds(run_round, rounds)
    measured.theta_norm = norm(parameter.detach().numpy() for parameter in theta)
    return measured
