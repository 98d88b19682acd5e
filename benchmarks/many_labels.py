"""Trees of labels, columns and flat models side by side (docs/results/many-labels.md).

    FEDALC_DATA=… python benchmarks/many_labels.py DATASET ROW [SEED …] [--set NAME=VALUE …]

ROW: features, correlations, both or random (fedalc-tree, by what its clusters come from), columns (fedalc-columns),
flat (fedalc-oneshot), parabel or plt (omikuji and napkinXC, centralised), or default (no method: a search). Prints
P@1/P@3/P@5 on the test set, the main process's processor seconds from the files to the test, peak memory in GB and what
all clients send in GB, for each seed. With --set selection.validation=0.1 also nDCG@5 on held-out train. With
--to FILE lines go there too, and what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
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
    "parabel": {"method": "omikuji"},
    "plt": {"method": "napkinxc"},
    "default": {},
}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("dataset")
    asked.add_argument("row", choices=ROWS)
    asked.add_argument("seeds", nargs="*", type=int, default=[0])
    asked.add_argument("--set", action="append", default=[], dest="overrides")
    asked.add_argument("--to", type=Path)
    given = asked.parse_args()
    known = given.to.read_text() if given.to is not None and given.to.exists() else ""
    for seed in given.seeds:
        what = " ".join([given.dataset, given.row, *given.overrides, f"seed {seed}:"])
        if what not in known:
            line = f"{what} {measured(given.dataset, given.row, seed, given.overrides)}"
            print(line, flush=True)
            if given.to is not None:
                with given.to.open("a") as file:
                    file.write(line + "\n")


def measured(dataset: str, name: str, seed: int, overrides: list[str]) -> str:
    began = time.process_time()
    plain = {"dataset": dataset, "seed": seed, "selection": {"validation": 0.0, "calibrate": False}}
    if name == "default":
        run = fedalc.train(dataset=dataset, seed=seed)
    else:
        run = fedalc.train(experiment({**plain, **ROWS[name]}, overrides=overrides))
    found = run.result
    quality = "/".join(f"{run.metrics[f'P@{k}']:.2f}" for k in (1, 3, 5))
    chosen = f" {run.settings.method}" if name == "default" else ""
    if found.get("selection") is not None:
        chosen += f" validation {found['selection'].get('value', 0):.2f}"
    size = f"{found['peak_memory_mb'] / 1000:.1f} GB {found.get('bytes_up', 0) / 1e9:.1f} GB up"
    return f"{quality}{chosen} {time.process_time() - began:.0f} s {size}"


if __name__ == "__main__":
    main()
