"""`make mlp`: a network with one hidden layer, trained in one place and by positive-only clients, on four datasets.

    FEDALC_DATA=… python benchmarks/mlp.py [DATASET …]

Both sides train by Adam on minibatches of about 256 records, with dropout 0.2 and 0.5 and the square loss. A grid of
learning rates and weight decays, the same for both, and the number of epochs are chosen by nDCG@5 on a tenth of train.
Linear rows choose their penalty likewise. Then three seeds train on all of train and use the test set once.

Writes docs/results/mlp.md, mlp.json and docs/images/mlp.png. Finished rows are stored in runs/mlp.jsonl: after an
interruption the same command continues.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from finished_rows import Memory, Outcome
from problems import PROBLEMS

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.report.style import method_colour

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "results" / "mlp"
FIGURE = ROOT / "docs" / "images" / "mlp.png"
DATASETS = ("bibtex", "reuters-counts", "bibtex-svd300", "demo")
METRICS = ("P@1", "P@3", "P@5")
SEEDS = (0, 1, 2)
CENTRAL, FEDERATED = "centralised mlp", "fedalc-exact, preset mlp"
LINEAR, RANDOM = "fedalc-oneshot, linear", "fedalc-exact, random features"

STEPS = [{"learning_rate": rate, "weight_decay": decay} for rate, decay in ((1e-3, 0.0), (3e-3, 0.0), (3e-3, 1.0))]
PENALTIES = [{"ridge": penalty} for penalty in (0.5, 1.0, 2.0)]
EXACT = {"method": "fedalc-exact", "preset": "mlp"}
#: The settings of a row, the section that its grid changes, and the grid.
ROWS: dict[str, tuple[dict[str, Any], str, list[dict[str, float]]]] = {
    CENTRAL: ({"method": "mlp"}, "mlp", STEPS),
    FEDERATED: (EXACT, "server", STEPS),
    LINEAR: ({"method": "fedalc-oneshot"}, "server", PENALTIES),
    RANDOM: ({"method": "fedalc-exact", "encoder": {"name": "random-features"}}, "server", PENALTIES),
}
#: Other settings of the federated row, on validation data of Bibtex only.
VARIANTS: dict[str, dict[str, Any]] = {
    "an axis per label (D = C)": {},
    "D = 512, rows by frequency": {"tuning": {"axes": False}},
    "D = 64, rows by frequency": {"tuning": {"axes": False}, "encoder": {"dim": 64}},
    "label power 0.2": {"client": {"label_power": 0.2}},
    "logistic": {"client": {"loss": "logistic"}},
    "no dropout": {"encoder": {"dropout": 0.0, "input_dropout": 0.0}},
    "an embedding layer of 512 before it, as in the paper": {"encoder": {"embedding": 512}},
}


@cache
def problem(name: str) -> fedalc.Dataset:
    return PROBLEMS[name]()


class Curve(fedalc.Callback):
    """Collects P@1 on validation data, once per epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def evaluated(self, record: dict[str, Any]) -> None:
        if "validation P@1" in record["metrics"]:
            self.values.append(record["metrics"]["validation P@1"])


def measured(data: fedalc.Dataset, keys: Mapping[str, Any], seed: int, test: bool) -> Outcome:
    """Train with validation data; if `test`, also on all of train, and test. Otherwise no test record is looked at.
    With the penalty chosen, a linear row has nothing left to validate."""
    if not test:
        data = fedalc.Dataset(data.name, data.train, data.test.rows(np.arange(0)), data.label_names)
    share = 0.0 if test and "ridge" in keys.get("server", {}) else 0.1
    curve, selection = Curve(), {"validation": share, "metric": "nDCG@5", "refit": test}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no test data; settings of one method without effect on another
        run = fedalc.train(data=data, seed=seed, selection=selection, callbacks=[curve], **keys)
    chosen = run.result["selection"] or {"value": None, "round": run.result["rounds"]}
    values = [tried["metrics"]["validation P@1"] for tried in chosen.get("tried", ())] or curve.values
    kept = {name: run.result[name] for name in ("seconds", "rounds_run", "metrics")}
    return {**kept, "value": chosen["value"], "epochs": chosen.get("epochs", chosen["round"]), "curve": values}


def merged(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: {**one.get(key, {}), **value} if isinstance(value, Mapping) else value for key, value in two.items()}
    return {**one, **both}


def settings_of(row: str, data: fedalc.Dataset, change: Mapping[str, float]) -> dict[str, Any]:
    """Return the settings of a row. Linear rows have an axis for each label; the preset mlp gives them by itself."""
    keys, section, _ = ROWS[row]
    linear = {"encoder": {"dim": data.label_count}} if row in (LINEAR, RANDOM) else {}
    return merged(merged(keys, linear), {section: change})


def choose(memory: Memory, name: str, row: str) -> dict[str, float]:
    """Return the values of the grid that are best on the validation data of seed 0."""
    values = {}
    for index, change in enumerate(ROWS[row][2]):
        keys = settings_of(row, problem(name), change)
        label = f"{row}, {json.dumps(change)}"
        values[index] = memory.row(name, label, lambda keys=keys: measured(problem(name), keys, 0, False))["value"]
    return ROWS[row][2][max(values, key=lambda index: values[index])]


def rows_of(memory: Memory, name: str) -> dict[str, Outcome]:
    rows = {}
    for row in ROWS:
        change = choose(memory, name, row)
        keys = settings_of(row, problem(name), change)
        seeds = [
            memory.row(name, f"{row}, seed {seed}", lambda s=seed, k=keys: measured(problem(name), k, s, True))
            for seed in SEEDS
        ]
        rows[row] = {"chosen": change, "seeds": seeds}
    return rows


def table(rows: Mapping[str, Outcome]) -> str:
    lines = [f"| | {' | '.join(METRICS)} | P@1, seeds | seconds | chosen |", "|---" * (len(METRICS) + 4) + "|"]
    for row, outcome in rows.items():
        seeds = outcome["seeds"]
        values = " | ".join(f"{mean(seed['metrics'][metric] for seed in seeds):.2f}" for metric in METRICS)
        spread = ", ".join(f"{seed['metrics']['P@1']:.2f}" for seed in seeds)
        chosen = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in outcome["chosen"].items())
        lines.append(f"| {row} | {values} | {spread} | {mean(s['seconds'] for s in seeds):.0f} | {chosen} |")
    return "\n".join(lines) + "\n"


def variants_table(memory: Memory) -> str:
    lines = ["| Bibtex, validation data of seed 0 | nDCG@5 | P@1 after 5, 10, 20 epochs |", "|---|---|---|"]
    for variant, change in VARIANTS.items():
        keys = merged(merged(EXACT, {"server": choose(memory, "bibtex", FEDERATED)}), change)
        outcome = memory.row("bibtex", variant, lambda keys=keys: measured(problem("bibtex"), keys, 0, False))
        curve = ", ".join(f"{outcome['curve'][epoch - 1]:.1f}" for epoch in (5, 10, 20))
        lines.append(f"| {variant} | {outcome['value']:.2f} | {curve} |")
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, Mapping[str, Outcome]]) -> None:
    figure, panels = plt.subplots(1, len(found), figsize=(3.4 * len(found), 3.2), squeeze=False, layout="constrained")
    styles = {CENTRAL: ("mlp", "--"), FEDERATED: ("fedalc-exact", "-")}
    for axes, (name, rows) in zip(panels[0], found.items(), strict=True):
        for row, (method, line) in styles.items():
            curve = np.mean([seed["curve"] for seed in rows[row]["seeds"]], axis=0)
            axes.plot(range(1, len(curve) + 1), curve, line, color=method_colour(method), label=row)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("epochs")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("P@1 on validation data (%)")
    panels[0][-1].legend(frameon=False, fontsize=9)
    figure.savefig(FIGURE, dpi=120)


def write(found: Mapping[str, Mapping[str, Outcome]], variants: str) -> None:
    parts = [
        "`make mlp` (benchmarks/mlp.py): test set, mean of three seeds, one thread. `seconds` are those of training: "
        "on a part of train, then on all of it. The last column is what validation chose; it also chose the epochs.\n"
    ]
    parts += [f"## {name}\n{table(rows)}" for name, rows in found.items()]
    parts += [f"## Variants of the preset\n{variants}", "![P@1 on validation data against epochs](../images/mlp.png)\n"]
    write_text(OUT.with_suffix(".md"), "# An mlp by minibatch rounds\n" + "\n".join(parts))
    write_text(OUT.with_suffix(".json"), json.dumps(found, indent=1) + "\n")


def main(datasets: Sequence[str]) -> None:
    memory = Memory(ROOT / "runs" / "mlp.jsonl")
    found = {name: rows_of(memory, name) for name in datasets}
    draw(found)
    write(found, variants_table(memory))


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: the results need the datasets bibtex and reuters21578")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(DATASETS), metavar="DATASET")
    main(parser.parse_args().datasets)
