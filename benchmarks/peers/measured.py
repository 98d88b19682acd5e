"""What is measured of a way of doing the job."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Measured:
    seconds: list[float] = field(default_factory=list)  # of each round
    losses: list[float] = field(default_factory=list)  # Σ p_u R_u at the beginning of each round
    theta_norm: float = 0.0  # after the last of them
    memory_mb: float = 0.0  # the most that was used; where it is several processes, the caller watches them
    gflop: float | None = None  # of a round


def measure_rounds(run_round: Callable[[], float], rounds: int) -> Measured:
    measured = Measured()
    for _ in range(rounds):
        began = time.perf_counter()
        measured.losses.append(run_round())
        measured.seconds.append(time.perf_counter() - began)
    return measured


def norm(parts: Iterable[np.ndarray]) -> float:
    """Of all of them as one vector, summed in double precision."""
    return float(np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in parts)))


def own_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
