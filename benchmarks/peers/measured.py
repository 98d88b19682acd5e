"""Measurements of one engine on a job: seconds, CPU seconds, losses, memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import psutil


@dataclass
class Measured:
    seconds: list[float] = field(default_factory=list)  # per round
    cpu_seconds: list[float] = field(default_factory=list)  # all processes; more reliable on a shared machine
    others: list[float] = field(default_factory=list)  # cores that other programs used meanwhile
    losses: list[float] = field(default_factory=list)  # Σ p_u R_u at the beginning of each round
    theta_norm: float = 0.0  # after the last round
    memory_mb: float = 0.0  # peak; for several processes the caller measures it
    gflop: float | None = None  # per round


class Stopwatch:
    """Measures one round. Starts when constructed."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.began, self.used, self.busy = time.perf_counter(), cpu_seconds(), machine_seconds()

    def stop(self, loss: float) -> None:
        """Record the round and its loss."""
        seconds, used, busy = time.perf_counter() - self.began, cpu_seconds() - self.used, machine_seconds() - self.busy
        self.measured.seconds.append(seconds)
        self.measured.cpu_seconds.append(used)
        self.measured.others.append(max(0.0, busy - used) / seconds)
        self.measured.losses.append(loss)


def measure_rounds(run_round: Callable[[], float], rounds: int) -> Measured:
    measured = Measured()
    for _ in range(rounds):
        watch = Stopwatch(measured)
        watch.stop(run_round())
    return measured


def cpu_seconds() -> float:
    """Return the CPU seconds that this process and its children have used so far."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def machine_seconds() -> float:
    """Return the CPU seconds used on this machine so far, including time stolen by a hypervisor."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def norm(parts: Iterable[np.ndarray]) -> float:
    """Return the norm of all arrays as one vector, summed in double precision."""
    return float(np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in parts)))


def own_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
