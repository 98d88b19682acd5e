"""Time a function."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def timed(work: Callable[[], Any], repeat: int = 7, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median seconds of `repeat` calls, after one warm-up call that fills caches."""
    work()
    times = []
    for _ in range(repeat):
        began = clock()
        work()
        times.append(clock() - began)
    return statistics.median(times)
