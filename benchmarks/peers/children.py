"""Run measurements in separate processes, one at a time; watch their memory and end them with this process."""

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
LOOK_EVERY = 0.5  # seconds between memory samples


class Failed(Exception):
    """A measurement failed; the message is the last line of its output."""


def run_child(*arguments: str, several_processes: bool = False) -> dict[str, Any]:
    """Run `python -m arguments… OUT` and return the JSON it writes to OUT.

    Memory is the peak of the process as the system reports it. For several processes it is the largest sum of samples
    taken twice a second, with shared pages counted once.
    """
    here = Path(__file__).resolve().parents[1]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), environment.get("PYTHONPATH"))))
    environment.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    # Waiting threads spin for about 0.1 ms instead of 10 ms. This bridges the gap between two operations. If another
    # program uses the core, a client's small operations then do not take twenty times as long.
    environment.setdefault("GOMP_SPINCOUNT", "2000")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        # Its temporary files go into the same folder and are deleted with it. (It has sockets: the path must be short.)
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
            raise Failed(f"not finished after {LIMIT:.0f} s")
        if process.returncode or not out.exists():
            said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise Failed(said[-1] if said else f"exit code {process.returncode}")
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
    """Kill the process and its children."""
    for part in _tree(process.pid) if process.poll() is None else []:
        with suppress(psutil.NoSuchProcess):
            part.kill()
    process.wait()
