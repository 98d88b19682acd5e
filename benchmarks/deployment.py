"""Compare bytes on the wire with the ledger, and measure the server's memory with 3, 10 and 100 parties.

The server (TLS, node authentication) and its ServerApp process are real. The parties are threads of this process that
speak Flower's protocol and run the real client app: a hundred SuperNodes would need more memory than most machines
have, and we measure only the server and the wire. Each party connects through a proxy that counts bytes.

    python benchmarks/deployment.py [--parties 3,10,100] [--rounds 4] [--out benchmarks/deployment.json]
"""

from __future__ import annotations

import argparse
import json
import logging
import selectors
import socket
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).with_suffix(".json")
ASK_EVERY = 3.0  # seconds, like a SuperNode


class CountingProxy(threading.Thread):
    """Forwards bytes and counts them: `up` to the server, `down` to the party."""

    def __init__(self, server_port: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.server_port = server_port
        self.up = self.down = 0

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections. Open ones end when their sockets close."""
        self.listener.shutdown(socket.SHUT_RDWR)  # close() alone does not wake the accepting thread
        self.listener.close()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.server_port)) as server:
            watch = selectors.DefaultSelector()
            watch.register(client, selectors.EVENT_READ, (server, "up"))
            watch.register(server, selectors.EVENT_READ, (client, "down"))
            while True:
                for key, _ in watch.select():
                    other, way = key.data
                    try:
                        data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                        if data:
                            other.sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
                    setattr(self, way, getattr(self, way) + len(data))


class Node(threading.Thread):
    """A party without a SuperNode: it fetches messages, answers with the real client app, and sends the replies."""

    at_work = threading.Lock()  # one app at a time: the machine is small

    def __init__(self, address: str, certificate: Path, key: Path, config: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.address, self.certificate, self.key, self.config = address, certificate, key, config
        self.connected, self.stopped = threading.Event(), threading.Event()

    def run(self) -> None:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supernode.fleet_http_connection import http_request_response

        private = load_ssh_private_key(self.key.read_bytes(), None)
        with http_request_response(
            self.address, False, self.certificate.read_bytes(), (private, private.public_key())
        ) as connection:
            self.connected.set()
            while not self.stopped.wait(ASK_EVERY):
                self._work(connection)

    def _work(self, connection: Any) -> None:
        from flwr.app import Context, RecordDict
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            iterate_object_tree,
        )
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects

        from fedalc.deployment.flower.client_app import app

        node, receive, send, _, _, pull, push, confirm = connection
        received = receive()
        if received is None:
            return
        head, tree = received
        run, number = head.metadata.run_id, head.metadata.message_id
        with self.at_work:
            parts = pull_objects([part.object_id for part in iterate_object_tree(tree)], partial(pull, run))
            confirm(run, number)
            message = inflate_object_from_contents(number, parts)
            message.metadata.__dict__["_message_id"] = number
            del parts
            reply = app(message, Context(run, node, self.config, RecordDict(), {}))
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.1)
            push_objects(get_all_nested_objects(reply), partial(push, run, session), object_ids_to_push=wanted)


def measure(parties: int, rounds: int, method: str, dataset: str) -> dict[str, Any]:
    from fedalc.data import load_dataset
    from fedalc.deployment.certificates import Certificates, make_certificates
    from fedalc.deployment.local import write_party
    from fedalc.deployment.node_keys import make_node_key
    from fedalc.deployment.processes import free_port
    from fedalc.deployment.server import Server
    from fedalc.deployment.state import ServerState
    from fedalc.deployment.submission import listen, submit
    from fedalc.labels.collection.keys import Key

    data = load_dataset(dataset)
    held = np.flatnonzero(data.train.labels.getnnz(axis=0))
    shares = [labels for labels in np.array_split(held, parties) if len(labels)]
    with tempfile.TemporaryDirectory() as made, ExitStack() as ends:
        place = Path(made)
        make_certificates(place / "certificates", ["127.0.0.1"], 2)
        Key.fresh().write(place / "parties.key")
        state = ServerState(place / "state")
        server = Server(state, Certificates(place / "certificates"), "127.0.0.1", free_port())
        process = ends.enter_context(server.running())
        nodes, proxies = [], []
        for number, labels in enumerate(shares):
            names = [data.label_names[label] for label in labels]
            folder = write_party(place / f"party {number}", data.train, labels, names)
            key = place / f"node {number}"
            state.flower.register(make_node_key(key))
            proxies.append(CountingProxy(server.port))
            proxies[-1].start()
            ends.callback(proxies[-1].close)
            config = {"data": str(folder), "key": str(place / "parties.key"), "client": f"party {number}"}
            nodes.append(Node(f"127.0.0.1:{proxies[-1].port}", server.certificates.authority, key, config))
            nodes[-1].start()
            nodes[-1].connected.wait(60)
            ends.callback(nodes[-1].stopped.set)
        times: list[float] = []

        def say(line: str) -> None:
            print("   ", line, flush=True)
            if " of " in line and ": loss" in line:
                times.append(time.monotonic())

        folder = place / "run"
        settings = {
            "run-folder": str(folder), "method": method, "num-server-rounds": rounds, "num-parties": len(shares),
            "min-parties": len(shares), "held-out-share": 0.0, "wait": 120.0, "round-timeout": 1200.0,
        }  # fmt: skip
        before = sum(proxy.down for proxy in proxies), sum(proxy.up for proxy in proxies)
        listen(state, submit(state, settings), folder, say)
        result = json.loads((folder / "result.json").read_text())
        # The whole run: introductions, label collection, rounds, and polling for work every 3 seconds.
        turns = rounds * len(shares)
        down = (sum(proxy.down for proxy in proxies) - before[0]) / turns
        up = (sum(proxy.up for proxy in proxies) - before[1]) / turns
        ledger_down, ledger_up = result["bytes_down"] / turns, result["bytes_up"] / turns
        return {
            "dataset": dataset, "method": method, "parties": len(shares), "labels": len(held), "rounds": rounds,
            "ledger_down": ledger_down, "ledger_up": ledger_up, "wire_down": down, "wire_up": up,
            "overhead_down": down / ledger_down - 1, "overhead_up": up / ledger_up - 1,
            "seconds_per_round": (times[-1] - times[0]) / (len(times) - 1),
            "server_app_mb": result["peak_memory_mb"], "server_mb": peak_memory_mb(process.pid),
        }  # fmt: skip


def peak_memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of KB (1000 bytes) per party and round; in brackets the overhead over the ledger."""
    lines = [
        "| parties | to a party, KB | from a party, KB | s per round | ServerApp, MB | SuperLink, MB |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        down = f"{row['wire_down'] / 1000:,.1f} ({row['overhead_down']:+.1%})"
        up = f"{row['wire_up'] / 1000:,.1f} ({row['overhead_up']:+.1%})"
        memory = f"{row['server_app_mb']:,.0f} | {row['server_mb']:,.0f}"
        lines.append(f"| {row['parties']} | {down} | {up} | {row['seconds_per_round']:.1f} | {memory} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", default="3,10,100")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--method", default="fedalc")
    parser.add_argument("--dataset", default="bibtex")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    rows = []
    for parties in map(int, asked.parties.split(",")):
        print(f"{parties} parties", flush=True)
        rows.append(measure(parties, asked.rounds, asked.method, asked.dataset))
        print(json.dumps(rows[-1], indent=1))
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
