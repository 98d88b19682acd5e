"""`python -m peers WAY JOB ROUNDS OUT`: run a job with one engine (WAY) in this process and measure it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from peers.measured import Measured, own_peak_mb


def run(way: str, job: Path, rounds: int) -> Measured:
    if way in ("fused", "fused-mixed", "lockstep", "clients"):
        from peers.fedalc_engines import run as run_engine

        return run_engine(job, rounds, way)
    if way == "plain":
        from peers.plain_loop import run as run_plain

        return run_plain(job, rounds)
    if way == "pfl":
        from peers.pfl_loop import run as run_pfl

        return run_pfl(job, rounds)
    from peers.flower_simulation import run_as_in_examples, run_in_process, run_with_ray

    flower = {"flower": run_in_process, "flower-ray": run_with_ray, "flower-examples": run_as_in_examples}
    return flower[way](job, rounds)


if __name__ == "__main__":
    way, job, rounds, out = sys.argv[1:]
    measured = run(way, Path(job), int(rounds))
    measured.memory_mb = own_peak_mb()
    Path(out).write_text(json.dumps(asdict(measured)))
