"""`make compression`: bytes until a training has 99% of its final P@1, with and without `[compression]`.

    FEDALC_DATA=… python benchmarks/compression.py [bibtex | eurlex15k …]

As in `make reach`, a fifth of train is held out and takes the place of the test set, seed 0, preset `strong`. All rows
of a training run in the same code: "before" has compression off. The target is 99% of the P@1 that "before" has after
its last round.

Writes docs/results/compression.md and compression.json. Finished rows are stored in runs/compression.jsonl: after an
interruption the same command continues.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from finished_rows import Memory, Outcome
from reach import NEAR, Curve, first, held_out, point

import fedalc
from fedalc.core.atomic_files import write_text

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "results" / "compression"
BEFORE = "before"
ROUNDS = 20
WAYS: dict[str, dict[str, Any]] = {
    BEFORE: {},
    "int8": {"rows": "own", "up": "int8", "down": "int8"},
    "exact": {"rows": "own"},
    "bfloat16": {"rows": "own", "up": "bfloat16", "down": "bfloat16"},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "fedalc-exact, cg, D = 512": {"method": "fedalc-exact", "rounds": ROUNDS},
    "fedalc-exact, cg, D = C": {"method": "fedalc-exact", "rounds": ROUNDS, "axes": True},
    "fedalc-oneshot, D = C": {"method": "fedalc-oneshot", "axes": True},
}
SETS = {"bibtex": tuple(TRAININGS), "eurlex15k": ("fedalc-exact, cg, D = 512", "fedalc-oneshot, D = C")}
ORDER = (BEFORE, "exact", "bfloat16", "int8")


def trained(data: fedalc.Dataset, training: str, way: str) -> Outcome:
    """Return P@1 after each round."""
    keys = dict(TRAININGS[training])
    if keys.pop("axes", False):
        keys["encoder"] = {"dim": data.label_count}
    compression = dict(WAYS[way])
    if "rounds" not in keys:
        compression.pop("down", None)
    curve = Curve()
    selection = {"every": 1, "validation": 0.0, "test_curve": True, "calibrate": False}
    result = fedalc.train(data=data, callbacks=curve, selection=selection, compression=compression, **keys).result
    last = point(result["rounds_run"], result["metrics"]["P@1"], result)
    return {"points": curve.points or [last], "seconds_per_round": result["seconds_per_round"]}


def clients_of(data: fedalc.Dataset) -> int:
    return int(np.count_nonzero(data.train.labels.getnnz(axis=0)))


def table(rows: Mapping[str, Outcome], clients: int) -> list[str]:
    final = rows[BEFORE]["points"][-1]["P@1"]
    ordered = {way: rows[way] for way in ORDER if way in rows}
    lines = [
        f"| | rounds to {NEAR * final:.2f} | MB up | MB down | all | bytes before / bytes now | kB per client | "
        "P@1 after the last round |",
        "|---" * 8 + "|",
    ]
    whole = 0.0
    for way, outcome in ordered.items():
        reached, last = first(outcome["points"], NEAR * final), outcome["points"][-1]
        end = f"{last['P@1']:.2f} ({last['rounds']})"
        if reached is None:
            lines.append(f"| {way} | not reached | | | | | | {end} |")
            continue
        both = reached["up"] + reached["down"]
        whole = whole or both
        numbers = f"{reached['up'] / 1e6:.4g} | {reached['down'] / 1e6:.3g} | {both / 1e6:.4g}"
        lines.append(
            f"| {way} | {reached['rounds']} | {numbers} | {whole / both:.3g} | {both / clients / 1e3:.4g} | {end} |"
        )
    return lines


def page(memory: Memory) -> None:
    text = (
        "`make compression`: bytes until a training has 99% of the P@1 that it has without compression after its last "
        "round, on a fifth of train, held out; seed 0, preset `strong`, each label a client on a device of its own. "
        "Bytes are those of all clients together, up and down, label collection included. Every party's part is packed "
        'and unpacked as it travels. The ways: "before" sends whole tensors; "exact" is `compression.rows=own`; '
        '"bfloat16" and "int8" also set `compression.up` and `compression.down`. '
        "[What each reveals](../communication.md#fewer-bytes).\n"
    )
    outcomes: dict[str, Any] = {}
    for name, trainings in SETS.items():
        for training in trainings:
            rows = {
                way: memory.known[name, f"{training}, {way}"] for way in WAYS if _known(memory, name, training, way)
            }
            if BEFORE in rows and (name, "clients") in memory.known:
                clients = memory.known[name, "clients"]["clients"]
                text += f"\n## {name}, {training}\n" + "\n".join(table(rows, clients)) + "\n"
                outcomes.setdefault(name, {"clients": clients})[training] = rows
    write_text(OUT.with_suffix(".md"), text)
    write_text(OUT.with_suffix(".json"), json.dumps({"command": "make compression", "datasets": outcomes}) + "\n")


def _known(memory: Memory, name: str, training: str, way: str) -> bool:
    return (name, f"{training}, {way}") in memory.known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(SETS), metavar="DATASET")
    parser.add_argument("--only", default="", help="rows that contain this text")
    memory = Memory(ROOT / "runs" / "compression.jsonl")
    asked = parser.parse_args()
    for name in asked.datasets:
        data = held_out(fedalc.load_dataset(name))
        memory.row(name, "clients", lambda data=data: {"clients": clients_of(data)})
        for training in reversed(SETS[name]):
            for way in WAYS:
                row = f"{training}, {way}"
                if asked.only not in row:
                    continue
                memory.row(name, row, lambda data=data, one=(training, way): trained(data, *one))
                page(memory)


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the datasets bibtex and eurlex15k")
    main()
