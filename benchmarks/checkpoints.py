"""Measure the cost of durable checkpoints: `save_folder` against the same files without fsync and checksums.

python benchmarks/checkpoints.py [DATASET …]        default: demo, and bibtex if FEDALC_DATA has it
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import fedalc
from fedalc.core.tensor_folder import load_folder, save_folder

TIMES = 31


def plain(folder: Path, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
    """Save like save_folder, but without fsync (the data may still be in memory) and without checksums."""
    part, old = folder.with_name("part"), folder.with_name("old")
    part.mkdir()
    save_file(tensors, part / "tensors.safetensors")
    (part / "facts.json").write_text(json.dumps(facts, indent=1))
    if folder.exists():
        folder.replace(old)
    part.replace(folder)
    if old.exists():
        for file in old.iterdir():
            file.unlink()
        old.rmdir()


def seconds(save: Callable[[], None]) -> float:
    began = time.perf_counter()
    save()
    return time.perf_counter() - began


def measure(dataset: str) -> str:
    with tempfile.TemporaryDirectory(dir=".") as made:
        place = Path(made)
        run = fedalc.train(dataset=dataset, rounds=1, folder=place / "run")
        loaded, facts = load_folder(place / "run" / "checkpoint")
        tensors = {name: tensor.clone() for name, tensor in loaded.items()}
        size = sum(tensor.nbytes for tensor in tensors.values())
        pairs = [
            (
                seconds(lambda: plain(place / "plain", tensors, facts)),
                seconds(lambda: save_folder(place / "durable", tensors, facts, keep_previous=True)),
                seconds(lambda: load_folder(place / "durable")),
            )
            for _ in range(TIMES)
        ]
    before, after, load = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    a_round = 1000 * run.result["seconds_per_round"]
    figures = f"{size / 1e6:.2f} | {before:.1f} | {after:.1f} | {after / before:.1f} | {load:.1f} | {a_round:.0f}"
    return f"| {dataset} | {figures} |"


def main() -> None:
    known = ["demo", *(["bibtex"] if (Path(os.environ.get("FEDALC_DATA", "")) / "bibtex").is_dir() else [])]
    print("| dataset | MB | plain, ms | durable, ms | ratio | load and verify, ms | a round, ms |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for dataset in sys.argv[1:] or known:
        print(measure(dataset), flush=True)


if __name__ == "__main__":
    main()
