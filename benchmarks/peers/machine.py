"""Measure the machine's limits: matrix-multiply peak and copying bandwidth."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

# With one thread, other programs on the machine do not count.
CLOCK = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter


def peak_gflops() -> float:
    """Return the best speed of several square matrix products in float32."""
    best = 0.0
    for size in (1024, 2048, 4096):
        a, b = torch.randn(size, size), torch.randn(size, size)
        out = a @ b
        for _ in range(5):
            began = CLOCK()
            torch.mm(a, b, out=out)
            best = max(best, 2 * size**3 / (CLOCK() - began) / 1e9)
    return best


def copy_gbps() -> float:
    a = torch.randn(50_000_000)
    b = a.clone()
    best = 0.0
    for _ in range(5):
        began = CLOCK()
        b.copy_(a)
        best = max(best, 2 * a.numel() * 4 / (CLOCK() - began) / 1e9)
    return best


if __name__ == "__main__":
    facts = {"peak_gflops": peak_gflops(), "copy_gbps": copy_gbps(), "cores": float(os.cpu_count() or 0)}
    Path(sys.argv[1]).write_text(json.dumps(facts))
