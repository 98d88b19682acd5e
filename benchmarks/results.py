"""`make results`: the tables of README and docs/reproduction.md, from scratch, into docs/results/.

    FEDALC_DATA=… python benchmarks/results.py [JOB …] [--methods a,b] [--seeds 0,1]

With --methods or --seeds only those runs are made, and no table: so that several processes can share the work.

Runs go to runs/results/ and are kept: after an interruption the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedalc
from fedalc.config import FEDERATED as METHODS
from fedalc.files import write_text
from fedalc.report.tables import markdown_table
from fedalc.runs import train_or_continue

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "results"
OUT = ROOT / "docs" / "results"
SEEDS = (0, 1, 2, 3, 4)
EXACT = ("fedalc-exact", "fedalc-oneshot")
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


def side_by_side(
    name: str, dataset: str, only: Mapping[str, Any], methods: Sequence[str] = METHODS, seeds: Sequence[int] = SEEDS,
    **keys: Any,
) -> None:  # fmt: skip
    """One table: methods on equal terms. `only` says which part of it this process makes."""
    chosen = [method for method in only["methods"] or methods if method in methods]
    some = [seed for seed in only["seeds"] or seeds if seed in seeds]
    done = fedalc.compare(chosen, dataset=dataset, preset="strong", seeds=some, folder=RUNS / name, **keys)
    if only["methods"] or only["seeds"]:
        return
    options = "".join(f" --encoder {value['name']}" for key, value in keys.items() if "name" in value)
    options += "".join(f" --set {s}.{k}={v}" for s, table in keys.items() for k, v in table.items() if k != "name")
    options += "" if tuple(methods) == METHODS else f" --methods {','.join(methods)}"
    command = f"fedalc compare --dataset {dataset} --seeds {','.join(map(str, seeds))}{options}"
    save(name, command, done.results, markdown_table([dict(r) for r in done.results]))
    if tuple(methods) == METHODS:
        shutil.copy(RUNS / name / "bytes.png", ROOT / "docs" / "images" / f"{name}-bytes.png")


def paper_bibtex(only: Mapping[str, Any]) -> None:
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


JOBS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "bibtex-strong": lambda only: side_by_side("bibtex-strong", "bibtex", only),
    "eurlex15k-strong": lambda only: side_by_side("eurlex15k-strong", "eurlex15k", only),
    "eurlex15k-1024": lambda only: side_by_side(
        "eurlex15k-1024", "eurlex15k", only, methods=EXACT[1:], encoder={"dim": 1024}
    ),
    "bibtex-mlp": lambda only: side_by_side(
        "bibtex-mlp", "bibtex", only, methods=EXACT[:1], seeds=(0,), encoder={"name": "mlp"}
    ),
    "eurlex15k-mlp": lambda only: side_by_side(
        "eurlex15k-mlp", "eurlex15k", only, methods=EXACT[:1], seeds=(0,), encoder={"name": "mlp"}
    ),
    "bibtex-paper": paper_bibtex,
}

if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: the results need the datasets bibtex and eurlex15k")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS), metavar="JOB")
    parser.add_argument("--methods", type=lambda text: text.split(","))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    asked = parser.parse_args()
    for job in asked.jobs:
        JOBS[job]({"methods": asked.methods, "seeds": asked.seeds})
