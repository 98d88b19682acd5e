"""`make tuning`: how the preset `strong` was chosen. Every method gets eight settings and the same data to choose on.

    FEDALC_DATA=… python benchmarks/tuning.py [method …]

Bibtex (two seeds) and eurlex15k (one), 10 % of train held out: the setting with the best nDCG@5 on the held-out part,
at its best round, mean over both datasets, is the preset's: one for all datasets. No test set is looked at. A setting
more than five points behind its method's best on Bibtex is given up, and not run on eurlex15k. Writes
docs/results/tuning.json and .md once all methods are done; what is done is kept in runs/tuning.jsonl, so several
processes may each take some methods.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import fedalc
from fedalc.files import write_text
from fedalc.training import Training

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / "runs" / "tuning.jsonl"
OUT = ROOT / "docs" / "results" / "tuning"
GIVEN_UP = 5.0  # points of nDCG@5 behind the best
Settings = dict[str, dict[str, float | str]]
SEEDS = {"bibtex": (0, 1), "eurlex15k": (0,)}


def grid(**axes: tuple[float | str, ...]) -> list[Settings]:
    """All combinations; an axis is called section__key."""
    settings: list[Settings] = []
    for values in product(*axes.values()):
        one: Settings = {}
        for axis, value in zip(axes, values, strict=True):
            section, key = axis.split("__")
            one.setdefault(section, {})[key] = value
        settings.append(one)
    return settings


RATES = (0.005, 0.01)
GRIDS: dict[str, list[Settings]] = {
    "fedavg": grid(
        server__learning_rate=RATES, server__weight_decay=(0.1, 0.2), client__row_learning_rate=(0.003, 0.03)
    ),
    "fedavg-fixed": grid(server__learning_rate=(0.005, 0.01, 0.02, 0.04), server__weight_decay=(0.1, 0.2)),
    "flag": grid(server__learning_rate=(0.005, 0.01, 0.02, 0.04), server__weight_decay=(0.1, 0.2)),
    "fedmlh": grid(
        server__learning_rate=RATES, server__weight_decay=(0.1, 0.2), server__weights=("uniform", "samples")
    ),
    "fedaws": grid(server__learning_rate=RATES, regularizer__lambda=(3.0, 10.0, 30.0, 100.0)),
    "fedalc": grid(server__learning_rate=RATES, regularizer__lambda=(3.0, 10.0, 30.0, 100.0)),
    "fedalc-fixed": grid(server__learning_rate=RATES, fixed__alpha=(0.1, 0.3), fixed__steps=(10, 30)),
    # Also for fedalc-exact, which comes to the same solution.
    "fedalc-oneshot": grid(server__ridge=(0.25, 0.5, 1.0, 2.0), client__label_power=(0.1, 0.2)),
}


def main(methods: list[str]) -> None:
    DONE.parent.mkdir(exist_ok=True)
    for dataset, seeds in SEEDS.items():
        data = fedalc.load_dataset(dataset)
        for method in methods:
            for changes, seed in product(still_in(method, dataset), seeds):
                asked = {"dataset": dataset, "method": method, "seed": seed, **changes}
                if key(asked) not in known():
                    record = {"asked": asked, "chosen": choose(data, asked)}
                    print(record, flush=True)
                    with DONE.open("a") as file:
                        file.write(json.dumps(record) + "\n")
    if not all(key(asked) in known() for asked in everything()):
        return
    rows: list[dict[str, Any]] = []
    for method, changes in ((method, changes) for method, grid_ in GRIDS.items() for changes in grid_):
        row: dict[str, Any] = {"method": method, "settings": changes}
        for dataset, seeds in SEEDS.items():
            if changes not in still_in(method, dataset):
                row[dataset] = row["mean"] = None
                break
            runs = [known()[key({"dataset": dataset, "method": method, "seed": seed, **changes})] for seed in seeds]
            row[dataset] = statistics.mean(run["value"] for run in runs)
            row[f"{dataset} rounds"] = [run["round"] for run in runs]
        else:
            row["mean"] = statistics.mean(row[dataset] for dataset in SEEDS)
        rows.append(row)
    write(rows)


def still_in(method: str, dataset: str) -> list[Settings]:
    """The settings that are run on this dataset: all on the first, on the next those that are not far behind there."""
    first, settings = next(iter(SEEDS)), GRIDS[method]
    if dataset == first:
        return settings
    asked = [
        [{"dataset": first, "method": method, "seed": seed, **changes} for seed in SEEDS[first]] for changes in settings
    ]
    values = [statistics.mean(known()[key(one)]["value"] for one in runs) for runs in asked]
    return [changes for changes, value in zip(settings, values, strict=True) if value > max(values) - GIVEN_UP]


def key(asked: dict[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)


def known() -> dict[str, dict[str, Any]]:
    records = [json.loads(line) for line in DONE.read_text().splitlines()] if DONE.exists() else []
    return {key(record["asked"]): record["chosen"] for record in records}


def everything() -> Iterator[dict[str, Any]]:
    """One dataset after the other: which settings are run on the second is known once the first is done."""
    for dataset, method in product(SEEDS, GRIDS):
        for changes, seed in product(still_in(method, dataset), SEEDS[dataset]):
            yield {"dataset": dataset, "method": method, "seed": seed, **changes}


def write(rows: list[dict[str, Any]]) -> None:
    command = "python benchmarks/tuning.py"
    facts = {"command": command, "seeds": SEEDS, "runs": rows}
    write_text(OUT.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    lines = [f"`{command}`: nDCG@5 on held-out parts of train, at the best round; the best of each method in bold", ""]
    lines += ["| method | setting | Bibtex | eurlex15k | mean |", "|---|---|---|---|---|"]
    for row in rows:
        mark = "**" if row["mean"] == max(r["mean"] or 0 for r in rows if r["method"] == row["method"]) else ""
        asked = ", ".join(
            f"{s}.{k} = {v if isinstance(v, str) else f'{v:g}'}"
            for s, keys in row["settings"].items()
            for k, v in keys.items()
        )
        shown = ["–" if row[name] is None else f"{row[name]:.2f}" for name in (*SEEDS, "mean")]
        numbers = " | ".join([*shown[:-1], f"{mark}{shown[-1]}{mark}"])
        lines.append(f"| {row['method']} | {asked} | {numbers} |")
    write_text(OUT.with_suffix(".md"), "\n".join(lines) + "\n")
    print("\n".join(lines))


def choose(data: fedalc.Dataset, asked: dict[str, Any]) -> dict[str, Any]:
    """The best round on the held-out part, and how good it was. Stops there: nothing is refitted or tested."""
    training = Training(fedalc.experiment({**asked, "selection": {"refit": False}}), data, None, ())
    training.run()
    assert training.chosen is not None
    return {"round": training.chosen["round"], "value": training.chosen["value"]}


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the datasets bibtex and eurlex15k")
    main(sys.argv[1:] or list(GRIDS))
