"""`make paper-search`: look for one setting, with real local work, that gives all columns of the paper's Bibtex table.

    FEDALC_DATA=… python benchmarks/paper_search.py [STAGE …]

The paper does not say how much its clients do in a round, nor how it scales several things. CHOICES has what it leaves
open. A setting is one value of each. Its distance is the mean of |ours - published| over columns, in points of P@1.

    screen   settings drawn at random, two columns (fedavg; fedalc with λ = 10), a narrow network, few rounds
    step     one full-batch step, as in the preset `paper`, with larger rates in place of local work: all 13 columns,
             300 rounds, a narrow network
    wide     the same with the paper's network, the better weights and rates between those: five columns
    local    the preset `paper` with every kind of local work in place of its large server rate: the same columns
    around   the best of both, and each with one choice changed: five columns
    long     the best of those: all 13 columns, 300 rounds, a narrow network
    full     the best of those, and of `wide`: all 13 columns, 300 rounds, the paper's network
    write    docs/results/paper-search.md and the figure, of what there is

These runs look at published figures of the test set, because they reconstruct someone else's settings. Nothing else in
this project uses what they find. Finished runs are in docs/results/paper-search.json: after an interruption the same
command goes on. Two runs at a time, each with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

from paper_search_page import markdown, picture, picture_of_columns

import fedalc
from fedalc.core.atomic_files import write_text
from fedalc.data import Dataset, load_dataset
from fedalc.errors import FedalcError

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "paper-search.md"
OUT = PAGE.with_suffix(".json")
PICTURE = ROOT / "docs" / "images" / "paper-search.png"

Setting = dict[str, Any]
Column = tuple[str, float | None]  # a method and λ
PUBLISHED: dict[Column, float] = {
    ("fedavg", None): 11.60,
    **{("fedaws", λ): p for λ, p in ((1, 16.42), (10, 26.79), (100, 48.31), (150, 48.42), (200, 49.22), (500, 45.65))},
    **{("fedalc", λ): p for λ, p in ((1, 58.72), (10, 59.67), (100, 59.31), (150, 55.16), (200, 48.68), (500, 40.15))},
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "epochs": (1, 2, 5, 10, 20),
    "batch": (None, 32),
    "rate": (0.03, 0.1, 0.3, 1.0),
    "momentum": (0.0, 0.9),
    "server rate": (1.0, 10.0, 100.0),  # 1: plain averaging, as in Algorithm 1
    "weights": ("uniform", "samples"),  # 1/C or n_u/Σn
    "rows": ("keep", "discard"),  # what the server does with the rows that owners trained: the text, or Algorithm 1
    "weighting": ("sigma", "gamma", "counts", "conditional"),
    "margin": (1.0, 2.0, "adaptive"),  # ν
    "start": ("he", "framework"),
    "features": ("raw", "unit", "mean"),
}
ROW_FACTORS = (1.0, 3.0, 10.0, 30.0)  # the owners' rate for their rows, divided by `rate`; 1 where it is not named
OF_FEDALC = ("rows", "weighting", "margin")  # choices that act on fedalc only
NARROW = {"name": "mlp", "dim": 160, "embedding": 64, "hidden": [160, 160]}  # an axis for each of the 159 labels
FULL = {"name": "mlp", "dim": 512, "embedding": 512, "hidden": [1024, 1024]}
FEW: tuple[Column, ...] = (("fedavg", None), ("fedalc", 10))
SOME: tuple[Column, ...] = (*FEW, ("fedaws", 10), ("fedaws", 200), ("fedalc", 500))
SCREENED, KEPT, LONG, WIDE = 30, 2, 2, 2  # settings: drawn; to look around; to train long; and with a wide network
SHORT_EPOCHS, LEAST_ROUNDS, LONG_ROUNDS = 120, 30, 300


def short_rounds(setting: Setting) -> int:
    return max(LEAST_ROUNDS, SHORT_EPOCHS // int(setting["epochs"]))


def name_of(setting: Setting, column: Column, rounds: int, width: str) -> str:
    """Return the run's name: settings that do not act on its method are left out, so that runs are shared."""
    acting = {key: value for key, value in setting.items() if column[0] == "fedalc" or key not in OF_FEDALC}
    if column[0] == "fedalc" and setting["rows"] == "discard":
        acting.pop("row factor", None)
    return json.dumps([column, rounds, width, acting], ensure_ascii=False)


def settings_of(setting: Setting, column: Column, rounds: int, width: str) -> dict[str, Any]:
    method, λ = column
    network = NARROW if width == "narrow" else FULL
    regularizer = {"lambda": λ, "rate": 1e-4, "form": "mined", "neighbours": 5}
    if method == "fedalc":
        regularizer |= {"weighting": setting["weighting"], "margin": setting["margin"]}
    server = {"optimizer": "sgd", "learning_rate": setting["server rate"], "weights": setting["weights"]}
    if method == "fedalc":
        server["trained_rows"] = setting["rows"]
    return {
        "method": method,
        "rounds": rounds,
        "encoder": network | {"dropout": 0.0, "start": setting["start"], "features": setting["features"]},
        "client": {
            "learning_rate": setting["rate"],
            "row_learning_rate": setting["rate"] * setting.get("row factor", 1.0),
            "momentum": setting["momentum"],
            "epochs": setting["epochs"],
            "batch_size": setting["batch"],
            "margin": 0.9,
        },
        "server": server,
        "selection": {"validation": 0.0, "calibrate": False, "keep": "last", "every": 1000},
    } | ({} if λ is None else {"regularizer": regularizer})


@cache
def bibtex() -> Dataset:
    return load_dataset("bibtex")


def measured(setting: Setting, column: Column, rounds: int, width: str) -> dict[str, Any]:
    began = time.process_time()
    found: dict[str, Any] = {"method": column[0], "lambda": column[1], "rounds": rounds, "width": width, **setting}
    try:
        run = fedalc.train(bibtex(), **settings_of(setting, column, rounds, width), verbose=False)
        found |= {f"P@{k}": round(run.result["metrics"][f"P@{k}"], 2) for k in (1, 3, 5)}
    except FedalcError as error:  # it diverged
        found |= {"failed": str(error).splitlines()[0][:120], "P@1": 0.0, "P@3": 0.0, "P@5": 0.0}
    return found | {"seconds": round(time.process_time() - began)}


class Runs:
    """All finished runs, by name, in one file."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}

    def make(self, wanted: list[tuple[Setting, Column, int, str]]) -> None:
        cheap_first = sorted(wanted, key=lambda one: one[0]["epochs"] * one[2])
        missing = {name_of(*one): one for one in cheap_first if name_of(*one) not in self.found}
        print(f"{len(missing)} of {len(wanted)} runs to make", flush=True)
        with ProcessPoolExecutor(2) as pool:
            futures = {pool.submit(measured, *one): name for name, one in missing.items()}
            try:
                for number, future in enumerate(as_completed(futures), start=1):
                    row = self.found[futures[future]] = future.result()
                    write_text(OUT, json.dumps(self.found, indent=0, ensure_ascii=False) + "\n")
                    said = f"{row['method']} {row['lambda'] or ''}: P@1 {row['P@1']}, {row['seconds']} s"
                    print(f"{number} of {len(missing)}: {said} {futures[future]}", flush=True)
            except KeyboardInterrupt:
                for process in pool._processes.values():  # their runs are short, and made again
                    process.kill()
                raise

    def figure(self, setting: Setting, column: Column, rounds: int, width: str) -> float | None:
        row = self.found.get(name_of(setting, column, rounds, width))
        return None if row is None else row["P@1"]

    def distance(self, setting: Setting, columns: tuple[Column, ...], rounds: int, width: str) -> float | None:
        """Return the mean distance to the paper's figures; None if a run is missing."""
        ours = [self.figure(setting, column, rounds, width) for column in columns]
        if any(one is None for one in ours):
            return None
        return float(np.mean([abs(one - PUBLISHED[column]) for one, column in zip(ours, columns, strict=True)]))  # type: ignore[operator]

    def best(
        self, settings: list[Setting], columns: tuple[Column, ...], rounds: int | None, width: str
    ) -> list[tuple[float, Setting]]:
        """Return settings by distance. `rounds`: None for those of short runs."""
        far = [(self.distance(one, columns, rounds or short_rounds(one), width), one) for one in settings]
        return sorted(((by, one) for by, one in far if by is not None), key=lambda pair: pair[0])


def drawn() -> list[Setting]:
    """Return the settings of the screening, drawn once and for all."""
    generator = np.random.default_rng(0)
    return [
        {key: values[int(generator.integers(len(values)))] for key, values in CHOICES.items()} for _ in range(SCREENED)
    ]


PRESET: Setting = {
    "epochs": 1, "batch": None, "rate": 0.1, "momentum": 0.0, "server rate": 100.0, "weights": "uniform",
    "rows": "discard", "weighting": "conditional", "margin": 2.0, "start": "he", "features": "raw",
}  # fmt: skip


def with_one_step() -> list[Setting]:
    """Return the preset `paper` with other rates of the server and of rows, and other weights of the average."""
    free = product((30.0, 100.0, 300.0), CHOICES["weights"], ROW_FACTORS)
    return [PRESET | {"server rate": server, "weights": of, "row factor": factor} for server, of, factor in free]


def with_one_step_wide() -> list[Setting]:
    """Return what was best of `with_one_step`, refined for the paper's network."""
    free = [(50.0, 1.5), (50.0, 2.0), (100.0, 2.0), (100.0, 3.0), (50.0, 2.5), (100.0, 1.5)]
    return [PRESET | {"server rate": server, "weights": "samples", "row factor": factor} for server, factor in free]


def with_local_work() -> list[Setting]:
    """Return the preset `paper` with other schedules, rates and weights of the average."""
    schedules: tuple[tuple[int, int | None], ...] = ((1, None), (2, None), (5, None), (20, None), (1, 32), (5, 32))
    rates = ((0.1, 1.0), (0.1, 10.0), (0.1, 100.0), (1.0, 1.0), (1.0, 10.0))  # clients', server's
    free = product(schedules, rates, CHOICES["weights"])
    work = [
        {"epochs": epochs, "batch": batch, "rate": rate, "server rate": server, "weights": weights}
        for (epochs, batch), (rate, server), weights in free
    ]
    return [PRESET | one for one in work]


def neighbours(setting: Setting) -> list[Setting]:
    """Return the setting, and those that differ from it in one choice."""
    changed = [setting | {key: value} for key, values in CHOICES.items() for value in values if value != setting[key]]
    return [setting, *changed]


def to_look_around(runs: Runs) -> list[Setting]:
    found = [one for _, one in runs.best(drawn() + with_local_work(), FEW, None, "narrow")[:KEPT]]
    return [each for one in found for each in neighbours(one)]


def to_train_long(runs: Runs) -> list[Setting]:
    return [one for _, one in runs.best(to_look_around(runs), SOME, None, "narrow")[:LONG]]


def to_train_wide(runs: Runs) -> list[Setting]:
    narrow = runs.best(to_train_long(runs), tuple(PUBLISHED), LONG_ROUNDS, "narrow")[:1]
    wide = runs.best(with_one_step_wide(), SOME, LONG_ROUNDS, "full")[:WIDE]
    return [one for _, one in narrow + wide]


def of_stage(stage: str, runs: Runs) -> list[tuple[Setting, Column, int, str]]:
    if stage == "screen":
        return [(one, column, short_rounds(one), "narrow") for one in drawn() for column in FEW]
    if stage == "step":
        return [(one, column, LONG_ROUNDS, "narrow") for one in with_one_step() for column in PUBLISHED]
    if stage == "wide":
        return [(one, column, LONG_ROUNDS, "full") for one in with_one_step_wide() for column in SOME]
    if stage == "local":
        return [(one, column, short_rounds(one), "narrow") for one in with_local_work() for column in FEW]
    if stage == "around":
        return [(one, column, short_rounds(one), "narrow") for one in to_look_around(runs) for column in SOME]
    if stage == "long":
        return [(one, column, LONG_ROUNDS, "narrow") for one in to_train_long(runs) for column in PUBLISHED]
    return [(one, column, LONG_ROUNDS, "full") for one in to_train_wide(runs) for column in PUBLISHED]


STAGES = ("screen", "step", "wide", "local", "around", "long", "full")


def report(runs: Runs) -> None:
    tables = {
        "screen": runs.best(drawn(), FEW, None, "narrow"),
        "step": runs.best(with_one_step(), tuple(PUBLISHED), LONG_ROUNDS, "narrow"),
        "wide": runs.best(with_one_step_wide(), SOME, LONG_ROUNDS, "full"),
        "local": runs.best(with_local_work(), FEW, None, "narrow"),
        "around": runs.best(to_look_around(runs), SOME, None, "narrow"),
        "long": runs.best(to_train_long(runs), tuple(PUBLISHED), LONG_ROUNDS, "narrow"),
        "full": runs.best(to_train_wide(runs), tuple(PUBLISHED), LONG_ROUNDS, "full"),
    }
    write_text(PAGE, markdown(runs.found, tables, PUBLISHED, CHOICES, runs.figure, short_rounds))
    picture(runs.found, CHOICES, PICTURE)
    steps = [(one, "narrow") for one in with_one_step()] + [(one, "full") for one in with_one_step_wide()]
    picture_of_columns(steps, PUBLISHED, runs.figure, PICTURE.with_stem("paper-search-columns"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join((*STAGES, "write")))
    given = parser.parse_args()
    if unknown := set(given.stages) - {*STAGES, "write"}:
        parser.error(f"unknown stage: {', '.join(sorted(unknown))}")
    if not os.environ.get("FEDALC_DATA"):
        print("FEDALC_DATA is not set: the search needs the dataset bibtex")
        return 2
    runs = Runs()
    for stage in given.stages or [*STAGES, "write"]:
        if stage != "write":
            runs.make(of_stage(stage, runs))
    report(runs)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
