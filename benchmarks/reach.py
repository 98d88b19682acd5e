"""`make reach`: rounds and bytes until each method has the quality of centralised training, as a table and a figure.

    FEDALC_DATA=… python benchmarks/reach.py [bibtex | eurlex15k …]

A fifth of train is held out and takes the place of the test set, which stays unused. The oracle is `ovr`, a ridge
regression per label on all data in one place. Each method trains on the other four fifths with preset `strong`. The
default searches first; its rounds and bytes include the search.

Writes docs/results/reach.md, reach.json and docs/images/reach.png. Finished rows are stored in runs/reach.jsonl: after
an interruption the same command continues.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from finished_rows import Memory, Outcome

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.core.registry import METHODS
from fedalc.core.seeds import numpy_generator

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "results" / "reach"
PICTURE = ROOT / "docs" / "images" / "reach.png"
SHARE, NEAR = 0.2, 0.99  # of train, held out; of the oracle's P@1, "nearly reached"
DEFAULT = "default"
ROUNDS = {"bibtex": 300, "eurlex15k": 100}  # for methods that average changes
ROWS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS if not name.startswith("fedalc-")},
    "fedalc-fixed": {"method": "fedalc-fixed"},
    "fedalc-exact, cg": {"method": "fedalc-exact", "rounds": 40},
    "fedalc-exact, newton": {
        "method": "fedalc-exact",
        "rounds": 25,
        "encoder": {"name": "linear", "constant": 1.0},
        "client": {"loss": "squared-hinge", "label_power": 0.0},
        "server": {"optimizer": "newton", "ridge": 0.5},
    },
    "fedalc-oneshot": {"method": "fedalc-oneshot"},
    DEFAULT: {},
}
LARGE = ("fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedncm", "fed3r")  # of the others: those shown for eurlex15k


class Curve(fedalc.Callback):
    """Collects P@1 on the held-out records, with the rounds and bytes so far."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []

    def evaluated(self, record: dict[str, Any]) -> None:
        if (value := record["metrics"].get("test P@1")) is not None:
            self.points.append(point(record["round"], value, record))


def point(rounds: int, value: float, bill: Mapping[str, Any]) -> dict[str, float]:
    return {"rounds": rounds, "P@1": value, "up": bill["bytes_up"], "down": bill["bytes_down"]}


def held_out(data: fedalc.Dataset) -> fedalc.Dataset:
    """Return the training data in two parts; the second takes the place of the test set."""
    order = numpy_generator(0, "reach").permutation(len(data.train))
    size = round(SHARE * len(order))
    train, test = data.train.rows(np.sort(order[size:])), data.train.rows(np.sort(order[:size]))
    return fedalc.Dataset(data.name, train, test, data.label_names)


def trained(data: fedalc.Dataset, row: str) -> Outcome:
    """Return P@1 after each evaluated round. Of the default: after its search, the whole training."""
    keys = {name: dict(value) if isinstance(value, dict) else value for name, value in ROWS[row].items()}
    if row != DEFAULT:
        keys.setdefault("rounds", ROUNDS[data.name])
        every = 1 if keys["rounds"] <= 50 else 5
        keys["selection"] = {"every": every, "validation": 0.0, "test_curve": True}
        if row in ("fedalc-oneshot", "fedalc-exact, newton"):
            keys["encoder"] = {**keys.get("encoder", {}), "dim": data.label_count}
        if METHODS[keys["method"]].one_round:
            del keys["rounds"]
    curve = Curve()
    result = fedalc.train(data=data, callbacks=curve, **keys).result
    last = point(result["rounds_run"], result["metrics"]["P@1"], result)
    if (tuning := result.get("tuning")) is None:
        return {"points": curve.points or [last]}
    search = point(rounds_of(tuning["tried"]), 0.0, tuning)
    last["rounds"] += search["rounds"]
    return {"points": [last], "search": search, "chosen": tuning["chosen"]}


def rounds_of(tried: Sequence[Mapping[str, Any]]) -> int:
    """Return the rounds of a search if its splits of train run at the same time: one for each kind of features that the
    square loss was solved with, and as many as each other training was judged after."""
    judged = [[int(number) for number in re.findall(r"rounds (\d+)", " ".join(trial["also"]))] for trial in tried]
    solved = {json.dumps(trial["features"]) for trial, rounds in zip(tried, judged, strict=True) if not rounds}
    return len(solved) + sum(max(rounds) for rounds in judged if rounds)


def first(points: Sequence[Mapping[str, float]], target: float) -> Mapping[str, float] | None:
    return next((point for point in points if point["P@1"] >= target), None)


def table(oracle: float, rows: Mapping[str, Outcome]) -> str:
    lines = [
        f"The oracle has P@1 {oracle:.2f} on the held-out records; {NEAR:.0%} of it are {NEAR * oracle:.2f}.\n",
        f"| | rounds to {NEAR:.0%} | GB up | GB down | rounds to 100% | GB up | GB down | best P@1 | after rounds |",
        "|---" * 9 + "|",
    ]
    for row, outcome in rows.items():
        cells = []
        for target in (NEAR * oracle, oracle):
            reached = first(outcome["points"], target)
            cells += (
                ["not reached", "", ""]
                if reached is None
                else [str(reached["rounds"]), f"{reached['up'] / 1e9:.3g}", f"{reached['down'] / 1e9:.3g}"]
            )
        best = max(outcome["points"], key=lambda point: point["P@1"])
        lines.append(f"| {row} | {' | '.join(cells)} | {best['P@1']:.2f} | {best['rounds']} |")
    default = rows[DEFAULT]
    search, whole = default["search"], default["points"][-1]
    share = (search["up"] + search["down"]) / (whole["up"] + whole["down"])
    lines.append(
        f"\nThe search's share of the default: {search['rounds']} of {whole['rounds']} rounds, {share:.1%} of the "
        f"bytes ({(search['up'] + search['down']) / 1e9:.3g} of {(whole['up'] + whole['down']) / 1e9:.3g} GB)."
    )
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, tuple[float, Mapping[str, Outcome]]]) -> None:
    """P@1 against rounds (left) and bytes (right), a row of pictures for each dataset."""
    figure, axes = plt.subplots(len(found), 2, figsize=(11, 4.2 * len(found)), squeeze=False, layout="constrained")
    for (name, (oracle, rows)), (by_rounds, by_bytes) in zip(found.items(), axes, strict=True):
        for row, outcome in rows.items():
            points, number = outcome["points"], list(ROWS).index(row)  # one look per method in all pictures
            look = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--", "label": row}
            look |= {"marker": "o" if len(points) == 1 else None, "markersize": 7 if row != DEFAULT else 11}
            values = [point["P@1"] for point in points]
            by_rounds.plot([point["rounds"] for point in points], values, **look)
            by_bytes.plot([(point["up"] + point["down"]) / 1e9 for point in points], values, **look)
        for axis, what in ((by_rounds, "rounds"), (by_bytes, "GB sent, all clients together")):
            axis.axhline(oracle, color="black", linewidth=0.8, linestyle=":")
            axis.set(xscale="log", xlabel=what, ylabel="P@1 on held-out records", title=name)
            axis.set_ylim(max(0, oracle - 45), oracle + 4)
        where = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom", "fontsize": 8}
        by_rounds.annotate("oracle", (0.99, oracle), **where)
        by_bytes.legend(fontsize=7, loc="lower right", ncols=2)
    figure.savefig(PICTURE, dpi=110)


def page(memory: Memory, names: Sequence[str]) -> None:
    found = {}
    text = "`make reach`: rounds and bytes until each method has the P@1 of centralised ridge regression (`ovr`), on a "
    text += (
        "fifth of train, held out; seed 0, preset `strong`. Bytes are those of all clients together, as if each were "
    )
    text += "a device of its own. The test sets play no part.\n\n![P@1 by rounds and by bytes](../images/reach.png)\n"
    for name in names:
        rows = {row: memory.known[name, row] for row in ROWS if (name, row) in memory.known}
        if (name, "ovr") in memory.known and DEFAULT in rows:
            found[name] = memory.known[name, "ovr"]["P@1"], rows
            text += f"\n## {name}\n{table(*found[name])}"
    if found:
        draw(found)
        write_text(OUT.with_suffix(".md"), text)
        outcomes = {name: {"oracle": oracle, **rows} for name, (oracle, rows) in found.items()}
        write_text(OUT.with_suffix(".json"), json.dumps({"command": "make reach", "datasets": outcomes}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(ROUNDS), metavar="DATASET")
    memory = Memory(ROOT / "runs" / "reach.jsonl")
    for name in parser.parse_args().datasets:
        data = held_out(fedalc.load_dataset(name))
        memory.row(name, "ovr", lambda data=data: fedalc.train(data=data, method="ovr").metrics)
        for row in ROWS:
            if name == "bibtex" or row in LARGE or row.startswith(("fedalc-exact", "fedalc-oneshot", DEFAULT)):
                memory.row(name, row, lambda data=data, row=row: trained(data, row))
        page(memory, list(ROUNDS))


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the datasets bibtex and eurlex15k")
    main()
