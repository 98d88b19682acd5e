"""Start a program with a log file, watch it, and end it together with everything it started.

Flower's programs start their children in new sessions, so no process group contains them all. The descendants are
therefore looked up whenever they are needed.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from fedalc.deployment.pauses import pause_after
from fedalc.errors import FedalcError

_LOOK_EVERY = 0.1  # seconds
_FAMILY_EVERY = 1.0  # seconds, at the latest: it reads about every process of the machine
_GONE_WITHIN = 5.0  # seconds from the kill until the process is gone


class Process:
    """A program in its own session, so that Ctrl-C in the terminal reaches only us, and we end it in order."""

    def __init__(self, name: str, log: Path, popen: subprocess.Popen[bytes], log_start: int) -> None:
        """Wrap a running program, whose output is in `log` from byte `log_start` on. See `start`."""
        self.name = name
        self.log = log
        self._popen = popen
        self._log_start = self._read_from = log_start
        self._family: list[psutil.Process] = []

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        keep_open: Sequence[int] = (),
    ) -> Process:
        """Start a program. `keep_open`: file descriptors that it inherits, such as a lock that must last as long."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            log_start = out.tell()
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                start_new_session=True,
                pass_fds=tuple(keep_open),
            )
        process = cls(name, log, popen, log_start)
        with contextlib.suppress(psutil.NoSuchProcess):
            process._family = [psutil.Process(popen.pid)]
        return process

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        return self._popen.poll()

    def new_lines(self) -> list[str]:
        """Return the whole lines it has written since the last call; after its end, also an unfinished one."""
        ended = not self.alive
        with self.log.open("rb") as log:
            log.seek(self._read_from)
            text = log.read()
        if not ended:
            text = text[: text.rfind(b"\n") + 1]
        self._read_from += len(text)
        return text.decode("utf-8", "replace").splitlines()

    def family(self) -> set[int]:
        """Return the ids of the living: this process, its descendants, and orphans that an earlier call has seen."""
        family: list[psutil.Process] = []
        for member in self._family:
            if member not in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    family += [member, *member.children(recursive=True)]
        self._family = [member for member in dict.fromkeys(family) if _is_alive(member)]
        return {member.pid for member in self._family}

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `condition()` is true. Raises if the program ends first or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.alive:
                raise FedalcError(f"{self.name} ended before {what}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise FedalcError(f"{self.name}: not {what} within {seconds:g} s; its log is {self.log}")
            time.sleep(_LOOK_EVERY)

    def said(self) -> str:
        """Return all it has written since its start. The log file may have older lines."""
        return self.log.read_bytes()[self._log_start :].decode("utf-8", "replace")

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.said().splitlines()[-lines:])

    def end(self, patience: float = 15.0) -> None:
        """Ask it to end, wait up to `patience` seconds, then kill what is left of it and of everything it started.

        Can be called twice.
        """
        self.family()
        if self.alive:
            self._popen.terminate()
            deadline = time.monotonic() + patience
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C ends the wait
                while self.alive and time.monotonic() < deadline:
                    self.family()  # it may still start another process
                    time.sleep(_LOOK_EVERY)
        self.kill()

    def kill(self) -> None:
        """Kill it and everything it started at once, as a power cut would."""
        self.family()
        for member in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self._popen.wait()
        deadline = time.monotonic() + _GONE_WITHIN
        while self.family() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY / 10)


def follow(process: Process, say: Callable[[str], None]) -> int:
    """Pass on what it writes until it ends, and return its exit code. If we are interrupted, end it."""
    began, due = time.monotonic(), 0.0
    try:
        with signals_interrupt():
            while process.alive:
                if (now := time.monotonic()) > due:
                    process.family()  # to know its children if they outlive it
                    due = now + pause_after(now - began, _FAMILY_EVERY)
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
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that they clean up too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Signals that are ignored stay ignored: nohup relies on it.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """End this program when the one that started it is gone, even if that one was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_healthy(address: str, certificate: Path | None) -> bool:
    """Return whether a SuperLink answers at the address: over HTTPS, or plain HTTP without a certificate."""
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


def _is_alive(process: psutil.Process) -> bool:
    """Return False also for a zombie, which has ended and only waits to be reaped by its parent."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
