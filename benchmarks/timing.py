"""How long a piece of work takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def timed(work: Callable[[], Any], repeat: int = 7, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds by this clock: the median of so many, after one that builds what is kept."""
    work()
    times = []
    for _ in range(repeat):
        began = clock()
        work()
        times.append(clock() - began)
    return statistics.median(times)
