"""Connections that send no request, or too many requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from fedalc.deployment.certificates import Certificates, make_certificates
from fedalc.deployment.connections import protocol
from fedalc.deployment.gate import Gate
from fedalc.deployment.gate_limits import Limits
from fedalc.deployment.gate_log import limit_logs
from tests.deployment.flood import PIECE, PUSH

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"
HOST = "198.51.100.4"


class Wire(asyncio.Transport):
    """The transport of a connection, as its protocol sees it."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 5000), "sockname": ("192.0.2.7", 9443)})
        self.aborted, self.closed, self.paused, self.written = False, False, False, b""

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted or self.closed

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def empty_answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Door:
    def __init__(self, limits: Limits) -> None:
        self.kind = protocol(limits)
        self.config = uvicorn.Config(empty_answer, http=self.kind, ws="none", lifespan="off", log_config=None)
        self.config.load()
        self.state = ServerState()

    def connect(self, host: str = HOST) -> tuple[Any, Wire]:
        wire, made = Wire(host), self.kind(config=self.config, server_state=self.state, app_state={})
        made.connection_made(wire)
        return made, wire


def test_connections_are_counted_and_given_back() -> None:
    async def go() -> None:
        door = Door(Limits(connections=4, address_connections=2))
        first, _ = door.connect()
        assert not door.connect()[1].aborted
        assert door.connect()[1].aborted, "a third of one address"
        first.connection_lost(None)
        assert not door.connect()[1].aborted
        assert [door.connect("127.0.0.1")[1].aborted for _ in range(3)] == [False, False, True], "four of all"

    asyncio.run(go())


def test_a_request_has_to_come_soon() -> None:
    async def go() -> None:
        door = Door(Limits(header_seconds=0.005))
        silent, half, whole = door.connect(), door.connect(), door.connect()
        half[0].data_received(REQUEST)
        whole[0].data_received(REQUEST + b"\r\n")
        await asyncio.sleep(0.05)
        assert silent[1].aborted and half[1].aborted
        assert not whole[1].aborted and b"200 OK" in whole[1].written
        whole[0].data_received(REQUEST)  # the half of a second one
        await asyncio.sleep(0.05)
        assert whole[1].aborted

    asyncio.run(go())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"], days=2)
    return Certificates(folder)


@contextlib.contextmanager
def listening(certificates: Certificates, app: Any, limits: Limits) -> Iterator[int]:
    """Run a server with TLS and uvicorn's choice of event loop, like a SuperLink."""
    config = uvicorn.Config(
        app, http=protocol(limits), ws="none", lifespan="off", log_config=None, timeout_keep_alive=0,
        ssl_certfile=certificates.server, ssl_keyfile=certificates.server_key,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def connect(port: int, authority: Path) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=5)
    return ssl.create_default_context(cafile=str(authority)).wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize(
    ("first", "piece", "answer"),
    [
        (PUSH + b"Content-Length: 20000000000\r\n\r\n", PIECE, b"413"),
        (PUSH + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n", b"413"),
        (PUSH, b"X-A: " + b"a" * 60000 + b"\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"", b"200"),  # then the time for another request is over
    ],
    ids=["announced", "chunked", "headers", "after the answer"],
)
def test_nothing_is_read_after_a_refusal(certificates: Certificates, first: bytes, piece: bytes, answer: bytes) -> None:
    """The server reads no more than socket buffers hold, ends the connection soon, and the sender can read why."""
    gate = Gate(empty_answer, Limits(), say=lambda line: None)
    with (
        listening(certificates, gate, Limits(refused_seconds=0.2)) as port,
        connect(port, certificates.authority) as line,
    ):
        line.sendall(first)
        if not piece:
            time.sleep(0.1)
        sent, until = 0, time.monotonic() + 1.5
        with pytest.raises(OSError, match=r"EOF|reset|Broken|closed"):
            while time.monotonic() < until:
                sent += line.send(piece or PIECE)
            raise TimeoutError(f"still open after {sent} bytes")
        assert sent < 40e6
        assert line.recv(100).startswith(b"HTTP/1.1 " + answer)


def test_a_large_answer_is_sent_to_its_end(certificates: Certificates) -> None:
    """Even to a slow reader, and although the connection closes after it."""
    size = 20_000_000

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": b"a" * size})

    with (
        listening(certificates, large, Limits(refused_seconds=0.05)) as port,
        connect(port, certificates.authority) as line,
    ):
        line.sendall(REQUEST + b"\r\n")
        time.sleep(0.3)
        got = 0
        while got < size and (part := line.recv(1 << 20)):
            got += len(part)
        assert got >= size


def test_senders_of_nonsense_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    for name in ("uvicorn.error", "uvicorn.access", "flwr", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
    limit_logs()

    async def go() -> None:
        door = Door(Limits())
        for _ in range(50):
            made, wire = door.connect()
            made.data_received(b"\0\r\n\r\n")
            assert b"400 Bad Request" in wire.written
            made.connection_lost(None)

    asyncio.run(go())
    assert lines == ["Invalid HTTP request received."]


def test_an_answer_is_not_written_after_a_400() -> None:
    """A body that turns into garbage: the app that waits for it learns that the sender is gone."""
    heard: list[str] = []

    async def reader(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        heard.append(message["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def go() -> None:
        door = Door(Limits())
        door.config.loaded_app = reader
        made, wire = door.connect()
        made.data_received(PUSH + b"Transfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.01)
        made.data_received(b"no length\r\n")
        await asyncio.sleep(0.01)
        assert wire.written.count(b"HTTP/1.1") == 1 and b"400 Bad Request" in wire.written

    asyncio.run(go())
    assert heard == ["http.disconnect"]


def test_many_small_answers_are_not_a_large_one() -> None:
    """Requests in one packet: the connection still ends without TLS's own close, which would go on reading."""

    async def go() -> None:
        door = Door(Limits())
        made, wire = door.connect()
        made.data_received((REQUEST + b"\r\n") * 2000)
        while wire.written.count(b"HTTP/1.1 200") < 2000:
            await asyncio.sleep(0.01)
        assert len(wire.written) > 64_000
        made.timeout_keep_alive_handler()
        assert wire.paused and not wire.closed
        await asyncio.sleep(0.01)
        assert wire.aborted

    asyncio.run(go())
