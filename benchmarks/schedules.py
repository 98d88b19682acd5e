"""`make bench-schedules`: local epochs and minibatches with engine `lockstep` and with the alternatives, in one run.

Jobs: Bibtex, eurlex15k (200 of its clients), and 200 clients with dense inputs; the mlp and a single matrix; one and
five local epochs; full batches and batches of 32 (the 200 clients have fewer instances). All take the same steps in the
same order from the same start, each in a process of its own with one thread. Seconds are processor seconds of a round
after a warm-up round. Writes docs/results/schedules.json and schedules.md after each cell, and goes on where it stopped
(delete the JSON file to measure again); exits with 1 if a target is missed.

    FEDALC_DATA=… .venv-peers/bin/python benchmarks/schedules.py [--clients N] [JOB …]

`--clients`: with the mlp, take that many clients of Bibtex and eurlex15k, of all sizes, instead of 159 and 200.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from engines import difference
from peers.children import Failed, run_child
from peers.job import SAMPLE, Job, dataset_job, dense_job
from peers.schedule_bounds import bounds
from peers.schedule_page import markdown

ROUNDS = {"mlp": 2, "linear": 4}  # the first is a warm-up
JOBS = ("bibtex", "eurlex15k", "dense")
ENCODERS = ("mlp", "linear")
SCHEDULES: tuple[tuple[int, int | None], ...] = ((1, None), (1, 32), (5, None), (5, 32))
ORDER = ("lockstep", "plain", "pfl", "lockstep", "clients", "flower")
TARGETS = {("plain", "mlp"): 1.5, ("plain", "linear"): 5.0, ("pfl", "mlp"): 1.0, ("pfl", "linear"): 1.0}
PAGE = Path(__file__).parents[1] / "docs" / "results" / "schedules.md"
OUT = PAGE.with_suffix(".json")


def make_job(name: str, encoder: str, clients: int | None = None) -> Job:
    if name == "dense":
        return dense_job(encoder)
    job = dataset_job(name, encoder)
    wanted = clients or (SAMPLE if name == "eurlex15k" else len(job.counts))
    return job.sampled(wanted) if wanted < len(job.counts) else job


def measure(way: str, path: Path, rounds: int) -> dict[str, Any]:
    try:
        return run_child("peers", way, str(path), str(rounds))
    except Failed as error:
        return {"failed": str(error)}


def run_cell(name: str, encoder: str, job: Job, folder: Path) -> dict[str, Any]:
    """Measure all ways with one job, encoder and schedule."""
    path = folder / "job.npz"
    job.save(path)
    ways = (*ORDER, "fused") if job.epochs == 1 and job.batch is None else ORDER
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for way in ways:
        found[way].append(measure(way, path, ROUNDS[encoder]))
    rows = {way: row_of(way, runs, found["lockstep"][0], encoder) for way, runs in found.items()}
    ours = rows["lockstep"].get("cpu_seconds")
    for row in rows.values():
        row["ratio"] = row["cpu_seconds"] / ours if ours and "cpu_seconds" in row else None
        row["met"] = row["target"] is None or (row["ratio"] or 0.0) >= row["target"]
    facts = {"job": name, "encoder": encoder, "epochs": job.epochs, "batch": job.batch, "clients": len(job.counts)}
    return {**facts, "instances": int(job.counts.sum()), "bounds": bounds(job), "rows": rows}


def row_of(way: str, runs: list[dict[str, Any]], reference: dict[str, Any], encoder: str) -> dict[str, Any]:
    row: dict[str, Any] = {"target": TARGETS.get((way, encoder))}
    broken = next((one for one in (*runs, reference) if "failed" in one), None)
    if broken:
        return row | {"failed": broken["failed"]}
    return row | {
        "cpu_seconds": statistics.median([s for one in runs for s in one["cpu_seconds"][1:]]),
        "seconds": statistics.median([s for one in runs for s in one["seconds"][1:]]),
        "others": statistics.median([s for one in runs for s in one["others"][1:]]),
        "memory_mb": max(one["memory_mb"] for one in runs),
        "differs_by": difference(runs[-1], reference),
    }


def main(names: list[str], clients: int | None) -> int:
    if not os.environ.get("FEDALC_DATA"):
        print("FEDALC_DATA is not set: the benchmark needs the datasets bibtex and eurlex15k")
        return 2
    os.environ["OMP_NUM_THREADS"] = "1"
    results = json.loads(OUT.read_text()) if OUT.exists() else {"cells": [], "machine": {}}
    done = {(cell["job"], cell["encoder"], cell["epochs"], cell["batch"]) for cell in results["cells"]}
    results |= {
        "command": "FEDALC_DATA=… make bench-schedules" + (f' SCHEDULES="--clients {clients}"' if clients else ""),
        "rounds": ROUNDS,
        "versions": {package: version(package) for package in ("fedalc", "torch", "pfl", "flwr")},
    }
    with tempfile.TemporaryDirectory(prefix="bench-jobs-") as folder:
        for name, encoder in product(names, ENCODERS):
            of_job = SCHEDULES[::2] if name == "dense" else SCHEDULES
            wanted = [one for one in of_job if (name, encoder, *one) not in done]
            job = make_job(name, encoder, clients if encoder == "mlp" else None) if wanted else None
            for epochs, batch in wanted:
                assert job is not None
                machine = run_child("peers.machine")  # again for each cell: it may be shared with other programs
                cell = run_cell(name, encoder, replace(job, epochs=epochs, batch=batch), Path(folder))
                results["machine"] = {key: max(value, results["machine"].get(key, 0)) for key, value in machine.items()}
                results["cells"].append(cell)
                OUT.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
                PAGE.write_text(markdown(results))
                print(
                    name,
                    encoder,
                    epochs,
                    batch,
                    {way: row.get("cpu_seconds") for way, row in cell["rows"].items()},
                    flush=True,
                )
    PAGE.write_text(markdown(results))
    return 0 if all(row["met"] for cell in results["cells"] for row in cell["rows"].values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    arguments = parser.parse_args()
    if unknown := set(arguments.jobs) - set(JOBS):
        parser.error(f"unknown job: {', '.join(sorted(unknown))}. Available: {', '.join(JOBS)}")
    for ending in (signal.SIGINT, signal.SIGTERM):  # both also end the running measurement
        signal.signal(ending, signal.default_int_handler)
    try:
        sys.exit(main(arguments.jobs or list(JOBS), arguments.clients))
    except KeyboardInterrupt:
        sys.exit(130)
