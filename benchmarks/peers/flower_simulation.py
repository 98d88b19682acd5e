"""Flower's simulation with its Ray backend, and the same apps in one process without Ray.

Ray listens on the loopback address only and has no dashboard. Tuned by hand: one worker per core with one thread each
(one worker with all threads was slower), and the module is kept between messages. As in Flower's examples: two cores
per client, the default, and a new module for each message.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without this, Ray resolves 127.0.0.1 to the machine's own address and listens on all addresses.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
FOLDER = Path(tempfile.mkdtemp(prefix="f"))  # short, because the length of socket paths is limited
os.environ.update(OFFLINE, FLWR_HOME=str(FOLDER))  # before Flower is imported

from flwr.app import Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from peers.flower_apps import client_app, example_app, server_app  # noqa: E402
from peers.job import Job  # noqa: E402
from peers.measured import Measured  # noqa: E402

CORES = os.cpu_count() or 1
WORKERS = CORES


class LocalGrid(Grid):
    """Calls the client app instead of sending a message; nothing is copied or serialized."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self.app = app
        self.contexts = {
            node: Context(1, node, {"partition-id": node - 1, "num-partitions": nodes}, RecordDict(), {})
            for node in range(1, nodes + 1)
        }
        # Each message carries the identity of its task, which Flower's own processes set when they start.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            replies.append(self.app(message, self.contexts[message.metadata.dst_node_id]))
        return replies

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **keys: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def run_in_process(path: Path, rounds: int) -> Measured:
    measured = Measured()
    grid = LocalGrid(client_app, len(Job.load(path).rows))
    server_app(path, rounds, measured)(grid, Context(1, 0, {}, RecordDict(), {}))
    return measured


def run_with_ray(path: Path, rounds: int) -> Measured:
    os.environ["OMP_NUM_THREADS"] = str(CORES // WORKERS)  # the workers inherit it
    return _run_with_ray(path, rounds, client_app, {"num_cpus": CORES / WORKERS, "num_gpus": 0.0})


def run_as_in_examples(path: Path, rounds: int) -> Measured:
    return _run_with_ray(path, rounds, example_app, {"num_cpus": 2, "num_gpus": 0.0})


def _run_with_ray(path: Path, rounds: int, app: ClientApp, resources: dict[str, float]) -> Measured:
    from flwr.simulation import run_simulation

    measured = Measured()
    ray = {"num_cpus": CORES, "include_dashboard": False, "_node_ip_address": "127.0.0.1", "_temp_dir": str(FOLDER)}
    run_simulation(
        server_app(path, rounds, measured),
        app,
        num_supernodes=len(Job.load(path).rows),
        backend_config={"init_args": ray, "client_resources": resources},
    )
    return measured
