"""The job as a Flower app: client training, and federated averaging with Flower's own FedAvg.

The client follows Flower's PyTorch examples: θ is sent as an ArrayRecord of the state dict, the partition selects the
client's data, and a process reads the data once. `example_app` builds a new module for each message, like the examples;
`client_app` keeps one module per process.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from peers.job import RATE, Job
from peers.measured import Measured, Stopwatch, norm
from peers.torch_model import ClientData, Encoder, client_data, epoch

client_app, example_app = ClientApp(), ClientApp()


@cache
def job_and_data(path: str) -> tuple[Job, list[ClientData]]:
    job = Job.load(Path(path))
    return job, client_data(job)


@cache
def kept_module(path: str) -> Encoder:
    return Encoder(job_and_data(path)[0])


@client_app.train()
def train_kept(message: Message, context: Context) -> Message:
    return train(kept_module(str(message.content["config"]["job"])), message, context)


@example_app.train()
def train_new(message: Message, context: Context) -> Message:
    return train(Encoder(job_and_data(str(message.content["config"]["job"]))[0]), message, context)


def train(module: Encoder, message: Message, context: Context) -> Message:
    job, clients = job_and_data(str(message.content["config"]["job"]))
    client, round_number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
    data, first_epoch = clients[client], 0.0
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for number in range(job.epochs):
        for batch in epoch(data, job, client, round_number, number):
            optimizer.zero_grad()
            loss = module.loss(*batch)
            loss.backward()
            optimizer.step()
            if number == 0:
                first_epoch += loss.item() * len(batch[0]) / len(data[0])
    metrics = MetricRecord({"loss": first_epoch, "num-examples": len(data[0])})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class TimedFedAvg(FedAvg):
    """Flower's FedAvg that also times each round, from selecting the clients to the averaged θ."""

    def __init__(self, measured: Measured) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.measured = measured

    def configure_train(self, server_round: int, *rest: Any) -> Iterable[Message]:
        self.watch = Stopwatch(self.measured)
        return super().configure_train(server_round, *rest)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if metrics is None:
            raise RuntimeError(f"round {server_round}: no client answered")
        self.watch.stop(float(metrics["loss"]))
        return arrays, metrics


def server_app(path: Path, rounds: int, measured: Measured) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(Encoder(Job.load(path)).state_dict())
        config = ConfigRecord({"job": str(path)})
        result = TimedFedAvg(measured).start(grid, start, num_rounds=rounds, train_config=config)
        measured.theta_norm = norm(array.numpy() for array in result.arrays.values())

    return app
