"""`make results`: the tables of README and docs/reproduction.md, from scratch, into docs/results/.

    FEDALC_DATA=… python benchmarks/results.py [bibtex-strong] [eurlex15k-strong] [bibtex-paper]

Runs go to runs/results/ and are kept: after an interruption the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedalc
from fedalc.files import write_text
from fedalc.report.tables import markdown_table
from fedalc.runs import train_or_continue

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "results"
OUT = ROOT / "docs" / "results"
SEEDS = (0, 1, 2)
KEPT = ("dataset", "method", "preset", "rounds", "seed", "metrics", "selection", "collapse", "clients",
        "labels_without_client", "rounds_run", "seconds_per_round", "bytes_up", "bytes_down", "versions")  # fmt: skip

# The paper's Bibtex table, P@1 / P@3 / P@5. FedAvg has no λ.
PAPER_BIBTEX: dict[tuple[str, float | None], tuple[float, float, float]] = {
    ("fedavg", None): (11.6, 9.11, 7.84),
    ("fedaws", 1): (16.42, 11.91, 10.45),
    ("fedaws", 10): (26.79, 18.05, 14.58),
    ("fedaws", 100): (48.31, 30.85, 23.66),
    ("fedaws", 150): (48.42, 30.78, 23.42),
    ("fedaws", 200): (49.22, 30.74, 23.11),
    ("fedaws", 500): (45.65, 28.09, 21.43),
    ("fedalc", 1): (58.72, 35.83, 26.62),
    ("fedalc", 10): (59.67, 36.04, 27.18),
    ("fedalc", 100): (59.31, 34.86, 26.35),
    ("fedalc", 150): (55.16, 33.27, 25.97),
    ("fedalc", 200): (48.68, 29.18, 22.64),
    ("fedalc", 500): (40.15, 24.31, 18.86),
}


def strong(dataset: str) -> None:
    done = fedalc.compare(dataset=dataset, preset="strong", seeds=SEEDS, folder=RUNS / f"{dataset}-strong")
    command = f"fedalc compare --dataset {dataset} --preset strong --seeds {','.join(map(str, SEEDS))}"
    save(f"{dataset}-strong", command, done.results, markdown_table([dict(r) for r in done.results]))


def paper_bibtex() -> None:
    """One row per method and λ. One seed: thirteen rows of 300 rounds take most of an hour on two cores."""
    data = fedalc.load_dataset("bibtex")
    lines = [
        "| method | λ | paper P@1/P@3/P@5 | ours P@1/P@3/P@5 | max cosine | mean cosine |",
        "|---|---|---|---|---|---|",
    ]
    results: list[Mapping[str, Any]] = []
    for (method, strength), published in PAPER_BIBTEX.items():
        keys: dict[str, Any] = {"dataset": "bibtex", "preset": "paper", "method": method, "seed": SEEDS[0]}
        keys |= {"regularizer": {"lambda": strength}} if strength is not None else {}
        folder = RUNS / "bibtex-paper" / f"{method}-{strength or 0:g}"
        run = train_or_continue(fedalc.experiment(keys), folder, data)
        results.append({**run.result, "lambda": strength})
        ours = "/".join(f"{run.metrics[f'P@{k}']:.2f}" for k in (1, 3, 5))
        theirs = "/".join(f"{value:.2f}" for value in published)
        collapse = run.result["collapse"]
        numbers = f"{collapse['max_cosine']:.3f} | {collapse['mean_cosine']:.3f}"
        lines.append(f"| {method} | {'' if strength is None else f'{strength:g}'} | {theirs} | {ours} | {numbers} |")
        print(lines[-1], flush=True)
    command = "fedalc train --dataset bibtex --preset paper --method METHOD --set regularizer.lambda=λ"
    save("bibtex-paper", command, results, "\n".join(lines) + "\n")


def save(name: str, command: str, results: Sequence[Mapping[str, Any]], table: str) -> None:
    small = [{key: result[key] for key in (*KEPT, "lambda") if key in result} for result in results]
    write_text(OUT / f"{name}.json", json.dumps({"command": command, "results": small}, indent=1) + "\n")
    write_text(OUT / f"{name}.md", f"`{command}`\n\n{table}")
    print(table)
    print(f"written to {OUT / name}.json", flush=True)


JOBS = {
    "bibtex-strong": lambda: strong("bibtex"),
    "eurlex15k-strong": lambda: strong("eurlex15k"),
    "bibtex-paper": paper_bibtex,
}

if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: the results need the datasets bibtex and eurlex15k")
    for job in sys.argv[1:] or JOBS:
        JOBS[job]()
