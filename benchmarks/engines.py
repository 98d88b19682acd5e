"""`make bench`: the engines side by side in one run, and the fused round against what the machine can do.

Prints, for Bibtex and eurlex15k with the mlp: seconds per round of `fused` and `clients` and their ratio, the fused
round's GFLOP/s over this machine's measured matrix-multiply peak, and each engine's peak memory. Every measurement is a
process of its own, so that memory is its own too. Writes benchmarks/engines.json.

    FEDALC_DATA=… python benchmarks/engines.py
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DATASETS = ("bibtex", "eurlex15k")
TARGETS = {"bibtex": 4.0, "eurlex15k": 15.0}  # fused over clients
PEAK_TARGET = 0.6
SAMPLED_CLIENTS = {"eurlex15k": 200}  # a sample stands for the `clients` side, scaled; marked *
OUT = Path(__file__).with_name("engines.json")


def training(dataset: str, engine: str) -> Any:
    from fedalc.data import Split, load_dataset
    from fedalc.encoders import scale_rows
    from fedalc.federated import knowledge_for, simulated
    from fedalc.resolution import experiment

    settings = experiment({"engine": engine, "method": "fedalc", "encoder": {"name": "mlp", "dropout": 0.0}})
    train = load_dataset(dataset).train
    scaled = Split(scale_rows(train.features, "unit"), train.labels)
    return simulated(settings, scaled, knowledge_for(settings, train))


def peak_gflops() -> float:
    """The best of several square multiplications in float32: what the machine does when nothing else is in the way."""
    import torch

    best = 0.0
    for size in (1024, 2048, 4096):
        a, b = torch.randn(size, size), torch.randn(size, size)
        out = a @ b
        for _ in range(5):
            began = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


def copy_gbps() -> float:
    import torch

    a = torch.randn(50_000_000)
    b = a.clone()
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        b.copy_(a)
        best = max(best, 2 * a.numel() * 4 / (time.perf_counter() - began) / 1e9)
    return best


def flops_per_round(federated: Any) -> float:
    """Multiplications and additions of one fused round.

    Dense layers three times (forward, and both gradients), the sparse layer twice (forward, gradient), and per
    (instance, label) pair the score, the pull and the row's gradient.
    """
    federation, encoder = federated.federation, federated.model.encoder
    held = federation.labels.getnnz(axis=1) > 0
    dense = 6 * held.sum() * sum(layer.weight.numel() for layer in encoder.layers)
    sparse = 4 * federation.features[held].nnz * encoder.embedding.shape[1]
    pairs = 6 * federation.labels.nnz * federated.model.W.shape[1]
    return float(dense + sparse + pairs)


def measure(dataset: str, engine: str) -> dict[str, Any]:
    federated = training(dataset, engine)
    start_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if engine == "clients" and dataset in SAMPLED_CLIENTS:
        import numpy as np

        from fedalc.encoders import Chance

        chance = Chance(federated.settings, 1, federated.model.W)
        clients, held = federated.federation.clients, federated.federation.counts
        chosen = np.sort(np.random.default_rng(0).choice(clients, SAMPLED_CLIENTS[dataset], replace=False))
        federated.engine.run(federated.model, chosen[:5], chance, 1)
        began = time.perf_counter()
        federated.engine.run(federated.model, chosen, chance, 1)
        # A client costs something for itself and something for its instances: the note sets the sample's mean size
        # beside that of all, so that nobody takes a lucky draw for the truth.
        seconds = (time.perf_counter() - began) * len(clients) / len(chosen)
        sizes = f"mean size {held[chosen].mean():.1f}, of all {held[clients].mean():.1f}"
        note = f"{len(chosen)} of {len(clients)} clients, scaled ({sizes})"
        times = [seconds]
    else:
        federated.run_round()  # the first one builds what is kept
        times = []
        for _ in range(2 if engine == "clients" else 5):
            began = time.perf_counter()
            federated.run_round()
            times.append(time.perf_counter() - began)
        note = ""
    return {
        "dataset": dataset,
        "engine": engine,
        "seconds_per_round": statistics.median(times),
        "note": note,
        "gflop_per_round": flops_per_round(federated) / 1e9,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_before_training_mb": start_memory,
    }


def main() -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=150)
    if not os.environ.get("FEDALC_DATA"):
        console.print("FEDALC_DATA is not set: the benchmark needs the datasets bibtex and eurlex15k")
        return 2

    def child(*arguments: str) -> Any:
        command = [sys.executable, __file__, *arguments]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    machine = child("machine")
    rows = []
    for dataset in DATASETS:
        for engine in ("fused", "clients"):
            with console.status(f"{dataset}, {engine}"):
                rows.append(child(dataset, engine))
    # The peak again: on a shared machine it may have moved meanwhile, and the better of the two is the harder to reach.
    again = child("machine")
    machine = {key: max(machine[key], again[key]) for key in machine}

    table = Table(title=f"mlp, one round of fedalc; matrix-multiply peak {machine['peak_gflops']:.0f} GFLOP/s")
    for column in ("dataset", "engine", "s/round", "ratio", "target", "GFLOP/s", "of peak", "target", "peak memory MB"):
        table.add_column(column, justify="left" if column in ("dataset", "engine") else "right")
    good = True
    for fused, clients in zip(rows[::2], rows[1::2], strict=True):
        speed = fused["gflop_per_round"] / fused["seconds_per_round"]
        fused["gflops"], fused["of_peak"] = speed, speed / machine["peak_gflops"]
        fused["faster_than_clients"] = clients["seconds_per_round"] / fused["seconds_per_round"]
        target = TARGETS[fused["dataset"]]
        good &= fused["faster_than_clients"] >= target and fused["of_peak"] >= PEAK_TARGET
        table.add_row(
            fused["dataset"], "fused", f"{fused['seconds_per_round']:.3f}", f"{fused['faster_than_clients']:.1f}×",
            f"≥ {target:.0f}×", f"{speed:.0f}", f"{fused['of_peak']:.2f}", f"≥ {PEAK_TARGET}",
            f"{fused['memory_mb']:.0f}",
        )  # fmt: skip
        mark = "*" if clients["note"] else ""
        table.add_row(
            clients["dataset"], "clients", f"{clients['seconds_per_round']:.3f}{mark}", "1×", "", "", "", "",
            f"{clients['memory_mb']:.0f}",
        )  # fmt: skip
    console.print(table)
    for row in rows:
        if row["note"]:
            console.print(f"* {row['dataset']}: {row['note']}")
    console.print("all targets met" if good else "[red]a target is missed[/red]")
    command = "FEDALC_DATA=… make bench"
    OUT.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["machine"]:
        facts = {"peak_gflops": peak_gflops(), "copy_gbps": copy_gbps(), "cores": float(os.cpu_count() or 0)}
        print(json.dumps(facts))
    elif len(sys.argv) == 3:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        sys.exit(main())
