"""Trees of labels, columns and flat models side by side (docs/results/many-labels.md).

    FEDALC_DATA=… python benchmarks/many_labels.py DATASET ROW [SEED …] [--set NAME=VALUE …]

ROW: features, correlations, both or random (fedalc-tree, by what its clusters come from), columns (fedalc-columns) or
flat (fedalc-oneshot). Prints P@1/P@3/P@5 on the test set, processor seconds from the files to the test, peak memory in
GB and what all clients send in GB, for each seed. With --set selection.validation=0.1 also nDCG@5 on held-out train.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import fedalc
from fedalc.config.resolve import experiment

ROWS: dict[str, dict[str, Any]] = {
    **{
        kind: {"method": "fedalc-tree", "options": {"clusters_from": kind}}
        for kind in ("features", "correlations", "both", "random")
    },
    "columns": {"method": "fedalc-columns"},
    "flat": {"method": "fedalc-oneshot"},
}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("dataset")
    asked.add_argument("row", choices=ROWS)
    asked.add_argument("seeds", nargs="*", type=int, default=[0])
    asked.add_argument("--set", action="append", default=[], dest="overrides")
    given = asked.parse_args()
    for seed in given.seeds:
        row(given.dataset, given.row, seed, given.overrides)


def row(dataset: str, name: str, seed: int, overrides: list[str]) -> None:
    began = time.process_time()
    plain = {"dataset": dataset, "seed": seed, "selection": {"validation": 0.0, "calibrate": False}}
    run = fedalc.train(experiment({**plain, **ROWS[name]}, overrides=overrides))
    found = run.result
    quality = "/".join(f"{run.metrics[f'P@{k}']:.2f}" for k in (1, 3, 5))
    chosen = "" if found["selection"] is None else f" validation {found['selection']['value']:.2f}"
    size = f"{found['peak_memory_mb'] / 1000:.1f} GB {found['bytes_up'] / 1e9:.1f} GB up"
    took = f"{time.process_time() - began:.0f} s {size}"
    print(dataset, name, *overrides, f"seed {seed}: {quality}{chosen} {took}", flush=True)


if __name__ == "__main__":
    main()
