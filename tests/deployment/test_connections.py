"""Connections that send no request, or too many of them."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from fedalc.deployment.connections import protocol
from fedalc.deployment.gate_limits import Limits

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"
HOST = "198.51.100.4"


class Wire(asyncio.Transport):
    """What a protocol sees of its connection."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 5000), "sockname": ("192.0.2.7", 9443)})
        self.aborted, self.written = False, b""

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Door:
    def __init__(self, limits: Limits) -> None:
        self.kind = protocol(limits)
        self.config = uvicorn.Config(answer, http=self.kind, ws="none", lifespan="off", log_config=None)
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
