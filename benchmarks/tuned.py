"""`make tuned`: compare fedalc's default, single settings and centralised packages on eleven datasets, in one run.

    FEDALC_DATA=… python benchmarks/tuned.py [DATASET …]

For each dataset (benchmarks/problems.py): `fedalc.train(dataset=…)` as a new user calls it, the same with `tune=False`,
each loss with its first penalty, and the packages omikuji and napkinXC with their own defaults, on the same records.
Each row uses the test set once, at its end, and nothing is chosen by it.

Writes docs/results/tuned.md, tuned.json and eurlex57k.md. Finished rows are stored in runs/tuned.jsonl: after an
interruption the same command continues. Needs the extra `peers`.
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

from finished_rows import Memory, Outcome
from problems import PROBLEMS

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.training.tuning import FIRST_PENALTY, JUDGED_ROUNDS, Loss, Trial

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / "runs" / "tuned.jsonl"
OUT = ROOT / "docs" / "results" / "tuned"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5")
BEHIND = 0.3  # points by which the default may stay behind the better package
PEERS = ("omikuji", "napkinxc")
DEFAULT, FIXED, GAP = "default", "default, tune=False", "default minus better package"


def single(loss: Loss) -> dict[str, Any]:
    """Return the settings of one loss with its first penalty, which the search would start from."""
    features: dict[str, str | float] = {"name": "linear"} if loss == "square" else {"name": "linear", "constant": 1.0}
    rounds, power = (1, 0.2) if loss == "square" else (JUDGED_ROUNDS[-1], 0.0)
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
    tuning = run.result.get("tuning")
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


def seconds_beside_packages(rows: Mapping[str, Outcome]) -> str:
    """Return a table of seconds, and of how many times those of the faster package they are."""
    faster = {unit: min(rows[peer][unit] for peer in PEERS) for unit in ("seconds", "processor")}
    lines = ["| | seconds | × the faster package | processor seconds | × |", "|---|---|---|---|---|"]
    for row in (DEFAULT, FIXED, *PEERS):
        cells = (f"{rows[row][unit]:.1f} | {rows[row][unit] / least:.1f}" for unit, least in faster.items())
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


#: P@1, P@5, nDCG@5 that LibMultiLabel publishes (github.com/ASUS-AICS/LibMultiLabel, example_config/EUR-Lex-57k).
NEURAL = {
    "Kim-CNN": (90.78, 66.87, 80.35),
    "CNN-LWAN": (89.82, 67.31, 80.54),
    "BiGRU-LWAN": (90.73, 67.08, 80.60),
    "BERT-BASE-LWAN": (89.98, 67.85, 80.98),
}


def eurlex57k_page(rows: Mapping[str, Outcome]) -> str:
    """Return EURLEX57K as a table of its own, beside published figures of neural networks, with what differs."""
    text = "`make tuned`: EURLEX57K, its own split, 45,000 / 6,000 / 6,000 records. Test figures, in percent.\n\n"
    text += "| | from | P@1 | P@3 | P@5 | nDCG@5 |\n|---|---|---|---|---|---|\n"
    names = {DEFAULT: "fedalc, default", FIXED: "fedalc, --no-tune"} | {peer: f"{peer}, centralised" for peer in PEERS}
    for row, name in names.items():
        values = " | ".join(f"{rows[row]['metrics'][metric]:.2f}" for metric in METRICS)
        text += f"| {name} | 5,000 tf-idf features | {values} |\n"
    for name, (first, fifth, gain) in NEURAL.items():
        text += f"| {name}, centralised, published | raw text | {first:.2f} | – | {fifth:.2f} | {gain:.2f} |\n"
    where = "https://github.com/ASUS-AICS/LibMultiLabel/tree/master/example_config/EUR-Lex-57k"
    return text + (
        "\nWhat differs: the networks read the raw text and choose by RP@5 on the validation records; fedalc and the "
        "two packages have the same 5,000 tf-idf features. fedalc's clients have positives of one label each. It "
        f"chooses by nDCG@5 on the validation records ({rows[DEFAULT].get('chosen', '')}) and then trains on "
        "the training records, as the networks do. The packages have their default settings. The published figures are "
        f"[LibMultiLabel's]({where}); P@3 is not among them.\n"
    )


def page(memory: Memory, names: Sequence[str]) -> None:
    """Write what is finished."""
    finished = {name: rows_of(memory, name) for name in names if all((name, row) in memory.known for row in ROWS)}
    text = "`make tuned`: fedalc's default, single settings and centralised packages on the same records, seed 0, one "
    text += "thread. Test figures, in percent; nothing was chosen by them.\n"
    if missing := [name for name in names if name not in finished]:
        text += f"\nNot measured yet: {', '.join(missing)}.\n"
    for name, rows in finished.items():
        what = (PROBLEMS[name].__doc__ or "").strip()
        text += f"\n## {name}\n{what + ' ' if what else ''}{shape(problem(name))}.\n\n{quality_table(rows)}"
    if "eurlex15k" in finished:
        text += "\n## Seconds on eurlex15k\nThe search, the training and the test, without loading the data.\n\n"
        text += seconds_beside_packages(finished["eurlex15k"])
    if "eurlex57k" in finished:
        write_text(OUT.with_name("eurlex57k.md"), eurlex57k_page(finished["eurlex57k"]))
    small = {name: {**rows, GAP: gaps(rows)} for name, rows in finished.items()}
    write_text(OUT.with_suffix(".md"), text)
    write_text(OUT.with_suffix(".json"), json.dumps({"command": "make tuned", "datasets": small}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(PROBLEMS), metavar="DATASET")
    asked = parser.parse_args()
    memory = Memory(DONE)
    for name in asked.datasets:
        print(quality_table(rows_of(memory, name)), flush=True)
        page(memory, list(PROBLEMS))


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the datasets bibtex, eurlex15k, eurlex57k, reuters21578 and yso")
    main()
