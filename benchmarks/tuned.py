"""`make tuned`: compare fedalc's default, single settings and centralised packages on ten datasets, in one run.

    FEDALC_DATA=… python benchmarks/tuned.py [DATASET …] [--cost]

For each dataset (benchmarks/problems.py): `fedalc.train(dataset=…)` as a new user calls it, the same with `tune=False`,
each loss with its first penalty, and the packages omikuji and napkinXC with their own defaults, on the same records.
Each row uses the test set once, at its end, and nothing is chosen by it. `--cost` adds two tables on eurlex15k: seconds
beside the packages, and the rounds and bytes that each method needs to reach their quality.

Writes docs/results/tuned.md and tuned.json. Finished rows are stored in runs/tuned.jsonl: after an interruption the
same command continues. Needs the extra `peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from finished_rows import Memory, Outcome
from problems import PROBLEMS

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.core.seeds import numpy_generator
from fedalc.training.tuning import FIRST_PENALTY, Loss, Trial

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / "runs" / "tuned.jsonl"
OUT = ROOT / "docs" / "results" / "tuned"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5")
BEHIND = 0.3  # points by which the default may stay behind the better package
PEERS = ("omikuji", "napkinxc")
DEFAULT, FIXED, GAP = "default", "default, tune=False", "default minus better package"
TO_THE_END = 25  # rounds of the single losses that are not solved in one
SHARE = 0.2  # of train, held out for the table of rounds and bytes


def single(loss: Loss) -> dict[str, Any]:
    """Return the settings of one loss with its first penalty, which the search would start from."""
    features: dict[str, str | float] = {"name": "linear"} if loss == "square" else {"name": "linear", "constant": 1.0}
    rounds, power = (1, 0.2) if loss == "square" else (TO_THE_END, 0.0)
    changes = Trial(loss=loss, features=features, penalty=FIRST_PENALTY[loss], rounds=rounds, label_power=power).changes
    return {**changes, "selection": {"validation": 0.0}}


ROWS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    FIXED: {"tune": False},
    **{f"{loss}, penalty {penalty:g}": single(loss) for loss, penalty in FIRST_PENALTY.items()},
    **{peer: {"method": peer} for peer in PEERS},
}


@cache
def problem(name: str) -> fedalc.Dataset:
    return PROBLEMS[name]()


def with_axes(keys: Mapping[str, Any], data: fedalc.Dataset) -> dict[str, Any]:
    """Return the settings with an axis for each label, if they are those of a single loss."""
    if "encoder" not in keys:
        return dict(keys)
    return {**keys, "encoder": {**keys["encoder"], "dim": data.label_count}}


def measured(data: fedalc.Dataset, keys: Mapping[str, Any]) -> Outcome:
    """Train and test once. `seconds` are those of training, the search and the test; `processor` counts all threads."""
    began, used = time.perf_counter(), time.process_time()
    run = fedalc.train(data=data, **with_axes(keys, data))
    outcome: Outcome = {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}
    outcome |= {"metrics": {name: run.metrics[name] for name in METRICS}}
    tuning = run.result["tuning"]
    if tuning is not None:
        tried = [{name: trial[name] for name in TRIED} for trial in tuning["tried"]]
        outcome |= {"chosen": chosen(tuning["chosen"]), "value": tuning["value"], "tried": tried}
    return outcome


TRIED = ("loss", "features", "penalty", "value", "rounds", "label_power", "also", "seconds")


def chosen(changes: Mapping[str, Any]) -> str:
    client, server = changes["client"], changes["server"]
    features = "" if changes["encoder"]["name"] == "linear" else f", {changes['encoder']['name']}"
    more = f"power {client['label_power']:g}" if client["loss"] == "square" else f"{changes['rounds']} rounds"
    return f"{client['loss']}{features}, penalty {server['ridge']:g}, {more}"


# --- the table of quality ---


def rows_of(memory: Memory, name: str) -> dict[str, Outcome]:
    """Return all rows of a dataset, trained now or earlier."""
    return {row: memory.row(name, row, lambda keys=keys: measured(problem(name), keys)) for row, keys in ROWS.items()}


def gaps(rows: Mapping[str, Outcome]) -> dict[str, float]:
    """Return by how many points the default is above the better of the two packages."""
    better = {metric: max(rows[peer]["metrics"][metric] for peer in PEERS) for metric in METRICS}
    return {metric: rows[DEFAULT]["metrics"][metric] - better[metric] for metric in METRICS}


def quality_table(rows: Mapping[str, Outcome]) -> str:
    lines = [f"| | {' | '.join(METRICS)} | processor seconds | the search chose |", "|---" * (3 + len(METRICS)) + "|"]
    for row, outcome in rows.items():
        values = " | ".join(f"{outcome['metrics'][metric]:.2f}" for metric in METRICS)
        lines.append(f"| {row} | {values} | {outcome['processor']:.1f} | {outcome.get('chosen', '')} |")
    gap = gaps(rows)
    verdict = "within" if min(gap.values()) >= -BEHIND else "**not within**"
    values = " | ".join(f"{gap[metric]:+.2f}" for metric in METRICS)
    return "\n".join([*lines, f"| {GAP} | {values} | | {verdict} -{BEHIND} |"]) + "\n"


def shape(data: fedalc.Dataset) -> str:
    per_record = data.train.labels.nnz / len(data.train)
    return (
        f"{len(data.train)} / {len(data.test)} records, {data.feature_count} features, {data.label_count} labels, "
        f"{per_record:.2f} per record"
    )


# --- what it costs ---


def seconds_beside_packages(memory: Memory) -> str:
    """Return a table of the default's seconds on eurlex15k, training and prediction, beside those of the packages."""
    rows = rows_of(memory, "eurlex15k")
    lines = ["| | seconds | processor seconds | default: times as long |", "|---|---|---|---|"]
    for row in (DEFAULT, FIXED, *PEERS):
        outcome = rows[row]
        ratio = rows[DEFAULT]["processor"] / outcome["processor"]
        lines.append(f"| {row} | {outcome['seconds']:.1f} | {outcome['processor']:.1f} | {ratio:.1f} |")
    return "\n".join(lines) + "\n"


#: With 512 dimensions, as the methods of the paper have them; the exact ones with an axis for each label.
NEWTON: dict[str, Any] = {**single("squared-hinge"), "rounds": TO_THE_END}
COSTS: dict[str, dict[str, Any]] = {
    "fedavg-fixed": {"method": "fedavg-fixed", "rounds": 200, "selection": {"every": 10}},
    "fedalc-exact, cg": {"method": "fedalc-exact", "rounds": 40, "encoder": {"name": "linear"}},
    "fedalc-exact, newton": NEWTON,
    "fedalc-oneshot": single("square"),
    "the search, then what it chose": {},
}


class Curve(fedalc.Callback):
    """Collects the evaluated rounds."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def evaluated(self, record: dict[str, Any]) -> None:
        self.records.append(record)


def held_out(data: fedalc.Dataset) -> fedalc.Dataset:
    """Return the training data in two parts; the second takes the place of the test set, which stays unused."""
    order = numpy_generator(0, "tuned").permutation(len(data.train))
    size = round(SHARE * len(order))
    train, test = data.train.rows(np.sort(order[size:])), data.train.rows(np.sort(order[:size]))
    return fedalc.Dataset(data.name, train, test, data.label_names)


def cost_of(data: fedalc.Dataset, keys: Mapping[str, Any], target: float) -> Outcome:
    """Return the rounds and bytes until P@1 on the held-out records reaches the target, or those of the whole run."""
    keys, curve = with_axes(keys, data), Curve()
    if keys:
        keys["selection"] = {"every": 1, **keys.get("selection", {}), "validation": 0.0, "test_curve": True}
    result = fedalc.train(data=data, callbacks=curve, **keys).result
    last = {"round": result["rounds_run"], "P@1": result["metrics"]["P@1"]}
    last |= {name: result[name] for name in ("bytes_up", "bytes_down")}  # those of the search included
    if (tuning := result["tuning"]) is not None:
        last["round"] += rounds_of(tuning["tried"])
    curves = [{**record, "P@1": value} for record in curve.records if (value := _p1(record)) is not None]
    reached = next((record for record in curves if record["P@1"] >= target), last) if keys else last
    outcome = {name: reached[name] for name in ("round", "P@1", "bytes_up", "bytes_down")}
    return outcome | {"reached": outcome["P@1"] >= target, "best": max(r["P@1"] for r in [*curves, last])}


def rounds_of(tried: Sequence[Mapping[str, Any]]) -> int:
    """Return the rounds of a search if its splits of train run at the same time: one for each kind of features that the
    square loss was tried with, and as many as each Newton training was judged after."""
    square = {json.dumps(trial["features"]) for trial in tried if trial["loss"] == "square"}
    newton = [trial["also"] for trial in tried if trial["loss"] != "square"]
    return len(square) + sum(max(int(name.removeprefix("rounds ")) for name in also) for also in newton)


def _p1(record: Mapping[str, Any]) -> float | None:
    return next((value for name, value in record["metrics"].items() if name.endswith("P@1")), None)


def cost_table(memory: Memory, name: str = "eurlex15k") -> str:
    """Return a table of rounds and bytes to reach the P@1 of the better package, on held-out training records."""
    key = f"{name}, held out"
    peers = {p: memory.row(key, p, lambda p=p: measured(held_out(problem(name)), ROWS[p])) for p in PEERS}
    target = max(outcome["metrics"]["P@1"] for outcome in peers.values())
    lines = [
        f"P@1 to reach: {target:.2f}\n",
        "| | reached | rounds | MB up | MB down | P@1 then | best P@1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, keys in COSTS.items():
        o = memory.row(key, row, lambda keys=keys: cost_of(held_out(problem(name)), keys, target))
        traffic = " | ".join(f"{o[way] / 1e6:.0f}" for way in ("bytes_up", "bytes_down"))
        reached = "yes" if o["reached"] else "no"
        lines.append(f"| {row} | {reached} | {o['round']} | {traffic} | {o['P@1']:.2f} | {o['best']:.2f} |")
    return "\n".join(lines) + "\n"


def page(memory: Memory, names: Sequence[str], cost: bool) -> None:
    """Write what is finished."""
    finished = {name: rows_of(memory, name) for name in names if all((name, row) in memory.known for row in ROWS)}
    text = "`make tuned`: fedalc's default, single settings and centralised packages on the same records, seed 0, one "
    text += "thread. Test figures, in percent; nothing was chosen by them.\n"
    if missing := [name for name in names if name not in finished]:
        text += f"\nNot measured yet: {', '.join(missing)}.\n"
    for name, rows in finished.items():
        what = (PROBLEMS[name].__doc__ or "").strip()
        text += f"\n## {name}\n{what + ' ' if what else ''}{shape(problem(name))}.\n\n{quality_table(rows)}"
    if cost:
        text += f"\n## Seconds on eurlex15k\nTraining, the search and the test.\n\n{seconds_beside_packages(memory)}"
        text += "\n## Rounds and bytes to reach the better package on eurlex15k\nOn a fifth of train, held out. "
        text += "The search counts with all its trials.\n\n" + cost_table(memory)
    small = {name: {**rows, GAP: gaps(rows)} for name, rows in finished.items()}
    write_text(OUT.with_suffix(".md"), text)
    write_text(OUT.with_suffix(".json"), json.dumps({"command": "make tuned", "datasets": small}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(PROBLEMS), metavar="DATASET")
    parser.add_argument("--cost", action="store_true")
    asked = parser.parse_args()
    memory = Memory(DONE)
    for name in asked.datasets:
        print(quality_table(rows_of(memory, name)), flush=True)
        page(memory, list(PROBLEMS), cost=False)
    page(memory, list(PROBLEMS), asked.cost)


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the datasets bibtex, eurlex15k, eurlex57k, reuters21578 and yso")
    main()
