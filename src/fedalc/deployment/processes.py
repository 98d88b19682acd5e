"""Programs that start others: started with a log, watched, and ended with everything they started.

Flower's programs put their children into sessions of their own, so that no process group holds them all. The family of
a process is therefore read from the system's table, each time it is needed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from fedalc.errors import FedalcError

_LOOK_EVERY = 0.1  # seconds
_GONE_WITHIN = 5.0  # seconds from the kill until the system has done it


class Process:
    """A program in a session of its own: a Ctrl-C in the terminal reaches us, and we end it in order."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        keep_open: Sequence[int] = (),
    ):
        """`keep_open`: open files to hand on to it, such as a lock that must last as long as it does."""
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._began_at = self._read_from = out.tell()
            self._running = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                start_new_session=True,
                pass_fds=tuple(keep_open),
            )
        self._family = {pid: row.born for pid, row in _table().items() if pid == self.pid}

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        return self._running.poll() is None

    @property
    def code(self) -> int | None:
        return self._running.poll()

    def new_lines(self) -> list[str]:
        """What it has written since this was last asked, in whole lines (after its end: to the end)."""
        ended = not self.alive
        with self.log.open("rb") as log:
            log.seek(self._read_from)
            text = log.read()
        if not ended:
            text = text[: text.rfind(b"\n") + 1]
        self._read_from += len(text)
        return text.decode("utf-8", "replace").splitlines()

    def family(self) -> set[int]:
        """The ids of it and of all it has started, as far as they are alive: also of orphans, if seen before."""
        table = _table()
        alive = {pid for pid, born in self._family.items() if pid in table and table[pid].born == born}
        self._family = {pid: table[pid].born for pid in alive | _descendants(alive, table)}
        return set(self._family)

    def wait_for(self, found: Callable[[], bool], seconds: float, what: str) -> None:
        """Until something is so. The end of the program, or of our patience, is an error that says where to look."""
        until = time.monotonic() + seconds
        while not found():
            if not self.alive:
                raise FedalcError(f"{self.name} ended before {what}:\n{self.tail()}")
            if time.monotonic() > until:
                raise FedalcError(f"{self.name}: not {what} within {seconds:g} s; its log is {self.log}")
            time.sleep(_LOOK_EVERY)

    def said(self) -> str:
        """All it has written since it was started: the log may be older."""
        return self.log.read_bytes()[self._began_at :].decode("utf-8", "replace")

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.said().splitlines()[-lines:])

    def end(self, patience: float = 15.0) -> None:
        """Asks it to end, waits, and makes sure of it and of everything it started. Can be called twice."""
        self.family()
        if self.alive:
            self._running.terminate()
            until = time.monotonic() + patience
            with contextlib.suppress(KeyboardInterrupt):  # asked again: wait no longer
                while self.alive and time.monotonic() < until:
                    self.family()  # until its end it may start another one
                    time.sleep(_LOOK_EVERY)
        self.kill()

    def kill(self) -> None:
        """At once, without a word to anyone: what a power cut would do."""
        for member in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self._running.wait()
        until = time.monotonic() + _GONE_WITHIN
        while self.family() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY / 10)


def follow(process: Process, say: Callable[[str], None]) -> int:
    """Passes on what it writes until it ends: its exit code. It is ended when we are told to."""
    try:
        with signals_interrupt():
            while process.alive:
                process.family()  # to know its children when it is gone and they are not
                for line in process.new_lines():
                    say(line)
                time.sleep(_LOOK_EVERY)
    finally:
        process.end()
    for line in process.new_lines():
        say(line)
    code = process.code
    assert code is not None
    return code


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP do what Ctrl-C does, so that clean-up is done for them too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: that is how nohup keeps a program running when its terminal goes.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """For a program that another one started: it is not to live on when that one is killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def running(pids: Iterable[int]) -> set[int]:
    """Those that are alive. One that is dead and only waited for by its parent is not."""
    return set(pids) & set(_table())


def free_port(host: str = "127.0.0.1") -> int:
    """One that nobody uses at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_healthy(address: str, certificate: Path | None) -> bool:
    """Whether a SuperLink answers there. Without a certificate: over plain HTTP."""
    context = None if certificate is None else ssl.create_default_context(cafile=str(certificate))
    scheme = "http" if certificate is None else "https"
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        *([] if context is None else [urllib.request.HTTPSHandler(context=context)]),
    )
    try:
        with direct.open(f"{scheme}://{address}/health", timeout=3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


class _Row(NamedTuple):
    parent: int
    born: str
    """With the id, tells a process from a later one of the same id."""


def _table() -> dict[int, _Row]:
    """All processes that are alive. Those that are dead and only waited for are left out."""
    if not Path("/proc/self/stat").exists():
        return _table_by_ps()
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                # Fields after the name, which is in brackets and may hold anything.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    table[int(entry.name)] = _Row(int(fields[1]), fields[19])
    return table


def _table_by_ps() -> dict[int, _Row]:
    command = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 3) for line in listed.splitlines())
    return {int(pid): _Row(int(parent), born) for pid, parent, state, born in rows if not state.startswith("Z")}


def _descendants(roots: set[int], table: Mapping[int, _Row]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.parent, []).append(pid)
    found: set[int] = set()
    open_ends = list(roots)
    while open_ends:
        for child in children.get(open_ends.pop(), []):
            if child not in found:
                found.add(child)
                open_ends.append(child)
    return found
