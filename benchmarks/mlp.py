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
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from finished_rows import Memory, Outcome
from problems import PROBLEMS
from torch import nn

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.atomic_files import write_text
from fedalc.models.encoders import scale_rows
from fedalc.report.style import method_colour
from fedalc.training.federated import knowledge_for, simulated
from fedalc.training.settings_for_data import in_batches

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "results" / "mlp"
FIGURE = ROOT / "docs" / "images" / "mlp.png"
DATASETS = ("bibtex", "bibtex-svd300", "demo", "reuters-counts")
METRICS = ("P@1", "P@3", "P@5")
SEEDS = (0, 1, 2)
CENTRAL, FEDERATED = "centralised mlp", "fedalc-exact, preset mlp, rate and decay chosen"
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
    "D = 512 > C, orthogonal rows": {"tuning": {"axes": False}},
    "D = 64 < C, rows by frequency": {"tuning": {"axes": False}, "encoder": {"dim": 64}},
    "label power 0.2": {"client": {"label_power": 0.2}},
    "an embedding layer of 512 before it": {"encoder": {"embedding": 512}},
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
    used = time.process_time()
    share = 0.0 if test and "ridge" in keys.get("server", {}) else 0.1
    curve, selection = Curve(), {"validation": share, "metric": "nDCG@5", "refit": test}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no test data; settings of one method without effect on another
        run = fedalc.train(data=data, seed=seed, selection=selection, callbacks=[curve], **keys)
    chosen = run.result["selection"] or {"value": None, "round": run.result["rounds"]}
    values = [tried["metrics"]["validation P@1"] for tried in chosen.get("tried", ())] or curve.values
    kept = {"processor": time.process_time() - used, **{name: run.result[name] for name in ("rounds_run", "metrics")}}
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
    lines = [
        f"| | {' | '.join(METRICS)} | P@1, seeds | processor seconds | chosen |",
        "|---" * (len(METRICS) + 4) + "|",
    ]
    for row, outcome in rows.items():
        seeds = outcome["seeds"]
        values = " | ".join(f"{mean(seed['metrics'][metric] for seed in seeds):.2f}" for metric in METRICS)
        spread = ", ".join(f"{seed['metrics']['P@1']:.2f}" for seed in seeds)
        chosen = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in outcome["chosen"].items())
        lines.append(f"| {row} | {values} | {spread} | {mean(s['processor'] for s in seeds):.0f} | {chosen} |")
    return "\n".join(lines) + "\n"


def variants_table(memory: Memory) -> str:
    lines = ["| Bibtex, validation data of seed 0 | nDCG@5 | P@1 after 5, 10, 20 epochs |", "|---|---|---|"]
    step = choose(memory, "bibtex", FEDERATED)
    preset = {"the preset with the rate and decay chosen, an axis per label (D = C)": {}}
    for variant, change in {**preset, **VARIANTS}.items():
        keys, row = (
            merged(merged(EXACT, {"server": step}), change),
            variant if change else f"{FEDERATED}, {json.dumps(step)}",
        )
        outcome = memory.row("bibtex", row, lambda keys=keys: measured(problem("bibtex"), keys, 0, False))
        curve = ", ".join(f"{outcome['curve'][epoch - 1]:.1f}" for epoch in (5, 10, 20))
        lines.append(f"| {variant} | {outcome['value']:.2f} | {curve} |")
    return "\n".join(lines) + "\n"


def plain_step(train: fedalc.Split) -> Callable[[], object]:
    """Return a minibatch step as anyone would write it in PyTorch."""
    features, labels, drawn = train.features.shape[1], train.labels.shape[1], np.random.default_rng(0)
    layers = [nn.Dropout(0.2), nn.Linear(features, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, labels)]
    network = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters())

    def step() -> None:
        records = drawn.permutation(len(train))[:256]
        x, y = (torch.from_numpy(matrix[records].toarray()).float() for matrix in (train.features, train.labels))
        optimizer.zero_grad()
        ((network(x) - y).square().sum() / len(records)).backward()
        optimizer.step()

    return step


def milliseconds(data: fedalc.Dataset) -> tuple[float, float]:
    """Return the processor time of a plain step and of a round, measured in turn: medians of 20 after 5."""
    settings = in_batches(experiment(EXACT), data)
    train = replace(data.train, features=scale_rows(data.train.features, "unit"))
    federated = simulated(settings, train, knowledge_for(settings, train))
    works: dict[Callable[[], object], list[float]] = {plain_step(train): [], federated.run_round: []}
    for _ in range(25):
        for work, times in works.items():
            began = time.process_time()
            work()
            times.append(1000 * (time.process_time() - began))
    one, two = (median(times[5:]) for times in works.values())
    return one, two


def speed_table(memory: Memory, datasets: Sequence[str]) -> str:
    lines = ["| milliseconds of processor time | a plain PyTorch step | a round on `fused` |", "|---|---|---|"]
    for name in datasets:
        outcome = memory.row(name, "milliseconds", lambda name=name: {"step, round": milliseconds(problem(name))})
        lines.append("| " + " | ".join([name, *(f"{value:.0f}" for value in outcome["step, round"])]) + " |")
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


def write(found: Mapping[str, Mapping[str, Outcome]], variants: str, speed: str) -> None:
    parts = [
        f"`python benchmarks/mlp.py {' '.join(found)}`: test set, mean of three seeds, one thread. Seconds are those "
        "of training (an mlp: on a part of train, then on all of it) and of the test.\nThe last column is what "
        "validation chose; it also chose the number of epochs, at most 20.\n"
    ]
    parts += [f"## {name}\n{table(rows)}" for name, rows in found.items()]
    parts += [f"## Variants of the preset\n{variants}", f"## What a round costs\n{speed}"]
    parts += ["## Curves\n![P@1 on validation data against epochs](../images/mlp.png)\n"]
    write_text(OUT.with_suffix(".md"), "# An mlp by minibatch rounds\n" + "\n".join(parts))
    write_text(OUT.with_suffix(".json"), json.dumps(found, indent=1) + "\n")


def main(datasets: Sequence[str]) -> None:
    memory = Memory(ROOT / "runs" / "mlp.jsonl")
    found = {name: rows_of(memory, name) for name in datasets}
    draw(found)
    write(found, variants_table(memory), speed_table(memory, datasets))


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: the results need the datasets bibtex and reuters21578")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(DATASETS), metavar="DATASET")
    main(parser.parse_args().datasets)
