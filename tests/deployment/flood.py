"""Flood a server on 127.0.0.1 with bytes without a key, from several connections, in every way to send a body."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE = b"\0" * (1 << 16)
PUSH = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\n"


def announced() -> Iterator[bytes]:
    """Send a Content-Length of 64 MiB, and the body."""
    yield PUSH + b"Content-Length: 67108864\r\n\r\n"
    for _ in range(1024):
        yield PIECE


def chunked() -> Iterator[bytes]:
    """Send a chunked body without end."""
    yield PUSH + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + PIECE + b"\r\n"


def small() -> Iterator[bytes]:
    """Send small requests that are allowed without a key, one after another."""
    while True:
        yield PUSH + b"Content-Length: 16000\r\n\r\n" + PIECE[:16000]


def header() -> Iterator[bytes]:
    """Send a header that never ends."""
    yield PUSH
    while True:
        yield b"X-A: " + b"a" * 4000 + b"\r\n"


def slow_body() -> Iterator[bytes]:
    yield PUSH + b"Content-Length: 16000\r\n\r\n"
    while True:
        time.sleep(0.5)
        yield b"\0"


def slow_header() -> Iterator[bytes]:
    yield PUSH
    while True:
        time.sleep(0.5)
        yield b"X-A: a\r\n"


FAST: tuple[Callable[[], Iterator[bytes]], ...] = (announced, chunked, small, header)
SLOW = (slow_body, slow_header)


class Flood:
    """Runs until this many bytes are sent or the time is up. `sent`: bytes that the sockets accepted."""

    def __init__(self, port: int, authority: Path | None, size: int, seconds: float) -> None:
        self.port, self.size, self.until = port, size, time.monotonic() + seconds
        self.context = None if authority is None else ssl.create_default_context(cafile=str(authority))
        self.sent = self.connections = 0
        self._lock = threading.Lock()

    def run(self, fast: int = 4, slow: int = 20, sample: Callable[[], None] = lambda: None) -> None:
        kinds = [FAST[number % len(FAST)] for number in range(fast)] + [SLOW[n % len(SLOW)] for n in range(slow)]
        threads = [threading.Thread(target=self._send, args=(kind,), daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            sample()
            time.sleep(0.1)

    @property
    def over(self) -> bool:
        return self.sent >= self.size or time.monotonic() > self.until

    def _send(self, kind: Callable[[], Iterator[bytes]]) -> None:
        while not self.over:
            try:
                with self._connect() as connection:
                    for part in kind():
                        connection.sendall(part)
                        with self._lock:
                            self.sent += len(part)
                        if self.over:
                            break
            except OSError:  # refused, reset or timed out: once more
                time.sleep(0.001)

    def _connect(self) -> socket.socket:
        with self._lock:
            self.connections += 1
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        return plain if self.context is None else self.context.wrap_socket(plain, server_hostname="127.0.0.1")
