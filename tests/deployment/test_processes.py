"""Processes that start others, and how they end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fedalc.deployment.processes import Process, follow, free_port, is_healthy, signals_interrupt
from fedalc.errors import FedalcError

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def start(tmp_path: Path, code: str, *arguments: str) -> Process:
    return Process.start("it", [sys.executable, "-c", code, *arguments], tmp_path / "logs" / "it.log")


def child_of(process: Process) -> int:
    process.wait_for(lambda: "child" in process.tail(), 20, "started")
    return int(process.tail().split()[-1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_it_says_line_by_line(tmp_path: Path) -> None:
    process = start(tmp_path, "import sys; print('one'); print('two'); sys.stderr.write('no end'); sys.exit(3)")
    lines: list[str] = []
    assert follow(process, lines.append) == 3
    assert sorted(lines) == ["no end", "one", "two"] or lines == ["no endone", "two"]
    assert process.new_lines() == []


def test_grandchildren_in_other_sessions_end_too(tmp_path: Path) -> None:
    process = start(tmp_path, PARENT, "60")
    child = child_of(process)
    assert {process.pid, child} <= process.family()
    process.end(patience=5)
    assert not process.alive and not is_running(child) and process.family() == set()
    process.end()


def test_orphans_that_were_seen_before_end_too(tmp_path: Path) -> None:
    process = start(tmp_path, PARENT, "60")
    child = child_of(process)
    process.family()
    os.kill(process.pid, signal.SIGKILL)
    process.wait_for(lambda: not process.alive, 5, "dead") if process.alive else None
    assert is_running(child)
    process.end()
    assert not is_running(child)


def test_the_end_of_a_program_ends_what_it_started(tmp_path: Path) -> None:
    process = start(tmp_path, PARENT, "0.5")
    assert follow(process, lambda line: None) == 0
    assert not is_running(int(process.tail().split()[-1]))


def test_we_end_it_when_we_are_told_to(tmp_path: Path) -> None:
    process = start(tmp_path, PARENT, "60")
    child = child_of(process)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(KeyboardInterrupt):
        follow(process, lambda line: None)
    assert not process.alive and not is_running(child)


def test_waiting_says_what_went_wrong(tmp_path: Path) -> None:
    process = start(tmp_path, "print('it was this'); raise SystemExit(1)")
    with pytest.raises(FedalcError, match="it ended before ready:\nit was this"):
        process.wait_for(lambda: False, 20, "ready")
    slow = start(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(FedalcError, match=r"not ready within 0.2 s; its log is .*it\.log"):
        slow.wait_for(lambda: False, 0.2, "ready")
    slow.kill()


def test_signals_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals_interrupt():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_nobody_answers_at_a_free_port() -> None:
    began = time.monotonic()
    assert not is_healthy(f"127.0.0.1:{free_port()}", None)
    assert time.monotonic() - began < 3
