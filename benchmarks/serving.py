"""Requests and records per second of `fedalc serve`, with and without batching, over 127.0.0.1.

Trains on the demo data, serves it in this process, and asks with threads that keep their connections. Bounded: a few
hundred requests per row. Prints a table for docs/serving.md.

    python benchmarks/serving.py
"""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fedalc
from fedalc.serving.app import Service
from fedalc.serving.limits import Limits
from fedalc.serving.predictor import RecordPredictor
from fedalc.serving.server import bound, server_of

ROWS = (  # what, threads, requests per thread, records per request, limits
    ("one client, no batching", 1, 200, 1, Limits(window=0, batch=1)),
    ("one client, window 2 ms", 1, 200, 1, Limits()),
    ("16 clients, no batching", 16, 25, 1, Limits(window=0, batch=1)),
    ("16 clients, window 0", 16, 25, 1, Limits(window=0)),
    ("16 clients, window 2 ms", 16, 25, 1, Limits()),
    ("one client, 100 records a request", 1, 40, 100, Limits()),
    ("4 clients, 100 records a request", 4, 20, 100, Limits()),
)


def main() -> None:
    dataset = fedalc.load_dataset("demo")
    predictor = RecordPredictor(fedalc.train(dataset=dataset, tune=False).model)
    predictor.warm_up()
    X = dataset.test.features
    print("| | requests/s | records/s | p50, ms | p99, ms |\n|---|---|---|---|---|")
    for what, threads, requests, records, limits in ROWS:
        body = json.dumps({
            "sparse": [{"indices": x.indices.tolist(), "values": x.data.tolist()} for x in X[:records]]
        }).encode()  # fmt: skip
        service = Service(predictor, "demo", limits, None)
        server = server_of(service, "127.0.0.1", limits)
        with bound("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                began = time.perf_counter()
                with ThreadPoolExecutor(threads) as pool:
                    parts = [pool.submit(ask, port, body, requests) for _ in range(threads)]
                    took = [seconds for part in parts for seconds in part.result()]
                elapsed = time.perf_counter() - began
            finally:
                server.should_exit = True
                thread.join()
        cuts = statistics.quantiles(took, n=100)
        rate = len(took) / elapsed
        print(f"| {what} | {rate:.0f} | {rate * records:.0f} | {1e3 * cuts[49]:.1f} | {1e3 * cuts[98]:.1f} |")


def ask(port: int, body: bytes, requests: int) -> list[float]:
    """Send requests one after another, and return the seconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    took = []
    for _ in range(requests):
        began = time.perf_counter()
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}")
        took.append(time.perf_counter() - began)
    connection.close()
    return took


if __name__ == "__main__":
    main()
