"""`make tuning`: choose the settings of preset `strong`. Every method gets equally many candidates and the same data.

    FEDALC_DATA=… python benchmarks/tuning.py text|pictures [method …]

text      Bibtex (two seeds) and eurlex15k (one), eight settings per method, by nDCG@5. A setting more than five points
          behind its method's best on Bibtex is dropped and does not run on eurlex15k.
pictures  VOC 2012 (one seed), four settings per method, by mAP, in 300 rounds of the preset's 900.

10 % of train is held out. The preset gets the setting with the best mean over datasets on the held-out part, each at
its best round: one setting for all datasets. The test sets are not used. Writes docs/results/tuning[-pictures].json and
.md once all methods are done. Finished runs are stored in runs/, so several processes can each run some methods.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.training.selection import Training
from fedalc.workflows.train import image_options

ROOT = Path(__file__).resolve().parent.parent
GIVEN_UP = 5.0  # points behind the best
Settings = dict[str, dict[str, float | str]]


def grid(**axes: tuple[float | str, ...]) -> list[Settings]:
    """Return all combinations of the axes, which are named section__key."""
    settings: list[Settings] = []
    for values in product(*axes.values()):
        one: Settings = {}
        for axis, value in zip(axes, values, strict=True):
            section, key = axis.split("__")
            one.setdefault(section, {})[key] = value
        settings.append(one)
    return settings


RATES = (0.005, 0.01)
FIXED = {"fixed__alpha": (0.1, 0.3), "fixed__steps": (10, 30)}


@dataclass(frozen=True)
class Job:
    """The candidates of each method, the seeds of each dataset, and the name of the result files."""

    name: str
    metric: str
    seeds: dict[str, tuple[int, ...]]
    grids: dict[str, list[Settings]]
    common: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> Path:
        return ROOT / "runs" / f"{self.name}.jsonl"

    @property
    def out(self) -> Path:
        return ROOT / "docs" / "results" / self.name

    def known(self) -> dict[str, dict[str, Any]]:
        records = [json.loads(line) for line in self.done.read_text().splitlines()] if self.done.exists() else []
        return {key(record["asked"]): record["chosen"] for record in records}

    def still_in(self, method: str, dataset: str) -> list[Settings]:
        """Return the settings to run: all on the first dataset, then those within GIVEN_UP points of the best there."""
        first, settings = next(iter(self.seeds)), self.grids[method]
        if dataset == first:
            return settings
        asked = [
            [{"dataset": first, "method": method, "seed": seed, **changes} for seed in self.seeds[first]]
            for changes in settings
        ]
        known = self.known()
        values = [statistics.mean(known[key(one)]["value"] for one in runs) for runs in asked]
        return [changes for changes, value in zip(settings, values, strict=True) if value > max(values) - GIVEN_UP]

    def everything(self) -> Iterator[dict[str, Any]]:
        """Yield all runs, dataset by dataset: the results on the first decide which settings run on the second."""
        for dataset, method in product(self.seeds, self.grids):
            for changes, seed in product(self.still_in(method, dataset), self.seeds[dataset]):
                yield {"dataset": dataset, "method": method, "seed": seed, **changes}


TEXT = Job(
    "tuning",
    "nDCG@5",
    {"bibtex": (0, 1), "eurlex15k": (0,)},
    {
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
        "fedalc-fixed": grid(server__learning_rate=RATES, **FIXED),
        # Also for fedalc-exact, which converges to the same solution.
        "fedalc-oneshot": grid(server__ridge=(0.25, 0.5, 1.0, 2.0), client__label_power=(0.1, 0.2)),
    },
)
PICTURES = Job(
    "tuning-pictures",
    "mAP",
    {"voc2012": (0,)},
    {
        "fedavg": grid(client__row_learning_rate=(0.1, 0.03, 0.01, 0.003)),
        "fedavg-fixed": grid(server__learning_rate=(0.0005, 0.001, 0.002, 0.004)),
        "fedaws": grid(client__row_learning_rate=(0.1, 0.01), regularizer__lambda=(100.0, 1000.0)),
        "fedalc": grid(client__row_learning_rate=(0.1, 0.01), regularizer__lambda=(100.0, 1000.0)),
        "fedalc-fixed": grid(**FIXED),
        "fedalc-exact": grid(server__learning_rate=(0.001, 0.002), client__label_power=(0.0, 0.2)),
    },
    # It was run when VOC's difficult objects counted as absent.
    {"encoder": {"name": "resnet-small"}, "rounds": 300, "images": {"difficult": False}},
)
JOBS = {"text": TEXT, "pictures": PICTURES}


def main(job: Job, methods: list[str]) -> None:
    job.done.parent.mkdir(exist_ok=True)
    for dataset, seeds in job.seeds.items():
        data = fedalc.load_dataset(dataset, images=image_options(fedalc.experiment({"dataset": dataset, **job.common})))
        for method in methods:
            for changes, seed in product(job.still_in(method, dataset), seeds):
                asked = {"dataset": dataset, "method": method, "seed": seed, **changes}
                if key(asked) not in job.known():
                    record = {"asked": asked, "chosen": choose(data, {**job.common, **asked})}
                    print(record, flush=True)
                    with job.done.open("a") as file:
                        file.write(json.dumps(record) + "\n")
    known = job.known()
    if not all(key(asked) in known for asked in job.everything()):
        return
    rows: list[dict[str, Any]] = []
    for method, changes in ((method, changes) for method, settings in job.grids.items() for changes in settings):
        row: dict[str, Any] = {"method": method, "settings": changes}
        for dataset, seeds in job.seeds.items():
            if changes not in job.still_in(method, dataset):
                row[dataset] = row["mean"] = None
                break
            runs = [known[key({"dataset": dataset, "method": method, "seed": seed, **changes})] for seed in seeds]
            row[dataset] = statistics.mean(run["value"] for run in runs)
            row[f"{dataset} rounds"] = [run["round"] for run in runs]
        else:
            row["mean"] = statistics.mean(row[dataset] for dataset in job.seeds)
        rows.append(row)
    write(job, rows)


def key(asked: dict[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)


def write(job: Job, rows: list[dict[str, Any]]) -> None:
    command = f"python benchmarks/tuning.py {next(name for name, one in JOBS.items() if one is job)}"
    facts = {"command": command, "common": job.common, "seeds": job.seeds, "runs": rows}
    write_text(job.out.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    lines = [
        f"`{command}`: {job.metric} on held-out parts of train, at the best round; the best of each method in bold"
        + ("; with images.difficult = false" if "images" in job.common else ""),
        "",
        f"| method | setting | {' | '.join(job.seeds)} | mean |",
        "|---|---|" + "---|" * (len(job.seeds) + 1),
    ]
    for row in rows:
        mark = "**" if row["mean"] == max(r["mean"] or 0 for r in rows if r["method"] == row["method"]) else ""
        asked = ", ".join(
            f"{s}.{k} = {v if isinstance(v, str) else f'{v:g}'}"
            for s, keys in row["settings"].items()
            for k, v in keys.items()
        )
        shown = ["–" if row[name] is None else f"{row[name]:.2f}" for name in (*job.seeds, "mean")]
        numbers = " | ".join([*shown[:-1], f"{mark}{shown[-1]}{mark}"])
        lines.append(f"| {row['method']} | {asked} | {numbers} |")
    write_text(job.out.with_suffix(".md"), "\n".join(lines) + "\n")
    print("\n".join(lines))


def choose(data: fedalc.Dataset, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the best round on the held-out part and its value, without refitting or testing."""
    training = Training(fedalc.experiment({**asked, "selection": {"refit": False}}), data, None, ()).prepare()
    training.run()
    assert training.chosen is not None
    return {"round": training.chosen["round"], "value": training.chosen["value"]}


if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: this needs the datasets bibtex and eurlex15k, or voc2012")
    if len(sys.argv) < 2 or sys.argv[1] not in JOBS:
        sys.exit(f"name a job: {' or '.join(JOBS)}")
    wanted = JOBS[sys.argv[1]]
    main(wanted, sys.argv[2:] or list(wanted.grids))
