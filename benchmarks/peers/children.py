"""Measurements as processes of their own, one after another, watched for memory and ended with us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

LIMIT = 900.0  # seconds for one measurement
LOOK_EVERY = 0.5  # seconds between looks at memory


class Failed(Exception):
    """A measurement that did not come to its end; the message is the last it said."""


def run_child(*arguments: str, several_processes: bool = False) -> dict[str, Any]:
    """`python -m arguments… OUT`, and the JSON it leaves in OUT.

    Memory is the process's own peak as the system counts it; of several processes, the largest sum found by looking
    twice a second, pages that they share counted once.
    """
    here = Path(__file__).resolve().parents[1]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), environment.get("PYTHONPATH"))))
    environment.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    # Threads that wait spin for about 0.1 ms, not for ten: enough from one operation to the next, and where another
    # program wants the core, a client's small operations do not take twenty times as long.
    environment.setdefault("GOMP_SPINCOUNT", "2000")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        # What it makes for itself goes into the same folder, and with it. (Sockets are there: the name must be short.)
        environment["TMPDIR"] = folder
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments, str(out)], env=environment, stdout=stream, stderr=stream
            )
        began, most = time.monotonic(), 0.0
        try:
            while process.poll() is None and time.monotonic() - began < LIMIT:
                if several_processes:
                    most = max(most, _tree_mb(process.pid))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY)
            timed_out = process.poll() is None
        finally:
            _end_tree(process)
        if timed_out:
            raise Failed(f"not done after {LIMIT:.0f} s")
        if process.returncode or not out.exists():
            said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise Failed(said[-1] if said else f"ended with {process.returncode}")
        found: dict[str, Any] = json.loads(out.read_text())
    if several_processes:
        found["memory_mb"] = most
    return found


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _tree_mb(pid: int) -> float:
    total = 0
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
    return total / 2**20


def _end_tree(process: subprocess.Popen[Any]) -> None:
    """Only what we have started: the process, and those that it has."""
    for part in _tree(process.pid) if process.poll() is None else []:
        with suppress(psutil.NoSuchProcess):
            part.kill()
    process.wait()
