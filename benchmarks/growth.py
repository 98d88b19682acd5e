"""`make bench-growth`: measure how the cost of a round, the server's step and an evaluation grows with the problem.

Varies one of instances, labels, features and clients per round at a time; the others stay as in `BASE`. Each point runs
in a separate process with one thread. Seconds are CPU seconds, so other load on the machine hardly affects them.
Writes benchmarks/growth.json and docs/images/growth.png.

    python benchmarks/growth.py
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timing import timed

BASE = {"instances": 8000, "labels": 2000, "features": 20_000, "clients": 2000}
VARIED = {
    "instances": (2000, 4000, 8000, 16_000, 32_000),
    "labels": (500, 2000, 8000, 32_000),
    "features": (5000, 20_000, 80_000, 320_000, 1_280_000),
    "clients": (20, 100, 500, 2000),
}
PER_INSTANCE = {"features": 50, "labels": 3}
STEPS = {
    "round": "round: clients' work and θ",
    "sampled round": "round of 100 clients",
    "server step": "server's step on W (mined, K = 50)",
    "evaluation": "evaluation of 2,000 instances",
}
OUT = Path(__file__).with_name("growth.json")
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "growth.png"


def problem(sizes: dict[str, int]) -> Any:
    """Return random features and labels with a long tail. They suffice to measure cost; there is nothing to learn."""
    import numpy as np
    from scipy.sparse import csr_matrix

    from fedalc.data import Split

    random = np.random.default_rng(0)

    def drawn(columns: int, each: int) -> csr_matrix:
        count = sizes["instances"] * each
        index = np.minimum(columns * random.random(count) ** 2, columns - 1).astype(np.int32)
        if columns <= count:
            index[:columns] = np.arange(columns)  # each at least once
        starts = np.arange(0, count + 1, each)
        matrix = csr_matrix((np.ones(count, np.float32), index, starts), shape=(sizes["instances"], columns))
        matrix.sum_duplicates()
        matrix.data[:] = 1
        return matrix

    return Split(drawn(sizes["features"], PER_INSTANCE["features"]), drawn(sizes["labels"], PER_INSTANCE["labels"]))


def measure(varied: str, size: int) -> dict[str, Any]:
    import numpy as np

    from fedalc.config.resolve import experiment
    from fedalc.evaluation.evaluate import evaluate
    from fedalc.models.encoders import Chance, scale_rows
    from fedalc.training.federated import knowledge_for, simulated

    sizes = BASE | {varied: size}
    split = problem(sizes)
    keys = {"lambda": 10.0, "neighbours": 50, "candidates": "none", "rows": "all", "form": "mined", "search": "exact"}
    settings = experiment({
        "method": "fedalc", "encoder": {"name": "mlp", "dropout": 0.0}, "regularizer": keys,
        "server": {"optimizer": "sgd", "ema": 0.0, "weight_decay": 0.0},
    })  # fmt: skip
    split = type(split)(scale_rows(split.features, "unit"), split.labels)
    training = simulated(settings, split, knowledge_for(settings, split))
    model, engine, clients = training.model, training.engine, training.federation.clients
    drawn = np.random.default_rng(1).permutation(clients)
    taking_part = np.sort(drawn[: sizes["clients"]]) if varied == "clients" else clients
    some = np.sort(drawn[:100])
    chance = Chance(settings, 1, model.W)

    def seconds_of(work: Callable[[], Any], repeat: int = 3) -> float:
        return timed(work, repeat, time.process_time)

    def one_round(who: Any) -> Any:
        result = engine.run(model, who, chance, 1)
        training.server.apply(result.change, result.loss)
        return result

    test = split.rows(slice(0, 2000)) if len(split) > 2000 else split
    step = training.method.server_step
    labels = one_round(some).labels
    seconds = {
        "round": seconds_of(lambda: one_round(taking_part)),
        "sampled round": seconds_of(lambda: one_round(some)),
        "server step": seconds_of(lambda: step(model.W, labels, None), repeat=1),  # type: ignore[arg-type]
        "evaluation": seconds_of(lambda: evaluate(model, test, training.held), repeat=1),
    }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"varied": varied, "size": size, "seconds": seconds, "memory_mb": memory}


def draw(points: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(VARIED), figsize=(15, 4.2), sharey=True)
    for axis, varied in zip(axes, VARIED, strict=True):
        mine = [point for point in points if point["varied"] == varied]
        sizes = [point["size"] for point in mine]
        shown = ("round",) if varied == "clients" else tuple(STEPS)
        for step in shown:
            axis.plot(sizes, [point["seconds"][step] for point in mine], marker="o", label=STEPS[step])
        first = mine[0]["seconds"]["round"]
        axis.plot(sizes, [first * size / sizes[0] for size in sizes], ":", color="grey", label="in proportion")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(sizes, [short(size) for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("clients in a round" if varied == "clients" else varied)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of one core")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncol=5, frameon=False)
    base = ", ".join(f"{value:,} {key}" for key, value in BASE.items() if key != "clients")
    figure.text(0.5, 0.005, f"otherwise {base}, everyone taking part; mlp, fedalc, engine fused", ha="center")
    figure.tight_layout(rect=(0, 0.03, 1, 0.93))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


def short(size: int) -> str:
    for unit, name in ((10**6, "M"), (1000, "k")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return str(size)


def main() -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=130)
    points = []
    for varied, values in VARIED.items():
        for size in values:
            with console.status(f"{varied} = {size:,}"):
                command, one_thread = (
                    [sys.executable, __file__, varied, str(size)],
                    os.environ | {"OMP_NUM_THREADS": "1"},
                )
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=one_thread)
                points.append(json.loads(done.stdout))
    table = Table(title="seconds of one core, as one size grows")
    for column in ("varied", "size", *STEPS, "peak memory MB"):
        table.add_column(column, justify="left" if column == "varied" else "right")
    for point in points:
        seconds = (f"{point['seconds'][step]:.3f}" for step in STEPS)
        table.add_row(point["varied"], f"{point['size']:,}", *seconds, f"{point['memory_mb']:.0f}")
    console.print(table)
    OUT.write_text(json.dumps({"command": "make bench-growth", "base": BASE, "points": points}, indent=1) + "\n")
    draw(points)
    console.print(f"curves: {PICTURE}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
    elif sys.argv[1:] == ["draw"]:
        draw(json.loads(OUT.read_text())["points"])
    else:
        sys.exit(main())
