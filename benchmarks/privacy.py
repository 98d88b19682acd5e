"""`make privacy`: measure P@1 on Bibtex by ε for both mechanisms.

    FEDALC_DATA=… python benchmarks/privacy.py [CASE …]

CASE is an index into CASES: the command then only makes the runs of these cases and writes no results, so that several
processes can share the work. Without it, writes docs/results/bibtex-privacy.* and docs/images/privacy.png.

Each (setting, method, mechanism, ε) selects from the same number of candidates (GRIDS) by nDCG@5 on the validation
split of seed 0, with the noise of that ε. It then trains on all of train with three seeds and evaluates on the test
set. The number of rounds is fixed in advance. (Selecting by results costs privacy too; no row counts this.) Finished
runs are stored in runs/privacy.jsonl: after an interruption the same command continues.

Two settings: `strong`, the preset, and `fast rows`, where class embeddings move quickly and the loss never reaches
zero, so that without a good server step they collapse and correlations matter.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

import fedalc
from fedalc.core.atomic_files import write_text

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / "runs" / "privacy.jsonl"
OUT = ROOT / "docs" / "results" / "bibtex-privacy"
PICTURE = ROOT / "docs" / "images" / "privacy.png"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, None)  # None: no noise, no clipping
SEEDS = (0, 1, 2)
ROUNDS = 30
SITUATIONS: dict[str, dict[str, Any]] = {
    "strong": {},
    "fast rows": {"client": {"row_learning_rate": 0.3, "margin": 1.0}},
}
# (a) is a sum over instances, so it needs σ; (b) can use any weighting, and `conditional` is the preset's.
GRIDS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("fedalc", "gradients"): [
        {"regularizer": {"weighting": "sigma", "lambda": strength}, "privacy": {"clip": clip}}
        for strength, clip in product((100.0, 1000.0, 10000.0), (1.0, 5.0))
    ],
    ("fedalc", "counts"): [
        {"regularizer": {"weighting": "conditional", "lambda": strength}, "privacy": {"labels_per_instance": m}}
        for strength, m in product((3.0, 10.0, 30.0), (2, 4))
    ],
    ("fedalc-fixed", "gradients"): [
        {"fixed": {"rate": rate}, "privacy": {"clip": clip}} for rate, clip in product((0.1, 1.0, 3.0), (1.0, 5.0))
    ],
    ("fedalc-fixed", "counts"): [
        {"fixed": {"rate": rate}, "privacy": {"labels_per_instance": m}} for rate, m in product((0.1, 1.0, 3.0), (2, 4))
    ],
}
CASES = [
    ("strong", "fedalc", "gradients"), ("strong", "fedalc", "counts"),
    ("fast rows", "fedalc", "gradients"), ("fast rows", "fedalc", "counts"),
    ("strong", "fedalc-fixed", "gradients"), ("strong", "fedalc-fixed", "counts"),
]  # fmt: skip
ROWS = [  # baselines that use no label sets, so there is nothing to protect
    ("strong", "fedavg"), ("strong", "fedaws"), ("strong", "fedavg-fixed"),
    ("fast rows", "fedavg"), ("fast rows", "fedaws"),
]  # fmt: skip


class Memory:
    """Finished runs, one line each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.known = {json.dumps(record["keys"], sort_keys=True): record["outcome"] for record in records}
        self.data = fedalc.load_dataset("bibtex")

    def run(self, keys: dict[str, Any]) -> dict[str, Any]:
        name = json.dumps(keys, sort_keys=True)
        if name not in self.known:
            result = fedalc.train(data=self.data, **keys).result
            chosen = result["selection"]
            outcome = {
                "validation": None if chosen is None else chosen["value"],
                "P@1": None if chosen is not None else result["metrics"]["P@1"],
                "P@3": None if chosen is not None else result["metrics"]["P@3"],
                "P@5": None if chosen is not None else result["metrics"]["P@5"],
                "privacy": result["privacy"],
            }
            with self.path.open("a") as file:
                file.write(json.dumps({"keys": keys, "outcome": outcome}) + "\n")
            self.known[name] = outcome
            print(keys, outcome, flush=True)
        return self.known[name]


def keys_of(situation: str, method: str, changes: dict[str, Any], seed: int, tuning: bool) -> dict[str, Any]:
    selection = {"validation": 0.1, "keep": "last", "refit": False, "every": ROUNDS} if tuning else {"validation": 0.0}
    keys = {"method": method, "seed": seed, "rounds": ROUNDS, "selection": {"metric": "nDCG@5", **selection}}
    for table in (SITUATIONS[situation], changes):
        for section, values in table.items():
            keys[section] = {**keys.get(section, {}), **values}  # type: ignore[dict-item]
    return keys


def private(changes: dict[str, Any], mechanism: str, epsilon: float | None) -> dict[str, Any]:
    if epsilon is None:
        return {section: values for section, values in changes.items() if section != "privacy"}
    asked = {"mechanism": mechanism, "epsilon": epsilon, "noise": "seeded", **changes["privacy"]}
    return {**changes, "privacy": asked}


def cell(memory: Memory, situation: str, method: str, mechanism: str, epsilon: float | None) -> dict[str, Any]:
    grid = [private(changes, mechanism, epsilon) for changes in GRIDS[method, mechanism]]
    tried = [memory.run(keys_of(situation, method, changes, 0, tuning=True))["validation"] for changes in grid]
    best = grid[max(range(len(grid)), key=tried.__getitem__)]
    outcomes = [memory.run(keys_of(situation, method, best, seed, tuning=False)) for seed in SEEDS]
    values = [outcome["P@1"] for outcome in outcomes]
    return {
        "setting": situation, "method": method, "mechanism": mechanism, "epsilon": epsilon,
        "P@1": statistics.mean(values), "spread": statistics.stdev(values),
        "P@3": statistics.mean(o["P@3"] for o in outcomes), "P@5": statistics.mean(o["P@5"] for o in outcomes),
        "chosen": best, "validation_ndcg5": tried, "spent": outcomes[0]["privacy"],
    }  # fmt: skip


def row(memory: Memory, situation: str, method: str) -> dict[str, Any]:
    """Return the result of a baseline; the strength of fedaws is selected from as many settings."""
    grid: list[dict[str, Any]] = [{}]
    if method == "fedaws":
        grid = [{"regularizer": {"lambda": strength}} for strength in (3.0, 10.0, 30.0, 100.0, 200.0, 400.0)]
    tried = [memory.run(keys_of(situation, method, changes, 0, tuning=True))["validation"] for changes in grid]
    best = grid[max(range(len(grid)), key=tried.__getitem__)]
    outcomes = [memory.run(keys_of(situation, method, best, seed, tuning=False)) for seed in SEEDS]
    values = [outcome["P@1"] for outcome in outcomes]
    spread = statistics.stdev(values)
    return {"setting": situation, "method": method, "P@1": statistics.mean(values), "spread": spread, "chosen": best}


def table(cells: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    head = "| setting | method | mechanism | " + " | ".join(f"ε = {e:g}" if e else "ε = ∞" for e in EPSILONS) + " |"
    lines = [head, "|---" * (3 + len(EPSILONS)) + "|"]
    named = {"gradients": "(a) gradients", "counts": "(b) counts"}
    for situation, method, mechanism in CASES:
        of = [c for c in cells if (c["setting"], c["method"], c["mechanism"]) == (situation, method, mechanism)]
        numbers = " | ".join(f"{c['P@1']:.2f} ± {c['spread']:.2f}" for c in of)
        lines.append(f"| {situation} | {method} | {named[mechanism]} | {numbers} |")
    for r in rows:
        numbers = " | ".join([f"{r['P@1']:.2f} ± {r['spread']:.2f}"] * len(EPSILONS))
        lines.append(f"| {r['setting']} | {r['method']} | uses no labels | {numbers} |")
    return "\n".join(lines) + "\n"


def draw(cells: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from fedalc.report.style import BLUE, GREY, ORANGE, VERMILLION

    panels = [("strong", "fedalc"), ("fast rows", "fedalc"), ("strong", "fedalc-fixed")]
    figure, axes = plt.subplots(1, len(panels), figsize=(13, 4.4), layout="constrained", dpi=150)
    places = list(range(len(EPSILONS)))
    for axis, (situation, method) in zip(axes, panels, strict=True):
        for mechanism, colour, marker, name in (
            ("gradients", VERMILLION, "s", "(a) noised gradients (paper)"),
            ("counts", BLUE, "o", "(b) noised counts (ours)"),
        ):
            of = [c for c in cells if (c["setting"], c["method"], c["mechanism"]) == (situation, method, mechanism)]
            beside_each_other = [place + (0.08 if mechanism == "counts" else -0.08) for place in places]
            axis.errorbar(beside_each_other, [c["P@1"] for c in of], yerr=[c["spread"] for c in of], color=colour,
                          marker=marker, capsize=3, label=name)  # fmt: skip
        fixed = method.endswith("-fixed")
        beside = [r for r in rows if r["setting"] == situation and r["method"].endswith("-fixed") == fixed]
        for r, dash, colour in zip(beside, ("--", ":"), (GREY, ORANGE), strict=False):
            axis.axhline(r["P@1"], color=colour, linestyle=dash, label=f"{r['method']} (uses no labels)")
        axis.set_xticks(places, [f"{e:g}" if e else "∞" for e in EPSILONS])
        axis.set_xlabel("ε of the whole run (δ = 10⁻⁵)")
        axis.set_title(f"{method}, {'preset strong' if situation == 'strong' else 'rows that move fast'}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False)
    axes[0].set_ylabel("P@1 on the test set, %")
    figure.savefig(PICTURE)


def main(some: list[int]) -> None:
    memory = Memory(DONE)
    if some:
        for case, epsilon in product((CASES[place] for place in some), EPSILONS):
            cell(memory, *case, epsilon)
        return
    cells = [cell(memory, *case, epsilon) for case in CASES for epsilon in EPSILONS]
    rows = [row(memory, *case) for case in ROWS]
    text = table(cells, rows)
    command = "python benchmarks/privacy.py"
    grids = {f"{method}, {mechanism}": grid for (method, mechanism), grid in GRIDS.items()}
    facts = {"command": command, "rounds": ROUNDS, "delta": 1e-5, "grids": grids, "cells": cells, "no labels": rows}
    write_text(OUT.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    write_text(OUT.with_suffix(".md"), f"`{command}`: P@1 on Bibtex, mean and spread of three seeds\n\n{text}")
    draw(cells, rows)
    print(text)


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the dataset bibtex")
    # Hundreds of runs with seeded noise, which protects nothing: keep them out of the user's own ledger.
    os.environ.setdefault("FEDALC_PRIVACY_LEDGER", str(ROOT / "runs" / "privacy-ledger.jsonl"))
    main([int(place) for place in sys.argv[1:]])
