"""The job as a Flower app: a client's training and the server's federated averaging, with Flower's own FedAvg.

The client is as Flower's examples for PyTorch are: θ comes and goes as an ArrayRecord of the state dict, the client's
data is found by its partition. A process reads the data and builds the module once, not for each message.
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
from peers.torch_model import ClientData, Encoder, client_data

client_app = ClientApp()


@cache
def data_and_module(path: str) -> tuple[list[ClientData], Encoder]:
    job = Job.load(Path(path))
    return client_data(job), Encoder(job)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    clients, module = data_and_module(str(message.content["config"]["job"]))
    data = clients[int(context.node_config["partition-id"])]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    optimizer.zero_grad()
    loss = module.loss(*data)
    loss.backward()
    optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(data[0])})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class TimedFedAvg(FedAvg):
    """Flower's, and how long each round takes: from choosing the clients to the averaged θ."""

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
            raise RuntimeError(f"round {server_round}: no client has answered")
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
