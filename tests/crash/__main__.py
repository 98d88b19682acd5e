"""`make crash-test`: disturb runs, resume them, and compare. Exits with 1 if a guarantee was broken."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fedalc.core.atomic_files import write_text
from tests.crash.parts import (
    Bench,
    Broken,
    flipped_bits,
    full_disk,
    kills_at_every_write,
    kills_at_random,
    power_cuts,
)
from tests.crash.scenarios import Overwrite, Parties, State, Train

OUT = Path(__file__).parents[2] / "docs" / "results" / "crash-test.md"
SEED = 17
HEAD = """# Crash test

`make crash-test` writes this page. Each line says how a run was disturbed and how often. Each time another process
resumed the run. The result had the same bits as an undisturbed run (tensors of the model and of the last checkpoint,
figures, history without times, settings). The run resumed no earlier than at the last checkpoint for which
`save_folder` had returned, and left no temporary files. [How it works](../checkpoints.md).

| disturbance | scenario | times |
|---|---|--:|
"""


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--tiny", action="store_true", help="a few cases of each part, in seconds, for make test")
    asked.add_argument("--kills", type=int, default=40, help="kills at random moments, per scenario (three scenarios)")
    asked.add_argument("--step", type=int, default=1, help="only every n-th file operation, for a shorter test")
    asked.add_argument("--out", type=Path, help="Markdown file for the results")
    options = asked.parse_args()
    began = time.monotonic()
    # In memory if possible: the test computes what a disk would lose, and a real disk is slower than all the rest.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fedalc-crash-", dir=memory) as place:
        try:
            rows = tiny(Path(place)) if options.tiny else everything(Path(place), options.kills, options.step)
        except Broken as broken:
            print(f"BROKEN: {broken}", file=sys.stderr)
            return 1
    if options.out is not None:
        write_text(options.out, HEAD + "".join(f"| {what} | {name} | {count} |\n" for what, name, count in rows))
    print(f"all promises kept, {time.monotonic() - began:.0f} s")
    return 0


Row = tuple[str, str, int]
Counted = tuple[str, int]
Part = Callable[[Bench, int, int], list[Counted]]


def told(row: Row) -> Row:
    print(f"{row[1]}: {row[2]} × {row[0]}", flush=True)
    return row


def tiny(place: Path) -> list[Row]:
    chance = random.Random(SEED)
    bench = Bench(Train(), place)
    kills = kills_at_every_write(bench, step=131)
    cuts, states = power_cuts(bench, chance, step=149, shuffles=1)
    return [
        told(("killed at an operation", "training", kills)),
        told(("power cut", "training", cuts)),
        told(("states of a disk", "training", states)),
    ]


def everything(place: Path, kills: int, step: int) -> list[Row]:
    """Run each part in a separate process, as many at once as there are cores."""
    parts = [
        *((scenario, part) for scenario in (Train, Parties, Overwrite) for part in (every_write, cuts, at_random)),
        (State, every_write),
        (State, cuts),
        (Train, flips),
        (Parties, flips),
        (Train, full),
    ]
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        running = [pool.submit(one_part, scenario, part, place, kills, step) for scenario, part in parts]
        return [row for done in running for row in done.result()]


def one_part(scenario: Callable[..., Any], part: Part, place: Path, kills: int, step: int) -> list[Row]:
    own = Path(tempfile.mkdtemp(dir=place))
    held = Path(tempfile.mkdtemp(dir=place))
    bench = Bench(scenario(held) if scenario is Parties else scenario(), own)
    return [told((what, bench.scenario.name, count)) for what, count in part(bench, kills, step)]


def every_write(bench: Bench, kills: int, step: int) -> list[Counted]:
    return [("killed at each of its file operations, one after the other", kills_at_every_write(bench, step))]


def cuts(bench: Bench, kills: int, step: int) -> list[Counted]:
    count, states = power_cuts(bench, random.Random(SEED), step)
    return [
        ("power cut after each of its file operations", count),
        ("of these: different states of the disk that were resumed from", states),
    ]


def at_random(bench: Bench, kills: int, step: int) -> list[Counted]:
    return [("killed at a random moment", kills_at_random(bench, kills, random.Random(SEED)))]


def flips(bench: Bench, kills: int, step: int) -> list[Counted]:
    return [("a bit flipped in the newest checkpoint", flipped_bits(bench, max(40 // step, 3), random.Random(SEED)))]


def full(bench: Bench, kills: int, step: int) -> list[Counted]:
    failed, how = full_disk(bench, max(24 // step, 6))
    return [(f"no space left on the disk, somewhere in the run ({how})", failed)]


if __name__ == "__main__":
    sys.exit(main())
