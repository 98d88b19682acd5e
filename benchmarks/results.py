"""`make results`: run the comparisons of methods for README and docs/reproduction.md; write docs/results/.

    FEDALC_DATA=… python benchmarks/results.py [JOB …] [--methods a,b] [--seeds 0,1]

With --methods or --seeds it makes only those runs and no table, so that several processes can share the work.

Runs stay in runs/results/: after an interruption the same command continues. For the paper's own tables use
`fedalc reproduce`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.report.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "results"
OUT = ROOT / "docs" / "results"
SEEDS = (0, 1, 2, 3, 4)
EXACT = ("fedalc-exact", "fedalc-oneshot")
# flag and fedmlh are in `fedalc reproduce`, with fewer seeds.
METHODS = ("fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed", *EXACT)
ON_PICTURES = METHODS[:-1]  # fedalc-oneshot does not support pictures
KEPT = ("dataset", "method", "preset", "rounds", "seed", "metrics", "selection", "collapse", "clients",
        "labels_without_client", "rounds_run", "seconds_per_round", "bytes_up", "bytes_down", "versions")  # fmt: skip


def side_by_side(
    name: str, dataset: str, only: Mapping[str, Any], methods: Sequence[str] = METHODS, seeds: Sequence[int] = SEEDS,
    **keys: Any,
) -> None:  # fmt: skip
    """Make one table of methods with equal settings. `only` limits this process to some methods or seeds."""
    chosen = [method for method in only["methods"] or methods if method in methods]
    some = [seed for seed in only["seeds"] or seeds if seed in seeds]
    done = fedalc.compare(chosen, dataset=dataset, preset="strong", seeds=some, folder=RUNS / name, **keys)
    if only["methods"] or only["seeds"]:
        return
    options = "".join(f" --encoder {value['name']}" for key, value in keys.items() if "name" in value)
    options += "".join(
        f" --set {s}.{k}={str(v).lower()}" for s, table in keys.items() for k, v in table.items() if k != "name"
    )
    options += f" --methods {','.join(methods)}"
    command = f"fedalc compare --dataset {dataset} --seeds {','.join(map(str, seeds))}{options}"
    save(name, command, done.results, markdown_table([dict(r) for r in done.results]))
    if tuple(methods) in (METHODS, ON_PICTURES):
        shutil.copy(RUNS / name / "bytes.png", ROOT / "docs" / "images" / f"{name}-bytes.png")


def save(name: str, command: str, results: Sequence[Mapping[str, Any]], table: str) -> None:
    small = [{key: result[key] for key in KEPT if key in result} for result in results]
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
    # Pictures: the preset's fedavg has a lower row rate than fedaws and fedalc, so we also run it with theirs. VOC was
    # measured with difficult objects as absent.
    **{
        f"{dataset}-{name}": partial(side_by_side, f"{dataset}-{name}", dataset, seeds=(0,), **keys, **images)
        for dataset, images in (("voc2012", {"images": {"difficult": False}}), ("coco-val2017", {}))
        for name, keys in (
            ("strong", {"methods": ON_PICTURES}),
            ("fedavg", {"methods": ("fedavg",), "client": {"row_learning_rate": 0.01}}),
        )
    },
}

if __name__ == "__main__":
    if not os.environ.get("FEDALC_DATA"):
        sys.exit("FEDALC_DATA is not set: the results need the datasets bibtex, eurlex15k, voc2012 and coco-val2017")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS), metavar="JOB")
    parser.add_argument("--methods", type=lambda text: text.split(","))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    asked = parser.parse_args()
    for job in asked.jobs:
        JOBS[job]({"methods": asked.methods, "seeds": asked.seeds})
